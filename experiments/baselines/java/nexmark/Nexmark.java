package baselines.nexmark;

import baselines.flink.Rows;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.TableDescriptor;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.functions.ScalarFunction;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.utils.TypeConversions;
import org.apache.flink.util.Collector;

/**
 * A query of Nexmark in Flink SQL, without an end: --sql FILE (statements with lines of ";" between, the last one is the
 * query), --progress FILE, --parallelism N, --rate EVENTS_PER_S of event time, --conf KEY=VALUE. Appends lines of
 * "TIME_MS EVENTS" to the file of progress.
 */
public final class Nexmark {
    private static final long PERIOD_MS = 100;
    private static final LongAdder READ = new LongAdder();
    private static final String[] VIEWS = {"person", "auction", "bid"};
    private static final String[] COLUMNS = {
        "id long,name text,emailAddress text,creditCard text,city text,state text,dateTime time,extra text",
        "id long,itemName text,description text,initialBid long,reserve long,dateTime time,expires time,seller long,"
                + "category long,extra text",
        "auction long,bidder long,price long,channel text,url text,dateTime time,extra text"
    };

    private Nexmark() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        Configuration conf = new Configuration();
        for (int i = 0; i < arguments.length; i += 2) {
            if (arguments[i].equals("--conf")) {
                String[] pair = arguments[i + 1].split("=", 2);
                conf.setString(pair[0], pair[1]);
            } else {
                given.put(arguments[i], arguments[i + 1]);
            }
        }
        int parallelism = Integer.parseInt(given.get("--parallelism"));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(parallelism, conf);
        env.setParallelism(parallelism);
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.createTemporarySystemFunction("count_char", CountChar.class);
        tables.createTemporarySystemFunction("side_value", SideValue.class);
        DataStream<Long> numbers = env.fromSource(
                        new Rows(0, 1, 0), WatermarkStrategy.noWatermarks(), "numbers", Types.LONG)
                .map(new Counted());
        for (int kind = 0; kind < VIEWS.length; kind++) {
            create(tables, numbers, kind, Long.parseLong(given.get("--rate")));
        }
        String[] statements = Files.readString(Path.of(given.get("--sql"))).split("(?m)^;$");
        for (int i = 0; i < statements.length - 1; i++) {
            tables.executeSql(statements[i]);
        }
        JobClient job = started(tables, tables.sqlQuery(statements[statements.length - 1]));
        Path progress = Path.of(given.get("--progress"));
        while (!job.getJobStatus().get().isGloballyTerminalState()) {
            String line = System.currentTimeMillis() + " " + READ.sum() + "\n";
            Files.write(
                    progress,
                    line.getBytes(StandardCharsets.US_ASCII),
                    StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
            Thread.sleep(PERIOD_MS);
        }
        job.getJobExecutionResult().get();
    }

    private static JobClient started(StreamTableEnvironment tables, Table result) {
        Schema.Builder columns = Schema.newBuilder();
        for (Column column : result.getResolvedSchema().getColumns()) {
            DataType plain = TypeConversions.fromLogicalToDataType(
                    org.apache.flink.table.runtime.typeutils.TypeCheckUtils.isRowTime(
                                    column.getDataType().getLogicalType())
                            ? DataTypes.TIMESTAMP(3).getLogicalType()
                            : column.getDataType().getLogicalType());
            columns.column(column.getName(), plain);
        }
        tables.createTemporaryTable(
                "out", TableDescriptor.forConnector("blackhole").schema(columns.build()).build());
        return result.executeInsert("out").getJobClient().orElseThrow();
    }

    private static void create(StreamTableEnvironment tables, DataStream<Long> numbers, int kind, long eventsPerS) {
        Schema.Builder schema = Schema.newBuilder();
        String[] columns = COLUMNS[kind].split(",");
        DataTypes.Field[] fields = new DataTypes.Field[columns.length];
        boolean[] times = new boolean[columns.length];
        for (int i = 0; i < columns.length; i++) {
            String[] column = columns[i].split(" ");
            times[i] = column[1].equals("time");
            DataType type = times[i]
                    ? DataTypes.TIMESTAMP(3)
                    : column[1].equals("long") ? DataTypes.BIGINT() : DataTypes.STRING();
            fields[i] = DataTypes.FIELD(column[0], type);
            schema.column(column[0], type);
        }
        schema.watermark("dateTime", "`dateTime` - INTERVAL '4' SECOND");
        InternalTypeInfo<RowData> type =
                InternalTypeInfo.of((RowType) DataTypes.ROW(fields).getLogicalType());
        DataStream<RowData> rows =
                numbers.flatMap(new Made(kind, times, eventsPerS)).returns(type).name(VIEWS[kind]);
        tables.createTemporaryView(VIEWS[kind], rows, schema.build());
    }

    /** Counts what is read, in all subtasks of this process. */
    private static final class Counted extends RichMapFunction<Long, Long> {
        private long own;

        @Override
        public Long map(Long number) {
            if (++own % 64 == 0) {
                READ.add(64);
            }
            return number;
        }
    }

    /** The events of one kind. */
    private static final class Made extends RichFlatMapFunction<Long, RowData> {
        private final int kind;
        private final boolean[] times;
        private final long eventsPerS;
        private transient Events<StringData> events;

        Made(int kind, boolean[] times, long eventsPerS) {
            this.kind = kind;
            this.times = times;
            this.eventsPerS = eventsPerS;
        }

        @Override
        public void open(OpenContext context) {
            events = new Events<>(Made::text, eventsPerS);
        }

        private static StringData text(String text) {
            return BinaryStringData.fromBytes(text.getBytes(StandardCharsets.UTF_8));
        }

        @Override
        public void flatMap(Long number, Collector<RowData> out) {
            if (Events.kind(number) != kind) {
                return;
            }
            Object[] fields = events.event(number);
            for (int i = 0; i < fields.length; i++) {
                if (times[i]) {
                    fields[i] = TimestampData.fromEpochMillis((Long) fields[i]);
                }
            }
            out.collect(GenericRowData.of(fields));
        }
    }

    /** How often a letter is in a text. */
    public static final class CountChar extends ScalarFunction {
        public Long eval(String text, String letter) {
            long count = 0;
            for (int i = 0; i < text.length(); i++) {
                count += text.charAt(i) == letter.charAt(0) ? 1 : 0;
            }
            return count;
        }
    }

    /** The side input of q13. */
    public static final class SideValue extends ScalarFunction {
        private transient String[] values;

        public String eval(Long auction) {
            if (values == null) {
                values = new String[10_000];
                for (int key = 0; key < values.length; key++) {
                    values[key] = "value-" + key * 7_919 % 10_000;
                }
            }
            return values[(int) (auction % values.length)];
        }
    }
}
