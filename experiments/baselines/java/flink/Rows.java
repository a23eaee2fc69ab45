package baselines.flink;

import baselines.Notes;
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * Row numbers without end: subtask s of p has s, s + p, s + 2p, ...
 *
 * <p>At a steady rate number i is due at origin + i * width / rate, a schedule that waits for nobody: after a failure a
 * subtask finds all that has become due meanwhile. The record's timestamp is the due time in milliseconds since the
 * origin; at unlimited rate it is i / ROWS_PER_MS.
 */
public final class Rows implements Source<Long, Rows.Share, List<Rows.Share>> {
    static final long ROWS_PER_MS = 100;
    private static final long LOOK_AGAIN_MS = 2;

    private final double rate;
    private final int width;
    private final long originMs;

    /** @param rate rows of the job per second over all subtasks, 0: unlimited; width: of which a number becomes so many */
    public Rows(double rate, int width, long originMs) {
        this.rate = rate;
        this.width = width;
        this.originMs = originMs;
    }

    /** What one subtask reads, and where it is. */
    public static final class Share implements SourceSplit, Serializable {
        final int first;
        final int step;
        long read;

        Share(int first, int step, long read) {
            this.first = first;
            this.step = step;
            this.read = read;
        }

        @Override
        public String splitId() {
            return Integer.toString(first);
        }
    }

    private static final int SHARE_BYTES = 16;

    private static void put(ByteBuffer to, Share share) {
        to.putInt(share.first).putInt(share.step).putLong(share.read);
    }

    private static Share take(ByteBuffer from) {
        return new Share(from.getInt(), from.getInt(), from.getLong());
    }

    private static final class ShareFormat implements SimpleVersionedSerializer<Share> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(Share share) {
            ByteBuffer bytes = ByteBuffer.allocate(SHARE_BYTES);
            put(bytes, share);
            return bytes.array();
        }

        @Override
        public Share deserialize(int version, byte[] bytes) {
            return take(ByteBuffer.wrap(bytes));
        }
    }

    private static final class SharesFormat implements SimpleVersionedSerializer<List<Share>> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(List<Share> shares) {
            ByteBuffer bytes = ByteBuffer.allocate(SHARE_BYTES * shares.size());
            shares.forEach(share -> put(bytes, share));
            return bytes.array();
        }

        @Override
        public List<Share> deserialize(int version, byte[] content) {
            ByteBuffer bytes = ByteBuffer.wrap(content);
            List<Share> shares = new ArrayList<>();
            while (bytes.hasRemaining()) {
                shares.add(take(bytes));
            }
            return shares;
        }
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SimpleVersionedSerializer<Share> getSplitSerializer() {
        return new ShareFormat();
    }

    @Override
    public SimpleVersionedSerializer<List<Share>> getEnumeratorCheckpointSerializer() {
        return new SharesFormat();
    }

    @Override
    public SplitEnumerator<Share, List<Share>> createEnumerator(SplitEnumeratorContext<Share> context) {
        List<Share> all = new ArrayList<>();
        for (int i = 0; i < context.currentParallelism(); i++) {
            all.add(new Share(i, context.currentParallelism(), 0));
        }
        return new Dealer(context, all);
    }

    @Override
    public SplitEnumerator<Share, List<Share>> restoreEnumerator(
            SplitEnumeratorContext<Share> context, List<Share> left) {
        return new Dealer(context, left);
    }

    @Override
    public SourceReader<Long, Share> createReader(SourceReaderContext context) {
        return new Reader(rate, width, originMs);
    }

    /** Gives each subtask its share; its state is the shares that no subtask has. */
    private static final class Dealer implements SplitEnumerator<Share, List<Share>> {
        private final SplitEnumeratorContext<Share> context;
        private final TreeMap<Integer, Share> undealt = new TreeMap<>();

        Dealer(SplitEnumeratorContext<Share> context, List<Share> undealt) {
            this.context = context;
            undealt.forEach(share -> this.undealt.put(share.first, share));
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {}

        @Override
        public void addSplitsBack(List<Share> shares, int subtask) {
            shares.forEach(share -> undealt.put(share.first, share));
            if (context.registeredReaders().containsKey(subtask)) {
                addReader(subtask);
            }
        }

        @Override
        public void addReader(int subtask) {
            Share share = undealt.remove(subtask);
            if (share != null) {
                context.assignSplit(share, subtask);
            }
        }

        @Override
        public List<Share> snapshotState(long checkpoint) {
            return new ArrayList<>(undealt.values());
        }

        @Override
        public void close() {}
    }

    private static final class Reader implements SourceReader<Long, Share> {
        private final double rate;
        private final int width;
        private final long originMs;
        private final CompletableFuture<Void> dealt = new CompletableFuture<>();
        private ScheduledExecutorService clock;
        private Share share;
        private double nowMs = -1;

        Reader(double rate, int width, long originMs) {
            this.rate = rate;
            this.width = width;
            this.originMs = originMs;
        }

        @Override
        public void start() {
            clock = Executors.newSingleThreadScheduledExecutor(
                    work -> {
                        Thread thread = new Thread(work, "rows-clock");
                        thread.setDaemon(true);
                        return thread;
                    });
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Long> out) {
            if (share == null) {
                return InputStatus.NOTHING_AVAILABLE;
            }
            long number = share.first + share.read * share.step;
            long timestamp = number / ROWS_PER_MS;
            if (rate > 0) {
                double due = Notes.dueMs(number, rate, width);
                if (due > nowMs) {
                    nowMs = System.currentTimeMillis() - originMs;
                    if (due > nowMs) {
                        return InputStatus.NOTHING_AVAILABLE;
                    }
                }
                timestamp = (long) due;
            }
            out.collect(number, timestamp);
            share.read++;
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            if (share == null) {
                return dealt;
            }
            CompletableFuture<Void> soon = new CompletableFuture<>();
            clock.schedule(() -> soon.complete(null), LOOK_AGAIN_MS, TimeUnit.MILLISECONDS);
            return soon;
        }

        @Override
        public void addSplits(List<Share> shares) {
            share = shares.get(0);
            dealt.complete(null);
        }

        @Override
        public List<Share> snapshotState(long checkpoint) {
            return share == null ? List.of() : List.of(new Share(share.first, share.step, share.read));
        }

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() throws IOException {
            if (clock != null) {
                clock.shutdownNow();
            }
        }
    }
}
