//! Waiting items whose partition moves, or whose handler changes or fails.

use super::*;

#[test]
fn a_partition_that_moves_takes_its_lingering_items_along() {
    let (config, steered) = steered(Config {
        threads: ThreadPolicy::fixed(2).unwrap(),
        partitions: PartitionPolicy::fixed(2).unwrap(),
        ..lingering(Selector::ByType, 10, LONG)
    });
    let queue = start(config);
    let witness = Witness::default();
    queue.add_handler(key(0), witness.handler()).unwrap();
    put(&queue, 0, 0..1);
    wait_until_taken(&queue, 1);
    put(&queue, 0, 1..3);
    assert_eq!(steered.rebalance(&queue, &[1, 1]), 1);
    put(&queue, 0, 3..10);
    wait_until("the batch", || witness.seen().len() == 10);
    assert_eq!(witness.seen(), (0..10).map(|number| (number, 1)).collect::<Vec<_>>());
    // The batch becomes due on the new owner.
    shut_down(&queue);
}

#[test]
fn a_moved_partition_is_due_at_its_new_owner() {
    let (config, steered) = steered(Config {
        threads: ThreadPolicy::fixed(2).unwrap(),
        partitions: PartitionPolicy::fixed(2).unwrap(),
        ..lingering(Selector::ByType, 10, Duration::from_millis(50))
    });
    let queue = start(config);
    let witness = Witness::default();
    queue.add_handler(key(0), witness.handler()).unwrap();
    put(&queue, 0, 0..1);
    steered.rebalance(&queue, &[1, 1]);
    wait_until("the batch", || witness.seen().len() == 1);
    shut_down(&queue);
}

#[test]
fn a_new_handler_gets_what_lingers_and_brings_its_own_delay() {
    let queue = start(lingering(Selector::ByType, 10, LONG));
    let (before, after) = (Calls::default(), Calls::default());
    queue.add_handler(key(0), before.handler()).unwrap();
    put(&queue, 0, 0..1);
    wait_until_taken(&queue, 1);
    put(&queue, 0, 1..3);
    let prompt = HandledType { max_delay: Some(Duration::ZERO), ..key(0).into() };
    queue.add_handler(prompt, after.handler()).unwrap();
    after.wait_for(&[3]);
    shut_down(&queue);
    assert_eq!(before.sizes(), [] as [usize; 0]);
}

#[test]
fn a_removed_handler_gets_what_lingers_and_nothing_later() {
    for selector in EACH {
        let queue = start(lingering(selector, 10, LONG));
        let (calls, closed) = (Calls::default(), Arc::new(Mutex::new(0)));
        let handler = Closing(calls.clone(), closed.clone());
        queue.add_handler(key(0), HandlerRef::new(handler)).unwrap();
        put(&queue, 0, 0..1);
        wait_until_taken(&queue, 1);
        if selector == Selector::ByType {
            // The owner has not seen these items.
            put(&queue, 0, 1..3);
        }
        assert!(queue.remove_handler(key(0)));
        assert_eq!(calls.sizes(), [if selector == Selector::ByType { 3 } else { 1 }]);
        assert_eq!(*closed.lock().unwrap(), 1, "after its last batch");
        put(&queue, 0, 3..5);
        shut_down(&queue);
        assert_eq!(queue.stats().unhandled, 2, "{selector:?}");
        assert_conserved(&queue.stats());
    }
}

/// Counts the calls before its end.
struct Closing(Calls, Arc<Mutex<usize>>);

impl Handler<Sent> for Closing {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.0.0.lock().unwrap().push((batch.len(), Instant::now()));
        drop(batch.drain());
        Ok(())
    }

    fn on_close(&self) -> Result<(), Failure> {
        *self.1.lock().unwrap() = self.0.sizes().len();
        Ok(())
    }
}

#[test]
fn a_batch_that_failed_does_not_linger_again() {
    let config =
        Config { max_delay: Some(LONG), max_batch_items: 4, ..retrying(1, Duration::ZERO) };
    let queue = start(config);
    let sink = Sink::default();
    queue.add_handler(key(0), sink.handler()).unwrap();
    put(&queue, 0, 0..4);
    sink.wait_for_a_try();
    put(&queue, 0, 4..6);
    sink.is_up.store(true, std::sync::atomic::Ordering::SeqCst);
    wait_until("the batch", || sink.numbers().len() == 4);
    shut_down(&queue);
    assert_eq!(sink.numbers(), (0..6).collect::<Vec<_>>());
}

/// Items that would linger when the call of a full batch is over.
#[test]
fn a_removed_handler_gets_what_waits_behind_its_call() {
    let queue = start(lingering(Selector::ByType, 4, LONG));
    let (inside, leave) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let (calls, entered, released) = (Calls::default(), inside.clone(), leave.clone());
    let seen = calls.clone();
    let handler = HandlerRef::new(move |batch: &mut Batch<Sent>| {
        seen.0.lock().unwrap().push((batch.len(), Instant::now()));
        drop(batch.drain());
        entered.open();
        released.wait();
    });
    queue.add_handler(key(0), handler).unwrap();
    put(&queue, 0, 0..4);
    inside.wait();
    put(&queue, 0, 4..7);
    let removal = queue.remove_handler_with(key(0), Some(Instant::now()), &mut Wait);
    assert_eq!(removal, Ok(false), "it is inside");
    leave.open();
    put(&queue, 0, 7..9);
    shut_down(&queue);
    assert_eq!(calls.sizes(), [4, 3]);
    assert_eq!(queue.stats().unhandled, 2);
    assert_conserved(&queue.stats());
}
