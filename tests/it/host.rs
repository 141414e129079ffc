//! Handlers that need the host and handlers that do not: which calls enter it, and that counts,
//! order and shutdown do not depend on it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use batchqueue::{
    Batch, BatchQueue, Config, Failure, Handler, HandlerRef, Host, PartitionPolicy, Selector, Wait,
};

use crate::support::{Collector, Sent, assert_conserved, config, key, sent, shut_down, wait_until};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A host that marks the threads inside it and counts how often it was entered.
#[derive(Debug, Clone, Default)]
struct CountingHost(Arc<AtomicUsize>);

fn marked<R>(inside: bool, body: impl FnOnce() -> R) -> R {
    let before = INSIDE.replace(inside);
    let result = body();
    INSIDE.set(before);
    result
}

impl Host<Sent> for CountingHost {
    fn enter(&self, body: &mut dyn FnMut()) {
        self.0.fetch_add(1, SeqCst);
        marked(true, body);
    }

    fn stay(&self, body: &mut dyn FnMut()) {
        marked(true, body);
    }

    fn leave(&self, wait: &mut (dyn FnMut() + Send)) {
        marked(false, wait);
    }
}

/// Collects its items and asserts that it runs where it should.
#[derive(Debug, Clone, Default)]
struct Placed {
    seen: Collector,
    needs_host: bool,
}

impl Handler<Sent> for Placed {
    fn needs_host(&self) -> bool {
        self.needs_host
    }

    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        assert_eq!(INSIDE.get(), self.needs_host);
        self.seen.consume(batch)
    }
}

fn placed(needs_host: bool) -> (Placed, HandlerRef<Sent>) {
    let handler = Placed { needs_host, ..Placed::default() };
    (handler.clone(), HandlerRef::new(handler))
}

fn start(config: Config) -> (BatchQueue<Sent>, Arc<AtomicUsize>) {
    let host = CountingHost::default();
    (BatchQueue::builder("host", config).host(host.clone()).start().unwrap(), host.0)
}

#[test]
fn a_queue_whose_handlers_need_no_host_enters_it_only_to_end() {
    let (queue, entered) = start(config(2));
    let handlers: Vec<_> = (0..4).map(|_| placed(false)).collect();
    for (kind, (_, handler)) in handlers.iter().enumerate() {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    for number in 0..20_000 {
        queue.produce(sent(number % 4, 0, number)).unwrap();
    }
    assert!(queue.flush(None, &mut Wait).unwrap());
    assert_eq!(entered.load(SeqCst), 0);
    shut_down(&queue);
    for (kind, (handler, _)) in handlers.iter().enumerate() {
        let wanted: Vec<_> = (0..20_000)
            .filter(|number| number % 4 == kind)
            .map(|number| sent(kind, 0, number))
            .collect();
        assert_eq!(handler.seen.items(), wanted);
    }
}

#[test]
fn handlers_of_both_kinds_run_where_they_belong_in_any_partition() {
    for (selector, partitions) in
        [(Selector::ByType, 1), (Selector::ByType, 3), (Selector::RoundRobin, 2)]
    {
        let partitions = PartitionPolicy::fixed(partitions).unwrap();
        let (queue, _) = start(Config { selector, partitions, ..config(2) });
        let (first, second) = (placed(true), placed(false));
        queue.add_handler(key(0), first.1).unwrap();
        queue.add_handler(key(1), second.1).unwrap();
        for number in 0..9_000 {
            // The third type has no handler.
            queue.produce(sent(number % 3, 0, number)).unwrap();
        }
        shut_down(&queue);
        let stats = queue.stats();
        assert_conserved(&stats);
        assert_eq!((stats.consumed, stats.unhandled, stats.failed), (6_000, 3_000, 0));
        assert_eq!((first.0.seen.items().len(), second.0.seen.items().len()), (3_000, 3_000));
    }
}

#[test]
fn a_handler_can_be_replaced_by_one_of_the_other_kind() {
    let (queue, entered) = start(config(1));
    let (with, without) = (placed(true), placed(false));
    let mut put = 0;
    for (handler, may_enter) in [(&without, false), (&with, true), (&without, false)] {
        queue.add_handler(key(0), handler.1.clone()).unwrap();
        let before = entered.load(SeqCst);
        for _ in 0..1_000 {
            queue.produce(sent(0, 0, put)).unwrap();
            put += 1;
        }
        assert!(queue.flush(None, &mut Wait).unwrap());
        assert_eq!(entered.load(SeqCst) > before, may_enter);
    }
    assert!(queue.remove_handler(key(0)));
    queue.produce(sent(0, 0, put)).unwrap();
    shut_down(&queue);
    assert_eq!((with.0.seen.items().len(), without.0.seen.items().len()), (1_000, 2_000));
    assert_eq!((queue.stats().failed, queue.stats().unhandled), (0, 1));
}

/// Regression: on one thread, a partition between two busy ones of the other kind was passed over
/// in every cycle.
#[test]
fn a_partition_between_two_of_the_other_kind_is_served() {
    for needs_host in [false, true] {
        let (queue, _) = start(config(1));
        let (queue, stop) = (Arc::new(queue), Arc::new(AtomicBool::new(false)));
        let (between, handler) = placed(needs_host);
        for kind in 0..4 {
            let (queue_again, stop) = (Arc::downgrade(&queue), stop.clone());
            let busy = Busy { queue: queue_again, stop, kind, needs_host: !needs_host };
            let handler = if kind % 2 == 0 { HandlerRef::new(busy) } else { handler.clone() };
            queue.add_handler(key(kind), handler).unwrap();
        }
        for kind in [0, 2] {
            queue.produce(sent(kind, 0, 0)).unwrap();
        }
        wait_until("both to be busy", || {
            [0, 2].iter().all(|&kind| queue.stats().handlers[kind].consumed > 10)
        });
        for number in 0..10 {
            queue.produce(sent(1 + 2 * (number % 2), 0, number)).unwrap();
            wait_until("the item in between to be handled", || between.seen.items().len() > number);
        }
        stop.store(true, SeqCst);
        wait_until("the last items", || queue.stats().total_used() == 0);
        shut_down(&queue);
    }
}

/// Produces its next item before its batch ends, so that its partition is always ready.
struct Busy {
    queue: Weak<BatchQueue<Sent>>,
    stop: Arc<AtomicBool>,
    kind: usize,
    needs_host: bool,
}

impl Handler<Sent> for Busy {
    fn needs_host(&self) -> bool {
        self.needs_host
    }

    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        drop(batch.drain());
        if let Some(queue) = self.queue.upgrade().filter(|_| !self.stop.load(SeqCst)) {
            queue.produce(sent(self.kind, 0, 0)).unwrap();
        }
        Ok(())
    }
}
