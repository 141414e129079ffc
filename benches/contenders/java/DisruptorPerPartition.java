package contenders;

import com.lmax.disruptor.EventPoller;
import com.lmax.disruptor.LiteBlockingWaitStrategy;
import com.lmax.disruptor.RingBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;

/**
 * LMAX Disruptor in the design of the other contenders: one multi-producer ring per partition; each
 * drain thread polls the rings of its partitions, groups by class and dispatches. After an empty
 * cycle it sleeps 1 ms, doubling to 50 ms.
 */
final class DisruptorPerPartition implements Contender {
    private static final long MIN_IDLE_NS = 1_000_000;
    private static final long MAX_IDLE_NS = 50_000_000;

    private final RingBuffer<Slot>[] rings;
    private final Thread[] threads;
    private volatile boolean running = true;

    @SuppressWarnings({"unchecked", "rawtypes"})
    DisruptorPerPartition(Workload workload, Metric[] metrics, Tally tally) {
        rings = new RingBuffer[workload.partitions];
        for (int partition = 0; partition < rings.length; partition++) {
            int ringSize = Slot.ringSize(workload.bufferSize);
            rings[partition] =
                    RingBuffer.createMultiProducer(
                            Slot::new, ringSize, new LiteBlockingWaitStrategy());
        }
        threads = new Thread[workload.drainThreads];
        for (int thread = 0; thread < threads.length; thread++) {
            List<EventPoller<Slot>> pollers = new ArrayList<>();
            for (int partition = thread; partition < rings.length; partition += threads.length) {
                EventPoller<Slot> poller = rings[partition].newPoller();
                rings[partition].addGatingSequences(poller.getSequence());
                pollers.add(poller);
            }
            threads[thread] = new Thread(() -> drainLoop(pollers, new BatchByType(metrics, tally)));
            threads[thread].start();
        }
    }

    private void drainLoop(List<EventPoller<Slot>> pollers, BatchByType batch) {
        EventPoller.Handler<Slot> grouping = (slot, sequence, endOfBatch) -> {
            batch.add(slot.metric);
            return true;
        };
        long idle = MIN_IDLE_NS;
        while (running) {
            for (EventPoller<Slot> poller : pollers) {
                try {
                    poller.poll(grouping);
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            }
            if (batch.dispatch()) {
                idle = MIN_IDLE_NS;
            } else {
                LockSupport.parkNanos(idle);
                idle = Math.min(idle * 2, MAX_IDLE_NS);
            }
        }
    }

    @Override
    public void produce(Metric metric) {
        RingBuffer<Slot> ring = rings[metric.kind % rings.length];
        long sequence = ring.next();
        ring.get(sequence).metric = metric;
        ring.publish(sequence);
    }

    @Override
    public void stop() throws InterruptedException {
        running = false;
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
