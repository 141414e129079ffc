//! Put, take, sleep and flush under loom.

use crate::config::{Config, PartitionPolicy};
use crate::flow::batch::{Batch, DeadLetters, Failure};
use crate::flow::handler::{Handler, HandlerRef};
use crate::item::HandledType;
use crate::queue::BatchQueue;
use crate::sync::{Arc, Duration};
use crate::testing::loom::{
    Number, ONE, Seen, TWO, config, model, model_by_turns, two_owners_meet,
};
use crate::threads::waits::Wait;

/// Ready set, sleep and wake-up (rules 1, 3 and 10): a put while the owner goes to sleep wakes it.
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

/// A first item does not end a rest, but the pressure of a half-full partition does. Here the first
/// item causes pressure, too. The rest is as endless as the sleep.
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

/// A producer waits in front of a full partition (rule 2): room wakes it.
#[test]
fn loom_space_while_a_producer_goes_to_wait() {
    model_by_turns(9, 2, || {
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

/// The handler lock keeps the second owner out, whose job is served when the lock is released.
#[test]
fn loom_two_owners_meet_at_one_handler() {
    model_by_turns(3, 1, || {
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

/// A batch of two waits for its second item, which is put before, during or after the turn that
/// leaves the first to linger.
#[test]
fn loom_put_fills_a_batch_while_its_first_item_goes_to_linger() {
    model_by_turns(2, 3, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", lingering()).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(ONE, 2)).unwrap();
        seen.wait_for(2);
        assert_eq!(seen.numbers(), [1, 2]);
        queue.shutdown(None);
    });
}

/// A flush ends the wait of an item that is about to linger.
#[test]
fn loom_flush_while_an_item_goes_to_linger() {
    model_by_turns(4, 3, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", lingering()).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        assert_eq!(seen.numbers(), [1]);
        queue.shutdown(None);
    });
}

/// A second type is added to the partition of an item that is about to linger, and does not wait
/// for it.
#[test]
fn loom_second_type_while_an_item_goes_to_linger() {
    model(2, || {
        let (first, second) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let of_three = Config { max_batch_items: 3, ..lingering() };
        let queue = BatchQueue::builder("q", of_three).start().unwrap();
        queue.add_handler(ONE, first.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        let prompt = HandledType { max_delay: Some(Duration::ZERO), ..TWO.into() };
        queue.add_handler(prompt, second.handler()).unwrap();
        queue.produce(Number(TWO, 1)).unwrap();
        second.wait_for(1);
        queue.shutdown(None);
        assert_eq!(first.numbers(), [1]);
    });
}

/// Returns a configuration with one partition, and batches of two that wait forever.
fn lingering() -> Config {
    Config {
        partitions: PartitionPolicy::Fixed(1),
        buffer_size: 12,
        max_batch_items: 2,
        max_delay: Some(Duration::from_secs(1)),
        ..config(1)
    }
}

/// A batch goes to the handler of dead letters while a flush waits for it.
#[test]
fn loom_flush_while_a_batch_goes_to_the_dead_letters() {
    struct Fails;
    impl Handler<Number> for Fails {
        fn consume(&self, _batch: &mut Batch<Number>) -> Result<(), Failure> {
            Err(Failure::new("as planned"))
        }
    }
    struct Keeps(Arc<Seen>);
    impl Handler<Number> for Keeps {
        fn consume(&self, _batch: &mut Batch<Number>) -> Result<(), Failure> {
            Ok(())
        }

        fn consume_dead_letters(
            &self,
            letters: &mut Vec<DeadLetters<Number>>,
        ) -> Result<(), Failure> {
            for mut letter in letters.drain(..) {
                self.0.note(&mut letter.items);
            }
            Ok(())
        }
    }
    model(2, || {
        let seen = Arc::new(Seen::default());
        let keeper = HandlerRef::new(Keeps(seen.clone()));
        let queue = BatchQueue::builder("q", config(1)).dead_letter(keeper).start().unwrap();
        queue.add_handler(ONE, HandlerRef::new(Fails)).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert_eq!(queue.flush(None, &mut Wait), Ok(true));
        assert_eq!(seen.numbers(), [1]);
        queue.shutdown(None);
    });
}
