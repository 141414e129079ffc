package contenders;

import java.util.List;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.locks.LockSupport;

/** What the handlers count: the counterpart of rust/src/tally.rs. */
final class Tally {
    /** Each type's count occupies two cache lines. */
    private static final int STRIDE = 16;

    /** Written by the one thread inside the type's handler. */
    private final AtomicLongArray handled;

    private final AtomicIntegerArray marks;
    private final int types;
    private volatile String fault;

    Tally(int types, int checkedItems) {
        this.types = types;
        this.handled = new AtomicLongArray((types + 1) * STRIDE);
        this.marks = new AtomicIntegerArray(checkedItems);
    }

    /** The handler of a type: a no-op that counts once per batch. */
    Handler handler(int kind) {
        return marks.length() == 0 ? new NoOp(kind) : new Marking(kind);
    }

    private void add(int kind, int count) {
        int index = (kind + 1) * STRIDE;
        handled.setRelease(index, handled.getPlain(index) + count);
    }

    private final class NoOp implements Handler {
        private final int kind;
        /** Prevents the read of the batch from being optimised away. */
        private long last;

        NoOp(int kind) {
            this.kind = kind;
        }

        @Override
        public void consume(List<Metric> batch) {
            last = batch.get(batch.size() - 1).value;
            add(kind, batch.size());
        }
    }

    private final class Marking implements Handler {
        private final int kind;

        Marking(int kind) {
            this.kind = kind;
        }

        @Override
        public void consume(List<Metric> batch) {
            for (Metric metric : batch) {
                if (metric.kind != kind) {
                    fault = "an item reached another type's handler";
                }
                if (marks.getAndIncrement((int) metric.value) != 0) {
                    fault = "item " + metric.value + " was handled twice";
                }
            }
            add(kind, batch.size());
        }
    }

    /** Waits until the expected number of items of each type has been handled. */
    void waitFor(long[] expected) {
        for (int kind = 0; kind < types; kind++) {
            while (handled.getAcquire((kind + 1) * STRIDE) < expected[kind]) {
                if (fault != null) {
                    throw new IllegalStateException(fault);
                }
                LockSupport.parkNanos(200_000);
            }
        }
    }

    /**
     * Throws unless exactly the expected items were handled. Must be called after the drain threads
     * have ended.
     */
    void verify(long[] expected) {
        for (int kind = 0; kind < types; kind++) {
            long count = handled.get((kind + 1) * STRIDE);
            if (count != expected[kind]) {
                String counts = count + " items handled, " + expected[kind] + " produced";
                fault = "type " + kind + ": " + counts;
            }
        }
        for (int item = 0; item < marks.length(); item++) {
            if (marks.get(item) != 1) {
                fault = "item " + item + " was not handled exactly once";
            }
        }
        if (fault != null) {
            throw new IllegalStateException(fault);
        }
    }
}
