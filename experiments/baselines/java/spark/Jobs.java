package baselines.spark;

import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.sum;
import static org.apache.spark.sql.functions.timestamp_millis;
import static org.apache.spark.sql.functions.unix_millis;
import static org.apache.spark.sql.functions.window;

import baselines.Notes;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.api.java.function.FlatMapGroupsWithStateFunction;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoder;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.GroupState;
import org.apache.spark.sql.streaming.GroupStateTimeout;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * The jobs of experiments/baselines/jobs.py for Spark Structured Streaming: --job, --notes DIR, --rate (0: unlimited),
 * --origin MS, --text FILE, --parallelism N, --batch ROWS, --checkpoints DIR, --conf KEY=VALUE.
 */
public final class Jobs {
    private static final long[] FACTORS = {48_271, 16_807, 69_621};
    private static final long[] KEYS = {50_021, 10_007, 251};
    private static final String[] NAMES = {"user", "page", "country"};
    private static final int WORDS_PER_LINE = 10;

    private Jobs() {}

    private static long key(long number, int at) {
        return number * FACTORS[at] % KEYS[at];
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        SparkSession.Builder builder = SparkSession.builder().appName("baselines");
        for (int i = 0; i < arguments.length; i += 2) {
            if (arguments[i].equals("--conf")) {
                String[] pair = arguments[i + 1].split("=", 2);
                builder.config(pair[0], pair[1]);
            } else {
                given.put(arguments[i], arguments[i + 1]);
            }
        }
        String job = given.get("--job");
        int width = job.equals("wordcount") ? WORDS_PER_LINE : 1;
        double rate = Double.parseDouble(given.get("--rate"));
        long originMs = Long.parseLong(given.get("--origin"));
        SparkSession spark = builder.getOrCreate();
        Dataset<Row> numbers = spark.readStream()
                .format(Numbers.class.getName())
                .option("rate", rate)
                .option("width", width)
                .option("origin", originMs)
                .option("partitions", given.get("--parallelism"))
                .option("batch", Long.parseLong(given.get("--batch")) / width)
                .load();
        Notes.Plan noted = new Notes.Plan(given.get("--notes"), "noted", rate, width, originMs);
        Dataset<Row> rows;
        if (job.equals("wordcount")) {
            rows = wordCount(numbers, given.get("--text"));
        } else if (job.equals("three-sums")) {
            rows = threeSums(numbers);
        } else {
            rows = windows(numbers, new Notes.Plan(given.get("--notes"), "input", 0, width, originMs));
        }
        rows.writeStream()
                .outputMode("append")
                .option("checkpointLocation", given.get("--checkpoints"))
                .foreach(new Noted(noted, job.equals("window")))
                .start()
                .awaitTermination();
    }

    private static StructType longs(String... names) {
        StructType schema = new StructType();
        for (String name : names) {
            schema = schema.add(name, DataTypes.LongType, false);
        }
        return schema;
    }

    // --- words

    private static Dataset<Row> wordCount(Dataset<Row> numbers, String text) {
        StructType words = new StructType().add("word", DataTypes.StringType, false).add("value", DataTypes.LongType, false);
        return running(
                numbers.flatMap(new Words(text), Encoders.row(words)),
                0,
                Encoders.STRING(),
                words.add("count", DataTypes.LongType, false),
                false);
    }

    private static final class Words implements FlatMapFunction<Row, Row> {
        private static List<String> lines;
        private final String text;

        Words(String text) {
            this.text = text;
        }

        private static synchronized List<String> lines(String text) {
            if (lines == null) {
                try {
                    lines = Files.readAllLines(Paths.get(text));
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            }
            return lines;
        }

        @Override
        public Iterator<Row> call(Row row) {
            long number = row.getLong(0);
            List<String> known = lines(text);
            String[] words = known.get((int) (number % known.size())).split(" ");
            return Arrays.stream(words).map(word -> RowFactory.create(word, number)).iterator();
        }
    }

    // --- sums

    private static Dataset<Row> threeSums(Dataset<Row> numbers) {
        StructType schema = longs("user", "page", "country", "value");
        Dataset<Row> rows = numbers.map(
                (MapFunction<Row, Row>) row -> {
                    long n = row.getLong(0);
                    return RowFactory.create(key(n, 0), key(n, 1), key(n, 2), n);
                },
                Encoders.row(schema));
        for (int at = 0; at < NAMES.length; at++) {
            schema = schema.add(NAMES[at] + "_sum", DataTypes.LongType, false);
            rows = running(rows, at, Encoders.LONG(), schema, true);
        }
        return rows;
    }

    /** Every row with the running count of its key, or the running sum of column 3 for it, as a further column. */
    private static <K> Dataset<Row> running(Dataset<Row> rows, int key, Encoder<K> keys, StructType schema, boolean sums) {
        return rows.groupByKey((MapFunction<Row, K>) row -> row.getAs(key), keys)
                .flatMapGroupsWithState(
                        new Running<K>(sums),
                        OutputMode.Append(),
                        Encoders.LONG(),
                        Encoders.row(schema),
                        GroupStateTimeout.NoTimeout());
    }

    private static final class Running<K> implements FlatMapGroupsWithStateFunction<K, Row, Long, Row> {
        private final boolean sums;

        Running(boolean sums) {
            this.sums = sums;
        }

        @Override
        public Iterator<Row> call(K key, Iterator<Row> rows, GroupState<Long> state) {
            long[] so = {state.exists() ? state.get() : 0};
            java.util.ArrayList<Row> found = new java.util.ArrayList<>();
            while (rows.hasNext()) {
                Row row = rows.next();
                so[0] += sums ? row.getLong(3) : 1;
                Object[] cells = new Object[row.length() + 1];
                for (int i = 0; i < row.length(); i++) {
                    cells[i] = row.get(i);
                }
                cells[row.length()] = so[0];
                found.add(RowFactory.create(cells));
            }
            state.update(so[0]);
            return found.iterator();
        }
    }

    // --- windows

    private static Dataset<Row> windows(Dataset<Row> numbers, Notes.Plan input) {
        return numbers.mapPartitions(new Input(input), Encoders.row(longs("page", "value", "at")))
                .withColumn("at", timestamp_millis(col("at")))
                .withWatermark("at", "0 seconds")
                .groupBy(window(col("at"), "1 second"), col("page"))
                .agg(sum("value").as("sum"))
                .select(col("page"), unix_millis(col("window.end")).as("end"), col("sum"));
    }

    /** Makes the row, and counts it. */
    private static final class Input implements MapPartitionsFunction<Row, Row> {
        private final Notes.Plan plan;

        Input(Notes.Plan plan) {
            this.plan = plan;
        }

        @Override
        public Iterator<Row> call(Iterator<Row> rows) {
            Notes notes = new Notes(plan, org.apache.spark.TaskContext.getPartitionId());
            return new Iterator<Row>() {
                @Override
                public boolean hasNext() {
                    boolean more = rows.hasNext();
                    if (!more) {
                        closed(notes);
                    }
                    return more;
                }

                @Override
                public Row next() {
                    Row row = rows.next();
                    long number = row.getLong(0);
                    noted(notes, number);
                    return RowFactory.create(key(number, 1), number, row.getLong(1));
                }
            };
        }
    }

    private static void noted(Notes notes, long number) {
        try {
            notes.number(number);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void closed(Notes notes) {
        try {
            notes.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    // --- the sink

    /** Notes rows and drops them. Column 1 of windows is when they are due; that of other rows, or column 3, a number. */
    private static final class Noted extends ForeachWriter<Row> {
        private final Notes.Plan plan;
        private final boolean windows;
        private transient Notes notes;

        Noted(Notes.Plan plan, boolean windows) {
            this.plan = plan;
            this.windows = windows;
        }

        @Override
        public boolean open(long partition, long batch) {
            notes = new Notes(plan, (int) partition);
            return true;
        }

        @Override
        public void process(Row row) {
            try {
                if (windows) {
                    notes.due(row.getLong(1));
                } else {
                    notes.number(row.getLong(row.length() == 3 ? 1 : 3));
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void close(Throwable error) {
            closed(notes);
        }
    }
}
