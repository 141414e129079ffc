package contenders;

/** What a ring of the Disruptor is made of. */
final class Slot {
    Metric metric;

    /** The lowest power of two that is not below {@code capacity}, as rings are sized. */
    static int ringSize(int capacity) {
        return capacity == 1 ? 1 : Integer.highestOneBit(capacity - 1) << 1;
    }
}
