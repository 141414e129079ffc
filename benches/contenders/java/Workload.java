package contenders;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** The workloads and every contender's configuration: the counterpart of rust/src/workload.rs. */
final class Workload {
    final String name;
    final int drainThreads;
    final int producers;
    final int bufferSize;
    final int items;
    final int types;
    final int partitions;
    /** The types in the order of production, one slot per unit of weight. */
    final int[] slots;

    private Workload(
            String name,
            int drainThreads,
            int producers,
            int bufferSize,
            int items,
            int[][] tiers) {
        this.name = name;
        this.drainThreads = drainThreads;
        this.producers = producers;
        this.bufferSize = bufferSize;
        this.items = items;
        List<Integer> ordered = new ArrayList<>();
        int kind = 0;
        for (int[] tier : tiers) {
            for (int type = 0; type < tier[0]; type++, kind++) {
                ordered.addAll(Collections.nCopies(tier[1], kind));
            }
        }
        this.types = kind;
        int threshold = drainThreads * 25; // adaptive
        this.partitions = types <= threshold ? types : threshold + (types - threshold) / 2;
        this.slots = shuffled(ordered);
    }

    static Workload named(String name) {
        return switch (name) {
            case "headline" ->
                new Workload(
                        name,
                        4,
                        16,
                        2_000,
                        16_000_000,
                        new int[][] {{20, 24}, {30, 8}, {20, 4}, {30, 1}});
            case "wide" -> new Workload(name, 8, 32, 50_000, 32_000_000, new int[][] {{1_000, 1}});
            case "wide-10k" ->
                new Workload(name, 8, 32, 50_000, 32_000_000, new int[][] {{10_000, 1}});
            default -> throw new IllegalArgumentException("unknown workload " + name);
        };
    }

    int firstSlot(int producer) {
        return (int) ((long) producer * slots.length / producers);
    }

    /** The number of items of each type in a round. */
    long[] expected(int itemsPerRound) {
        long[] expected = new long[types];
        int each = itemsPerRound / producers;
        for (int producer = 0; producer < producers; producer++) {
            for (int step = 0; step < slots.length; step++) {
                int times = each / slots.length + (step < each % slots.length ? 1 : 0);
                expected[slots[(firstSlot(producer) + step) % slots.length]] += times;
            }
        }
        return expected;
    }

    /** Shuffles with a fixed linear congruential generator (Knuth, MMIX). */
    private static int[] shuffled(List<Integer> slots) {
        long state = 42;
        for (int last = slots.size() - 1; last > 0; last--) {
            state = state * 6_364_136_223_846_793_005L + 1_442_695_040_888_963_407L;
            Collections.swap(slots, last, (int) ((state >>> 33) % (last + 1)));
        }
        return slots.stream().mapToInt(Integer::intValue).toArray();
    }
}
