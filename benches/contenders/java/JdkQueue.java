package contenders;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * The plain JDK: one {@link ArrayBlockingQueue} per partition, which {@code produce} selects by the
 * hash of the class. A drain task takes all items of its partitions into one batch, groups it by
 * class and calls each class's handler. It continues until no item is left; then the scheduler runs
 * it again after 1 ms, doubling to 50 ms. As balancing by load requires, {@code produce} counts
 * items per partition, and the drain task checks that it still owns each partition.
 */
final class JdkQueue implements Contender {
    private static final long MIN_IDLE_MS = 1;
    private static final long MAX_IDLE_MS = 50;

    private final ArrayBlockingQueue<Metric>[] partitions;
    /** Items produced, by partition, for a balancer to read. */
    private final AtomicLongArray throughput;
    /** The drain task that may take from a partition. */
    private final AtomicIntegerArray owner;
    /** Completed cycles, by drain task, for a handoff to wait for. */
    private final AtomicLongArray cycles;

    private final int[][] assigned;
    private final int[] idleCycles;
    private final Map<Class<?>, Handler> handlers = new HashMap<>();
    private final ScheduledExecutorService scheduler;
    private volatile boolean running = true;

    @SuppressWarnings({"unchecked", "rawtypes"})
    JdkQueue(Workload workload, Metric[] metrics, Tally tally) {
        int threads = workload.drainThreads;
        partitions = new ArrayBlockingQueue[workload.partitions];
        throughput = new AtomicLongArray(partitions.length);
        owner = new AtomicIntegerArray(partitions.length);
        cycles = new AtomicLongArray(threads);
        idleCycles = new int[threads];
        assigned = new int[threads][];
        for (int thread = 0; thread < threads; thread++) {
            assigned[thread] = new int[(partitions.length - thread + threads - 1) / threads];
        }
        for (int partition = 0; partition < partitions.length; partition++) {
            partitions[partition] = new ArrayBlockingQueue<>(workload.bufferSize);
            owner.set(partition, partition % threads);
            assigned[partition % threads][partition / threads] = partition;
        }
        for (Metric metric : metrics) {
            handlers.put(metric.getClass(), tally.handler(metric.kind));
        }
        scheduler = Executors.newScheduledThreadPool(threads);
        for (int task = 0; task < threads; task++) {
            schedule(task);
        }
    }

    @Override
    public void produce(Metric metric) throws InterruptedException {
        // The selector of the original, by the class of each item, as in batchqueue.
        int partition = (metric.getClass().hashCode() & Integer.MAX_VALUE) % partitions.length;
        throughput.incrementAndGet(partition);
        partitions[partition].put(metric);
    }

    @Override
    public void stop() throws InterruptedException {
        running = false;
        scheduler.shutdownNow();
        scheduler.awaitTermination(10, TimeUnit.SECONDS);
    }

    private void schedule(int task) {
        if (running) {
            long delay = Math.min(MIN_IDLE_MS << Math.min(idleCycles[task], 20), MAX_IDLE_MS);
            scheduler.schedule(() -> drainLoop(task), delay, TimeUnit.MILLISECONDS);
        }
    }

    private void drainLoop(int task) {
        try {
            while (running) {
                List<Metric> combined = new ArrayList<>();
                for (int partition : assigned[task]) {
                    if (owner.get(partition) == task) {
                        partitions[partition].drainTo(combined);
                    }
                }
                if (combined.isEmpty()) {
                    idleCycles[task]++;
                    break;
                }
                idleCycles[task] = 0;
                dispatch(combined);
                cycles.incrementAndGet(task);
            }
        } finally {
            schedule(task);
        }
    }

    private void dispatch(List<Metric> combined) {
        Map<Class<?>, List<Metric>> grouped = new HashMap<>();
        for (Metric metric : combined) {
            grouped.computeIfAbsent(metric.getClass(), type -> new ArrayList<>()).add(metric);
        }
        grouped.forEach((type, batch) -> handlers.get(type).consume(batch));
    }
}
