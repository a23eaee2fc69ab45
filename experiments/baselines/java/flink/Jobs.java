package baselines.flink;

import baselines.Notes;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.api.java.tuple.Tuple6;
import org.apache.flink.api.java.tuple.Tuple7;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * The jobs of experiments/baselines/jobs.py for Flink: --job, --notes DIR, --rate (0: unlimited), --origin MS, --text
 * FILE, --parallelism N, --conf KEY=VALUE; in a cluster inside of this process, or sent to the one whose REST server is
 * at --port, with the classes in --jar.
 */
public final class Jobs {
    private static final long[] FACTORS = {48_271, 16_807, 69_621};
    private static final long[] KEYS = {50_021, 10_007, 251};
    private static final int WORDS_PER_LINE = 10;
    private static final long WINDOW_MS = 1_000;

    private Jobs() {}

    private static long key(long number, int at) {
        return number * FACTORS[at] % KEYS[at];
    }

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
        StreamExecutionEnvironment env = given.containsKey("--port")
                ? StreamExecutionEnvironment.createRemoteEnvironment(
                        "127.0.0.1", Integer.parseInt(given.get("--port")), conf, given.get("--jar"))
                : StreamExecutionEnvironment.createLocalEnvironment(parallelism, conf);
        env.setParallelism(parallelism);
        draw(env, given);
        env.execute("baselines");
    }

    private static void draw(StreamExecutionEnvironment env, Map<String, String> given) {
        String job = given.get("--job");
        double rate = Double.parseDouble(given.get("--rate"));
        long originMs = Long.parseLong(given.get("--origin"));
        int width = job.equals("wordcount") ? WORDS_PER_LINE : 1;
        WatermarkStrategy<Long> watermarks = job.equals("window")
                ? WatermarkStrategy.forMonotonousTimestamps()
                : WatermarkStrategy.noWatermarks();
        DataStream<Long> numbers = env.fromSource(new Rows(rate, width, originMs), watermarks, "numbers", Types.LONG);
        Notes.Plan noted = new Notes.Plan(given.get("--notes"), "noted", rate, width, originMs);
        if (job.equals("wordcount")) {
            wordCount(numbers, given.get("--text"), noted);
        } else if (job.equals("three-sums")) {
            threeSums(numbers, noted);
        } else {
            window(numbers, noted, new Notes.Plan(given.get("--notes"), "input", 0, width, originMs));
        }
    }

    // --- words

    private static void wordCount(DataStream<Long> numbers, String text, Notes.Plan noted) {
        numbers.flatMap(new Words(text))
                .returns(Types.TUPLE(Types.STRING, Types.LONG))
                .name("words")
                .keyBy(word -> word.f0, Types.STRING)
                .process(new Count())
                .returns(Types.TUPLE(Types.STRING, Types.LONG, Types.LONG))
                .name("count")
                .sinkTo(new Noted<>(noted, 1));
    }

    private static final class Words extends RichFlatMapFunction<Long, Tuple2<String, Long>> {
        private final String text;
        private transient List<String> lines;

        Words(String text) {
            this.text = text;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            lines = Files.readAllLines(Paths.get(text));
        }

        @Override
        public void flatMap(Long number, Collector<Tuple2<String, Long>> out) {
            String line = lines.get((int) (number % lines.size()));
            int begin = 0;
            while (begin < line.length()) {
                int end = line.indexOf(' ', begin);
                end = end < 0 ? line.length() : end;
                out.collect(Tuple2.of(line.substring(begin, end), number));
                begin = end + 1;
            }
        }
    }

    private static final class Count
            extends KeyedProcessFunction<String, Tuple2<String, Long>, Tuple3<String, Long, Long>> {
        private transient ValueState<Long> counted;

        @Override
        public void open(OpenContext context) {
            counted = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<String, Long> word, Context context, Collector<Tuple3<String, Long, Long>> out)
                throws IOException {
            Long before = counted.value();
            long count = before == null ? 1 : before + 1;
            counted.update(count);
            out.collect(Tuple3.of(word.f0, word.f1, count));
        }
    }

    // --- sums

    private static void threeSums(DataStream<Long> numbers, Notes.Plan noted) {
        numbers.map(n -> Tuple4.of(key(n, 0), key(n, 1), key(n, 2), n))
                .returns(longs(4))
                .keyBy(row -> row.f0, Types.LONG)
                .process(new ByUser())
                .returns(longs(5))
                .keyBy(row -> row.f1, Types.LONG)
                .process(new ByPage())
                .returns(longs(6))
                .keyBy(row -> row.f2, Types.LONG)
                .process(new ByCountry())
                .returns(longs(7))
                .sinkTo(new Noted<>(noted, 3));
    }

    private static <T> TypeInformation<T> longs(int columns) {
        TypeInformation<?>[] types = new TypeInformation<?>[columns];
        java.util.Arrays.fill(types, Types.LONG);
        @SuppressWarnings("unchecked")
        TypeInformation<T> tuple = (TypeInformation<T>) Types.TUPLE(types);
        return tuple;
    }

    private abstract static class Sum<I, O> extends KeyedProcessFunction<Long, I, O> {
        private transient ValueState<Long> summed;

        @Override
        public void open(OpenContext context) {
            summed = getRuntimeContext().getState(new ValueStateDescriptor<>("sum", Types.LONG));
        }

        long add(long value) throws IOException {
            Long before = summed.value();
            long sum = before == null ? value : before + value;
            summed.update(sum);
            return sum;
        }
    }

    private static final class ByUser
            extends Sum<Tuple4<Long, Long, Long, Long>, Tuple5<Long, Long, Long, Long, Long>> {
        @Override
        public void processElement(
                Tuple4<Long, Long, Long, Long> in, Context context, Collector<Tuple5<Long, Long, Long, Long, Long>> out)
                throws IOException {
            out.collect(Tuple5.of(in.f0, in.f1, in.f2, in.f3, add(in.f3)));
        }
    }

    private static final class ByPage
            extends Sum<Tuple5<Long, Long, Long, Long, Long>, Tuple6<Long, Long, Long, Long, Long, Long>> {
        @Override
        public void processElement(
                Tuple5<Long, Long, Long, Long, Long> in,
                Context context,
                Collector<Tuple6<Long, Long, Long, Long, Long, Long>> out)
                throws IOException {
            out.collect(Tuple6.of(in.f0, in.f1, in.f2, in.f3, in.f4, add(in.f3)));
        }
    }

    private static final class ByCountry
            extends Sum<Tuple6<Long, Long, Long, Long, Long, Long>, Tuple7<Long, Long, Long, Long, Long, Long, Long>> {
        @Override
        public void processElement(
                Tuple6<Long, Long, Long, Long, Long, Long> in,
                Context context,
                Collector<Tuple7<Long, Long, Long, Long, Long, Long, Long>> out)
                throws IOException {
            out.collect(Tuple7.of(in.f0, in.f1, in.f2, in.f3, in.f4, in.f5, add(in.f3)));
        }
    }

    // --- windows

    private static void window(DataStream<Long> numbers, Notes.Plan noted, Notes.Plan input) {
        numbers.map(new Input(input))
                .returns(longs(4))
                .keyBy(row -> row.f1, Types.LONG)
                .window(TumblingEventTimeWindows.of(java.time.Duration.ofMillis(WINDOW_MS)))
                .aggregate(new SumOfValues(), new End(), Types.LONG, Types.LONG, longs(3))
                .sinkTo(new Noted<>(noted, -1));
    }

    /** Makes the row, and counts it. */
    private static final class Input extends RichMapFunction<Long, Tuple4<Long, Long, Long, Long>> {
        private final Notes.Plan plan;
        private transient Notes notes;

        Input(Notes.Plan plan) {
            this.plan = plan;
        }

        @Override
        public void open(OpenContext context) {
            notes = new Notes(plan, getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
        }

        @Override
        public Tuple4<Long, Long, Long, Long> map(Long number) throws IOException {
            notes.number(number);
            return Tuple4.of(key(number, 0), key(number, 1), key(number, 2), number);
        }

        @Override
        public void close() throws IOException {
            if (notes != null) {
                notes.close();
            }
        }
    }

    private static final class SumOfValues implements AggregateFunction<Tuple4<Long, Long, Long, Long>, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Tuple4<Long, Long, Long, Long> row, Long sum) {
            return sum + row.f3;
        }

        @Override
        public Long getResult(Long sum) {
            return sum;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    private static final class End extends ProcessWindowFunction<Long, Tuple3<Long, Long, Long>, Long, TimeWindow> {
        @Override
        public void process(
                Long page, Context context, Iterable<Long> sums, Collector<Tuple3<Long, Long, Long>> out) {
            out.collect(Tuple3.of(page, context.window().getEnd(), sums.iterator().next()));
        }
    }

    // --- the sink

    /** Notes rows and drops them. "at": the field with the number of the row; -1: field 1 is when it is due. */
    private static final class Noted<T extends org.apache.flink.api.java.tuple.Tuple> implements Sink<T> {
        private final Notes.Plan plan;
        private final int at;

        Noted(Notes.Plan plan, int at) {
            this.plan = plan;
            this.at = at;
        }

        @Override
        public SinkWriter<T> createWriter(WriterInitContext context) {
            Notes notes = new Notes(plan, context.getTaskInfo().getIndexOfThisSubtask());
            return new SinkWriter<T>() {
                @Override
                public void write(T row, Context unused) throws IOException {
                    if (at < 0) {
                        notes.due(row.<Long>getField(1));
                    } else {
                        notes.number(row.<Long>getField(at));
                    }
                }

                @Override
                public void flush(boolean atEnd) {}

                @Override
                public void close() throws Exception {
                    notes.close();
                }
            };
        }
    }
}
