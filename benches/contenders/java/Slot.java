package contenders;

/** An entry of a Disruptor ring. */
final class Slot {
    Metric metric;

    /** The smallest power of two that is at least {@code capacity}, as rings require. */
    static int ringSize(int capacity) {
        return capacity == 1 ? 1 : Integer.highestOneBit(capacity - 1) << 1;
    }
}
