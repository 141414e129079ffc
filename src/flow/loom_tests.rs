//! Put, take, sleep and flush under loom.

use crate::config::Config;
use crate::sync::{Arc, Duration};
use crate::testing::loom::{Number, ONE, Seen, config, model, model_by_turns, two_owners_meet};
use crate::{BatchQueue, Wait};

/// Ready set with sleep and wake-up (rules 1, 3 and 10): a put while the owner goes to sleep wakes
/// it.
#[test]
fn loom_put_while_the_owner_goes_to_sleep() {
    model(3, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(1)).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        // Only the put's wake-up ends this wait: a flush wakes no thread that was awake when it
        // began.
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// A first item does not end a rest, but the pressure of a half-full partition does: here the first
/// item is both. The rest is as endless as the sleep.
#[test]
fn loom_pressure_while_the_owner_goes_to_rest() {
    model(3, || {
        let seen = Arc::new(Seen::default());
        let resting = Config { min_idle: Duration::from_millis(1), buffer_size: 2, ..config(1) };
        let queue = BatchQueue::builder("q", resting).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// Two items: the second finds the partition empty, non-empty, or in between.
#[test]
fn loom_second_put_while_the_owner_takes_the_first() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(1)).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(ONE, 2)).unwrap();
        seen.wait_for(2);
        assert_eq!(seen.numbers(), [1, 2]);
        queue.shutdown(None);
    });
}

/// Seal and take (rule 4): the third put fills a segment and seals it while the owner takes. The
/// second put takes the fast path.
#[test]
fn loom_seal_while_the_owner_takes() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        // Segments of three; the fourth item stays open.
        let queue =
            BatchQueue::builder("q", Config { buffer_size: 12, ..config(1) }).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        for number in 1..=4 {
            queue.produce(Number(ONE, number)).unwrap();
        }
        seen.wait_for(4);
        assert_eq!(seen.numbers(), [1, 2, 3, 4]);
        queue.shutdown(None);
    });
}

/// A take that stops at its budget (rule 5): the items that it leaves behind are found again.
#[test]
fn loom_put_while_a_take_stops_at_its_budget() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        // Segments of three, the budget of a take; the second put takes the fast path.
        let small = Config { max_batch_items: 3, buffer_size: 12, ..config(1) };
        let queue = BatchQueue::builder("q", small).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        for number in 1..=4 {
            queue.produce(Number(ONE, number)).unwrap();
        }
        seen.wait_for(4);
        assert_eq!(seen.numbers(), [1, 2, 3, 4]);
        queue.shutdown(None);
    });
}

/// A full partition with a waiting producer (rule 2): space wakes it.
#[test]
fn loom_space_while_a_producer_goes_to_wait() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue =
            BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(ONE, 2)).unwrap();
        queue.shutdown(None);
        assert_eq!(seen.numbers(), [1, 2]);
    });
}

/// The desk keeps the second owner out, and its job is served when the desk is released.
#[test]
fn loom_two_owners_meet_at_one_handler() {
    model_by_turns(11, 1, || {
        let seen = Arc::new(Seen::default());
        two_owners_meet(
            &BatchQueue::builder("q", config(2)).start().unwrap(),
            &seen.handler(),
            &seen,
        );
    });
}

/// A flush races the cycle that handles the last item (rule 7).
#[test]
fn loom_flush_while_the_cycle_ends() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(1)).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        assert_eq!(seen.numbers(), [1]);
        queue.shutdown(None);
    });
}
