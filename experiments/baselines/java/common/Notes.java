package baselines;

import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.TreeMap;

/**
 * What a partition puts out, and when: lines of "TIME BORN ROWS LATE:COUNT ...", as experiments/baselines/notes.py has
 * them. Raises when ordered to. For Spark a batch of a partition is an incarnation. The file beside the lines, ".pid", says which
 * process had the last one.
 */
public final class Notes implements AutoCloseable {
    /** What notes are made with: where, under which name, and when rows are due (rate 0: nothing is due). */
    public static final class Plan implements Serializable {
        final String directory;
        final String name;
        final double rate;
        final int width;
        final long originMs;

        public Plan(String directory, String name, double rate, int width, long originMs) {
            this.directory = directory;
            this.name = name;
            this.rate = rate;
            this.width = width;
            this.originMs = originMs;
        }
    }

    private static final long PERIOD_MS = 5;
    private static final long IDLE_PERIOD_MS = 50;
    private static final int LOOK_AT_CLOCK = 64;

    private final Plan plan;
    private final int index;
    private final long periodMs;
    private final Map<Long, long[]> late = new TreeMap<>();
    private FileChannel file;
    private long bornMs;
    private long writtenMs;
    private long nowMs;
    private long rows;

    public Notes(Plan plan, int index) {
        this.plan = plan;
        this.index = index;
        this.periodMs = plan.rate > 0 ? PERIOD_MS : IDLE_PERIOD_MS;
    }

    /** When a number is due, in milliseconds since the origin. */
    public static double dueMs(long number, double rate, int width) {
        return number * (1e3 * width / rate);
    }

    /** A row with this number is put out. */
    public void number(long number) throws IOException {
        due(plan.rate > 0 ? (long) dueMs(number, plan.rate, plan.width) : 0);
    }

    /** A row that is due at this time, in milliseconds since the origin, is put out. */
    public void due(long dueMs) throws IOException {
        if (plan.rate > 0 || rows % LOOK_AT_CLOCK == 0) {
            nowMs = System.currentTimeMillis();
        }
        if (file == null) {
            open();
        }
        rows++;
        if (plan.rate > 0) {
            late.computeIfAbsent(nowMs - plan.originMs - dueMs, at -> new long[1])[0]++;
        }
        if (nowMs >= writtenMs + periodMs) {
            write();
            raiseIfOrdered();
        }
    }

    private void open() throws IOException {
        Path path = Paths.get(plan.directory, plan.name + "-" + index + ".out");
        file = FileChannel.open(
                path, StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
        bornMs = nowMs;
        Path place = Paths.get(plan.directory, plan.name + "-" + index + ".pid");
        Files.writeString(place, Long.toString(ProcessHandle.current().pid()));
    }

    private void write() throws IOException {
        StringBuilder line = new StringBuilder().append(nowMs).append(' ').append(bornMs).append(' ').append(rows);
        late.forEach((at, count) -> line.append(' ').append(at).append(':').append(count[0]));
        late.clear();
        file.write(ByteBuffer.wrap(line.append('\n').toString().getBytes(StandardCharsets.US_ASCII)));
        writtenMs = nowMs;
    }

    private void raiseIfOrdered() throws IOException {
        Path armed = Paths.get(plan.directory, "orders", index + ".armed");
        if (plan.rate <= 0 || !Files.exists(armed)) {
            return;
        }
        Path raised = armed.resolveSibling(index + ".raised");
        try {
            Files.move(armed, raised);
        } catch (NoSuchFileException error) {
            return;
        }
        Files.writeString(raised, Double.toString(System.currentTimeMillis() / 1e3));
        throw new IllegalStateException("partition " + index + " was ordered to fail");
    }

    @Override
    public void close() throws IOException {
        if (file != null) {
            write();
            file.close();
            file = null;
        }
    }
}
