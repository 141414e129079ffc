package contenders;

import com.lmax.disruptor.BatchEventProcessor;
import com.lmax.disruptor.BatchEventProcessorBuilder;
import com.lmax.disruptor.EventHandler;
import com.lmax.disruptor.LiteBlockingWaitStrategy;
import com.lmax.disruptor.RingBuffer;
import com.lmax.disruptor.Sequence;

/**
 * LMAX Disruptor in its usual design: one multi-producer ring per drain thread, as large as the
 * thread's partitions together, with one batch processor that groups by class and dispatches. Its
 * blocking wait strategy signals only if a thread waits; the plain strategy takes a lock for each
 * item and was slower in every run.
 */
final class DisruptorPerThread implements Contender {
    /**
     * Slots are released to the producers after this many events, and not only at the end of a
     * batch, which may be as long as the ring. (A maximum batch size would have the same effect,
     * but each batch scans all published events, which is quadratic with large rings.)
     */
    private static final int RELEASE_AFTER = 2048;

    private final RingBuffer<Slot>[] rings;
    private final BatchEventProcessor<Slot>[] processors;
    private final Thread[] threads;
    private final int partitions;

    @SuppressWarnings({"unchecked", "rawtypes"})
    DisruptorPerThread(Workload workload, Metric[] metrics, Tally tally) {
        partitions = workload.partitions;
        rings = new RingBuffer[workload.drainThreads];
        processors = new BatchEventProcessor[rings.length];
        threads = new Thread[rings.length];
        int ringSize = Slot.ringSize(workload.bufferSize * partitions / rings.length);
        for (int index = 0; index < rings.length; index++) {
            RingBuffer<Slot> ring =
                    RingBuffer.createMultiProducer(
                            Slot::new, ringSize, new LiteBlockingWaitStrategy());
            EventHandler<Slot> grouping = new Grouping(new BatchByType(metrics, tally));
            processors[index] = new BatchEventProcessorBuilder()
                    .build(ring, ring.newBarrier(), grouping);
            ring.addGatingSequences(processors[index].getSequence());
            rings[index] = ring;
            threads[index] = new Thread(processors[index]);
            threads[index].start();
        }
    }

    private static final class Grouping implements EventHandler<Slot> {
        private final BatchByType batch;
        private Sequence handled;
        private int sinceRelease;

        Grouping(BatchByType batch) {
            this.batch = batch;
        }

        @Override
        public void setSequenceCallback(Sequence sequence) {
            handled = sequence;
        }

        @Override
        public void onEvent(Slot slot, long sequence, boolean endOfBatch) {
            batch.add(slot.metric);
            if (++sinceRelease == RELEASE_AFTER || endOfBatch) {
                batch.dispatch();
                handled.set(sequence);
                sinceRelease = 0;
            }
        }
    }

    @Override
    public void produce(Metric metric) {
        RingBuffer<Slot> ring = rings[metric.kind % partitions % rings.length];
        long sequence = ring.next();
        ring.get(sequence).metric = metric;
        ring.publish(sequence);
    }

    @Override
    public void stop() throws InterruptedException {
        for (BatchEventProcessor<Slot> processor : processors) {
            processor.halt();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
