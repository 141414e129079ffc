//! Close and growth under loom.

use loom::thread;

use crate::config::{Config, PartitionPolicy};
use crate::flow::batch::Batch;
use crate::flow::handler::HandlerRef;
use crate::queue::BatchQueue;
use crate::sync::{Arc, Mutex};
use crate::testing::loom::{Number, ONE, Seen, TWO, config, model, model_by_turns};
use crate::testing::threads::Latch;

/// A close finds more items than the limit of one take (rule 14): a partition is finished only when
/// it is empty.
#[test]
fn loom_close_while_a_take_stops_at_its_budget() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let small = Config { max_batch_items: 1, buffer_size: 2, ..config(1) };
        let queue = BatchQueue::builder("q", small).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(ONE, 2)).unwrap();
        assert_eq!(queue.shutdown(None), 0);
        assert_eq!(seen.numbers(), [1, 2]);
    });
}

/// Shutdown against a producer (rules 13 and 14): what is accepted is handled, the rest is refused.
#[test]
fn loom_close_while_a_producer_puts() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.produce(Number(ONE, 1)).is_ok())
        };
        queue.shutdown(None);
        // Before the join: accepted items are handled when the shutdown returns, whichever threads
        // still run.
        let handled = seen.numbers().len();
        let accepted = producer.join().unwrap();
        assert_eq!(handled, usize::from(accepted));
    });
}

/// As above, but the open segment already holds an item, so the put skips its checks.
#[test]
fn loom_close_while_a_producer_adds_to_a_segment() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.produce(Number(ONE, 2)).is_ok())
        };
        queue.shutdown(None);
        let handled = seen.numbers().len();
        let accepted = producer.join().unwrap();
        assert_eq!(handled, 1 + usize::from(accepted));
    });
}

/// A handler enqueues an item into its own closing queue, into the partition of another thread that
/// is about to end: if accepted, it is handled; if refused, the handler is informed.
#[test]
fn loom_close_while_a_handler_produces() {
    model_by_turns(10, 1, || {
        let (seen, own) =
            (Arc::new(Seen::default()), Arc::new(Mutex::new(None::<Arc<BatchQueue<Number>>>)));
        let accepted = Arc::new(Mutex::new(0));
        let handler = {
            let (seen, own, accepted) = (seen.clone(), own.clone(), accepted.clone());
            HandlerRef::new(move |batch: &mut Batch<Number>| {
                let first = batch.iter().any(|number| number.1 == 1);
                seen.note(batch);
                let queue = own.lock().clone();
                if first && let Some(queue) = queue {
                    *accepted.lock() += usize::from(queue.produce(Number(TWO, 2)).is_ok());
                }
            })
        };
        let queue = Arc::new(BatchQueue::builder("q", config(2)).start().unwrap());
        *own.lock() = Some(queue.clone());
        queue.add_handler(ONE, handler).unwrap();
        let other = seen.clone();
        queue
            .add_handler(TWO, HandlerRef::new(move |batch: &mut Batch<Number>| other.note(batch)))
            .unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert_eq!(queue.shutdown(None), 0);
        assert_eq!(seen.numbers().len(), 1 + *accepted.lock());
        own.lock().take();
    });
}

/// Shutdown against growth (rule 11): a type added too late is refused, and so are its items.
#[test]
fn loom_close_while_a_type_is_added() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let adaptive =
            Config { partitions: PartitionPolicy::Adaptive { multiplier: 25 }, ..config(1) };
        let queue = Arc::new(BatchQueue::builder("q", adaptive).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        let producer = {
            let (queue, seen) = (queue.clone(), seen.clone());
            thread::spawn(move || {
                let _ = queue.add_handler(TWO, seen.handler());
                queue.produce(Number(TWO, 2)).is_ok()
            })
        };
        queue.shutdown(None);
        let stats = queue.stats();
        let accepted = producer.join().unwrap();
        assert_eq!(stats.consumed + stats.unhandled, u64::from(accepted));
    });
}

/// Shutdown against a producer that waits for a full partition: it is notified, and no thread
/// hangs.
#[test]
fn loom_close_while_a_producer_waits() {
    model(2, || {
        let queue = Arc::new(
            BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap(),
        );
        let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
        let handler = {
            let (entered, release) = (entered.clone(), release.clone());
            HandlerRef::new(move |batch: &mut Batch<Number>| {
                drop(batch.drain());
                entered.open();
                release.wait();
            })
        };
        queue.add_handler(ONE, handler).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        entered.wait();
        queue.produce(Number(ONE, 2)).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.produce(Number(ONE, 3)).is_ok())
        };
        // The handler is running and the partition is full: only the close can end the producer's
        // wait.
        queue.close();
        assert!(!producer.join().unwrap());
        release.open();
        queue.shutdown(None);
    });
}

/// Growth while the owner of the new partition goes to sleep (rules 6, 10 and 11).
#[test]
fn loom_growth_while_the_owner_goes_to_sleep() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let adaptive =
            Config { partitions: PartitionPolicy::Adaptive { multiplier: 25 }, ..config(1) };
        let queue = BatchQueue::builder("q", adaptive).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.add_handler(TWO, seen.handler()).unwrap();
        assert_eq!(queue.partition_count(), 2);
        queue.produce(Number(TWO, 2)).unwrap();
        seen.wait_for(1);
        queue.shutdown(None);
    });
}
