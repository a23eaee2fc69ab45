package baselines.spark;

import baselines.Notes;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Row numbers without end, as columns "number" and "at": partition s of p of a batch has those that are s modulo p.
 *
 * <p>At a steady rate number i is due at origin + i * width / rate, and a batch has all that has become due since the
 * one before; "at" is the due time in milliseconds since the origin. At unlimited rate (0) a batch has "batch" numbers,
 * and "at" is i / 100.
 */
public final class Numbers implements TableProvider {
    static final StructType SCHEMA =
            new StructType().add("number", DataTypes.LongType, false).add("at", DataTypes.LongType, false);
    private static final long ROWS_PER_MS = 100;

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return SCHEMA;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new NumbersTable();
    }

    private static final class NumbersTable implements Table, SupportsRead {
        @Override
        public String name() {
            return "numbers";
        }

        @Override
        public StructType schema() {
            return SCHEMA;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return () -> new NumbersScan(options);
        }
    }

    private static final class NumbersScan implements Scan {
        private final CaseInsensitiveStringMap options;

        NumbersScan(CaseInsensitiveStringMap options) {
            this.options = options;
        }

        @Override
        public StructType readSchema() {
            return SCHEMA;
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpoints) {
            return new Stream(options);
        }
    }

    private static final class Position extends Offset {
        private final long next;

        Position(long next) {
            this.next = next;
        }

        @Override
        public String json() {
            return Long.toString(next);
        }
    }

    private static final class Stream implements MicroBatchStream, SupportsAdmissionControl {
        private final double rate;
        private final int width;
        private final long originMs;
        private final int partitions;
        private final long batch;

        Stream(CaseInsensitiveStringMap options) {
            rate = options.getDouble("rate", 0);
            width = options.getInt("width", 1);
            originMs = options.getLong("origin", 0);
            partitions = options.getInt("partitions", 1);
            batch = options.getLong("batch", 0);
        }

        @Override
        public Offset initialOffset() {
            return new Position(0);
        }

        @Override
        public Offset latestOffset() {
            throw new UnsupportedOperationException("a batch begins somewhere");
        }

        @Override
        public Offset latestOffset(Offset start, ReadLimit limit) {
            long first = ((Position) start).next;
            if (rate <= 0) {
                return new Position(first + batch);
            }
            double sinceMs = System.currentTimeMillis() - originMs;
            long due = sinceMs < 0 ? 0 : (long) (sinceMs / Notes.dueMs(1, rate, width)) + 1;
            return new Position(Math.max(first, due));
        }

        @Override
        public Offset deserializeOffset(String json) {
            return new Position(Long.parseLong(json));
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            InputPartition[] found = new InputPartition[partitions];
            for (int i = 0; i < partitions; i++) {
                found[i] = new Part(((Position) start).next, ((Position) end).next, i, partitions, rate, width);
            }
            return found;
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Factory();
        }

        @Override
        public void commit(Offset end) {}

        @Override
        public void stop() {}
    }

    private static final class Factory implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition part) {
            return new Reader((Part) part);
        }
    }

    private static final class Part implements InputPartition {
        final long begin;
        final long end;
        final int index;
        final int step;
        final double rate;
        final int width;

        Part(long begin, long end, int index, int step, double rate, int width) {
            this.begin = begin;
            this.end = end;
            this.index = index;
            this.step = step;
            this.rate = rate;
            this.width = width;
        }
    }

    private static final class Reader implements PartitionReader<InternalRow> {
        private final Part part;
        private long number;

        Reader(Part part) {
            this.part = part;
            long first = part.begin + Math.floorMod(part.index - part.begin, (long) part.step);
            this.number = first - part.step;
        }

        @Override
        public boolean next() {
            number += part.step;
            return number < part.end;
        }

        @Override
        public InternalRow get() {
            long at = part.rate > 0 ? (long) Notes.dueMs(number, part.rate, part.width) : number / ROWS_PER_MS;
            return new GenericInternalRow(new Object[] {number, at});
        }

        @Override
        public void close() {}
    }
}
