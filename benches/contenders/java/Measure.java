package contenders;

import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CyclicBarrier;

/** The clock: from the first produce to the last handled item, as in rust/src/measure.rs. */
final class Measure {
    private final String name;
    private final Workload workload;
    private final int items;
    private final Metric[] metrics;
    private final Contender contender;
    private final Tally tally;
    private final long[] perRound;
    private final long[] expected;

    Measure(
            String name,
            Workload workload,
            int items,
            Metric[] metrics,
            Contender contender,
            Tally tally) {
        this.name = name;
        this.workload = workload;
        this.items = items;
        this.metrics = metrics;
        this.contender = contender;
        this.tally = tally;
        this.perRound = workload.expected(items);
        this.expected = new long[workload.types];
    }

    void check() throws Exception {
        round(true);
        contender.stop();
        tally.verify(expected);
        System.out.println(
                name + " " + workload.name + ": " + items + " items, each handled exactly once");
    }

    void measure(int warmUpSeconds, int rounds, boolean newItems) throws Exception {
        long start = System.nanoTime();
        while (System.nanoTime() - start < warmUpSeconds * 1_000_000_000L) {
            round(newItems);
        }
        for (int round = 0; round < rounds; round++) {
            double seconds = round(newItems);
            System.out.printf(
                    Locale.ROOT,
                    "{\"workload\": \"%s\", \"contender\": \"%s\", \"round\": %d, \"items\": %d, "
                            + "\"seconds\": %.6f, \"items_per_second\": %.0f}%n",
                    workload.name, name, round, items, seconds, items / seconds);
        }
        contender.stop();
        tally.verify(expected);
    }

    private double round(boolean newItems) throws Exception {
        for (int kind = 0; kind < expected.length; kind++) {
            expected[kind] += perRound[kind];
        }
        CyclicBarrier startLine = new CyclicBarrier(workload.producers);
        Thread[] producers = new Thread[workload.producers];
        // Each producer reads the clock itself: this thread may be scheduled much later.
        long[] began = new long[workload.producers];
        for (int producer = 0; producer < producers.length; producer++) {
            int index = producer;
            producers[producer] = new Thread(() -> {
                try {
                    startLine.await();
                    began[index] = System.nanoTime();
                    if (newItems) {
                        produceNew(index);
                    } else {
                        produceReused(index);
                    }
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            });
            producers[producer].start();
        }
        for (Thread producer : producers) {
            producer.join();
        }
        tally.waitFor(expected);
        long end = System.nanoTime();
        return Arrays.stream(began).map(first -> end - first).max().getAsLong() / 1e9;
    }

    /** Produces the same item of each type repeatedly: no allocation, and all stay in the cache. */
    private void produceReused(int producer) throws InterruptedException {
        int[] slots = workload.slots;
        int slot = workload.firstSlot(producer);
        for (int item = items / workload.producers; item > 0; item--) {
            contender.produce(metrics[slots[slot]]);
            slot = slot + 1 == slots.length ? 0 : slot + 1;
        }
    }

    /** Produces a new item each time, with its number in the round. */
    private void produceNew(int producer) throws InterruptedException {
        int[] slots = workload.slots;
        int slot = workload.firstSlot(producer);
        int each = items / workload.producers;
        for (int item = producer * each; item < (producer + 1) * each; item++) {
            contender.produce(metrics[slots[slot]].fresh(item));
            slot = slot + 1 == slots.length ? 0 : slot + 1;
        }
    }
}
