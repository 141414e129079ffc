//! Handoff under loom: the real queue, two drain threads, and a control side that moves a partition
//! between them.
//!
//! Each drain thread has its own consumer, so that only the owner word and the lanes, and no
//! handler lock, keep two threads apart; loom reports two threads in `Seen::inside`. Bounds: one
//! preemption, because with two a model of two drain threads and a third party runs for many
//! minutes; two where there is one drain thread. Races of single rules that lie deeper are in
//! `loom_rules`.

use loom::thread;

use crate::config::{Config, PartitionPolicy, Selector};
use crate::queue::BatchQueue;
use crate::sync::{Arc, Duration};
use crate::testing::loom::{Number, ONE, Seen, TWO, config, model_by_turns};
use crate::threads::waits::Wait;

/// Returns a queue with two drain threads, two partitions and one consumer per thread; items name
/// their partition.
fn queue(seen: &Arc<Seen>) -> Arc<BatchQueue<Number>> {
    let seen = seen.clone();
    let config = Config { selector: Selector::Given, ..config(2) };
    let queue =
        BatchQueue::builder("q", config).consumer_per_thread(move |_| seen.handler()).start();
    Arc::new(queue.unwrap())
}

fn put(queue: &BatchQueue<Number>, number: u32) {
    queue.produce_with(Number(ONE, number), Some(0), None, &mut Wait).unwrap();
}

fn hand_over(queue: &BatchQueue<Number>, partition: usize, to: usize) {
    queue.control.hand_over(&mut queue.control.state.lock(), partition, to);
}

/// Items are exclusive, in order and not lost: the second one reaches the old owner, the new one,
/// or neither yet.
#[test]
fn loom_move_while_the_owner_calls() {
    model_by_turns(3, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen);
        put(&queue, 1);
        hand_over(&queue, 0, 1);
        put(&queue, 2);
        seen.wait_for(2);
        assert_eq!(seen.numbers(), [1, 2]);
        queue.shutdown(None);
    });
}

/// A partition with an item moves between two resting threads: the new owner does not wait for its
/// rest to end.
#[test]
fn loom_move_while_the_owners_rest() {
    model_by_turns(4, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = {
            let seen = seen.clone();
            let rest = Config { min_idle: Duration::from_millis(1), buffer_size: 2, ..config(2) };
            let config = Config { selector: Selector::Given, ..rest };
            BatchQueue::builder("q", config)
                .consumer_per_thread(move |_| seen.handler())
                .start()
                .unwrap()
        };
        put(&queue, 1);
        hand_over(&queue, 0, 1);
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// An item arrives while its partition moves between two sleeping threads.
#[test]
fn loom_move_while_a_producer_puts() {
    model_by_turns(5, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen);
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || put(&queue, 1))
        };
        hand_over(&queue, 0, 1);
        seen.wait_for(1);
        producer.join().unwrap();
        queue.shutdown(None);
    });
}

/// A move is redirected back to the thread inside before it completes, or never begins.
#[test]
fn loom_move_back_immediately() {
    model_by_turns(6, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen);
        put(&queue, 1);
        hand_over(&queue, 0, 1);
        hand_over(&queue, 0, 0);
        put(&queue, 2);
        seen.wait_for(2);
        assert_eq!(seen.numbers(), [1, 2]);
        queue.shutdown(None);
    });
}

/// Two concurrent moves, in opposite directions.
#[test]
fn loom_two_partitions_swap_owners() {
    model_by_turns(7, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen);
        put(&queue, 1);
        hand_over(&queue, 0, 1);
        hand_over(&queue, 1, 0);
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// The lanes move with the partition: a flush waits for what either owner has in flight.
#[test]
fn loom_flush_while_a_partition_moves() {
    model_by_turns(8, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen);
        put(&queue, 1);
        hand_over(&queue, 0, 1);
        put(&queue, 2);
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        assert_eq!(seen.numbers(), [1, 2]);
        queue.shutdown(None);
    });
}

/// A close during a move: the partition is finished once, by the thread inside.
#[test]
fn loom_close_while_a_partition_moves() {
    model_by_turns(9, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen);
        put(&queue, 1);
        hand_over(&queue, 0, 1);
        assert_eq!(queue.shutdown(None), 0);
        assert_eq!(seen.numbers(), [1]);
    });
}

/// A thread takes a partition over while the queue closes: it is finished once, by either owner.
#[test]
fn loom_take_over_while_the_queue_closes() {
    model_by_turns(10, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen);
        put(&queue, 1);
        queue.control.close();
        queue.control.move_to(&mut queue.control.state.lock(), 0, 1);
        assert_eq!(queue.shutdown(None), 0);
        assert_eq!(seen.numbers(), [1]);
    });
}

/// Concurrent growth, move and close.
#[test]
fn loom_growth_while_a_partition_moves_and_the_queue_closes() {
    model_by_turns(11, 1, || {
        let seen = Arc::new(Seen::default());
        let adaptive =
            Config { partitions: PartitionPolicy::Adaptive { multiplier: 25 }, ..config(2) };
        let queue = BatchQueue::builder("q", adaptive).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        let queue = Arc::new(queue);
        let control = {
            let queue = queue.clone();
            thread::spawn(move || hand_over(&queue, 0, 1))
        };
        queue.add_handler(TWO, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert_eq!(queue.shutdown(None), 0);
        assert_eq!(seen.numbers(), [1]);
        control.join().unwrap();
    });
}

/// Once a removal has returned, no thread is inside the handler, and none enters it.
#[test]
fn loom_remove_while_the_owner_calls() {
    model_by_turns(0, 2, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(1)).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert!(queue.remove_handler(ONE));
        // loom reports a drain thread that is inside, or enters later without an ordering.
        seen.inside.with_mut(|_| ());
        queue.shutdown(None);
    });
}
