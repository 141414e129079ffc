//! P4: a batch that waits for its next try does not wait for a handler that is gone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, Config, Failure, Handler, HandlerRef, PartitionPolicy, Pause, Selector, Wait,
};

use crate::support::{
    Collector, LONG, Latch, Lines, PATIENCE, Sent, Sink, assert_conserved, key, retrying, sent,
    shut_down, start, start_with, wait_until,
};

#[test]
fn a_new_handler_gets_the_batch_that_the_old_one_failed() {
    let (queue, broken, fixed) = (start(retrying(1, LONG)), Sink::default(), Collector::default());
    let other = Collector::default();
    queue.add_handler(key(0), broken.handler()).unwrap();
    queue.add_handler(key(1), other.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    broken.wait_for_a_try();
    queue.produce(sent(0, 0, 1)).unwrap();
    // The only thread has left the call when it makes another.
    queue.produce(sent(1, 0, 0)).unwrap();
    wait_until("the other type", || other.items().len() == 1);
    queue.add_handler(key(0), fixed.handler()).unwrap();
    wait_until("both items", || fixed.items() == [sent(0, 0, 0), sent(0, 0, 1)]);
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 3);
}

/// Fails from the moment it is allowed to.
#[derive(Clone, Default)]
struct FailsLate {
    inside: Arc<Latch>,
    may_fail: Arc<Latch>,
}

impl Handler<Sent> for FailsLate {
    fn consume(&self, _: &mut Batch<Sent>) -> Result<(), Failure> {
        self.inside.open();
        self.may_fail.wait();
        Err(Failure::new("down"))
    }
}

/// A wait for the handler that was taken away, which may fail from then on.
impl Pause for &FailsLate {
    type Interrupt = Infallible;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), Infallible> {
        self.may_fail.open();
        wait(None);
        Ok(())
    }
}

#[test]
fn a_batch_that_fails_while_its_handler_is_replaced_goes_to_the_new_one_without_delay() {
    let (queue, broken, fixed) =
        (start(retrying(1, LONG)), FailsLate::default(), Collector::default());
    queue.add_handler(key(0), HandlerRef::new(broken.clone())).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    broken.inside.wait();
    queue.produce(sent(0, 0, 1)).unwrap();
    queue.add_handler_with(key(0), vec![fixed.handler()], &mut &broken).unwrap();
    wait_until("both items", || fixed.items() == [sent(0, 0, 0), sent(0, 0, 1)]);
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 2);
}

#[test]
fn a_batch_that_fails_while_its_handler_is_removed_is_counted_without_delay() {
    for selector in [Selector::ByType, Selector::RoundRobin, Selector::Given] {
        let partitions = PartitionPolicy::fixed(1).unwrap();
        let queue = start(Config { selector, partitions, ..retrying(1, LONG) });
        let broken = FailsLate::default();
        queue.add_handler(key(0), HandlerRef::new(broken.clone())).unwrap();
        let partition = (selector == Selector::Given).then_some(0);
        queue.produce_with(sent(0, 0, 0), partition, None, &mut Wait).unwrap();
        broken.inside.wait();
        assert_eq!(queue.remove_handler_with(key(0), None, &mut &broken), Ok(true));
        assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
        assert_eq!(queue.stats().failed, 1);
        shut_down(&queue);
        assert_conserved(&queue.stats());
    }
}

#[test]
fn a_removal_fails_the_batch_that_was_tried_and_leaves_the_others_unhandled() {
    let (lines, sink) = (Lines::default(), Sink::default());
    let queue = start_with(&lines, Config { max_batch_items: 1, ..retrying(1, LONG) });
    queue.add_handler(key(0), sink.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    sink.wait_for_a_try();
    queue.produce(sent(0, 0, 1)).unwrap();
    assert!(queue.remove_handler(key(0)));
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.failed, stats.unhandled), (0, 1, 1));
    let line = "failed: the handler was removed before the next try";
    wait_until("the line", || lines.any(line));
    shut_down(&queue);
    assert_conserved(&queue.stats());
}
