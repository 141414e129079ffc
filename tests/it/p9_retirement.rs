//! P9, P1: a handler that is removed or replaced gets its last batch, then `on_close` once, and is
//! never called again.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use batchqueue::{
    AddHandlerError, Batch, BatchQueue, Closed, Config, Failure, Handler, HandlerRef,
    PartitionPolicy, Selector, Wait,
};

use crate::support::{
    Latch, Lines, PATIENCE, Sent, Witness, assert_conserved, config, holding, key, sent, shut_down,
    start, wait_until,
};

/// Records its calls in order: a batch's size, or 0 for `on_close`.
#[derive(Debug, Clone, Default)]
struct Life {
    events: Arc<Mutex<Vec<usize>>>,
    /// Stays inside its first batch until this opens.
    hold: Option<(Arc<Latch>, Arc<Latch>)>,
}

impl Life {
    fn held() -> (Self, Arc<Latch>, Arc<Latch>) {
        let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
        (
            Self { hold: Some((entered.clone(), release.clone())), ..Self::default() },
            entered,
            release,
        )
    }

    fn handler(&self) -> HandlerRef<Sent> {
        HandlerRef::new(self.clone())
    }

    fn events(&self) -> Vec<usize> {
        self.events.lock().unwrap().clone()
    }
}

impl Handler<Sent> for Life {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        if let Some((entered, release)) = &self.hold {
            entered.open();
            release.wait();
        }
        self.events.lock().unwrap().push(batch.drain().len());
        Ok(())
    }

    fn on_close(&self) -> Result<(), Failure> {
        self.events.lock().unwrap().push(0);
        Ok(())
    }
}

fn flush(queue: &BatchQueue<Sent>) {
    assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
}

#[test]
fn without_a_free_thread_a_removal_ends_at_its_deadline() {
    let queue = start(Config { spare_threads: Some(0), ..config(1) });
    let (hold, entered, release) = holding();
    let life = Life::default();
    queue.add_handler(key(0), hold).unwrap();
    queue.add_handler(key(1), life.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    let deadline = Some(Instant::now() + Duration::from_millis(200));
    assert_eq!(queue.remove_handler_with(key(1), deadline, &mut Wait), Ok(false));
    assert_eq!(life.events(), [0_usize; 0]);
    release.open();
    wait_until("the last call", || life.events() == [0]);
    shut_down(&queue);
}

/// Returns a handler without `on_close` that records the thread that drops it.
fn dropped_by(note: &Arc<Mutex<Option<ThreadId>>>, panics: bool) -> HandlerRef<Sent> {
    struct Dropped(Arc<Mutex<Option<ThreadId>>>, bool);
    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(thread::current().id());
            assert!(!self.1, "dropped");
        }
    }
    let dropped = Dropped(note.clone(), panics);
    HandlerRef::new(move |batch: &mut Batch<Sent>| drop((&dropped, batch.drain())))
}

#[test]
fn a_handler_with_nothing_to_close_goes_without_a_drain_thread() {
    let lines = Lines::default();
    let config = Config { spare_threads: Some(0), ..config(1) };
    let queue = BatchQueue::builder("test", config).host(lines.clone()).start().unwrap();
    let (hold, entered, release) = holding();
    let (replaced, removed) = (Arc::default(), Arc::default());
    queue.add_handler(key(0), hold).unwrap();
    queue.add_handler(key(1), dropped_by(&replaced, false)).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    queue.add_handler(key(1), dropped_by(&removed, true)).unwrap();
    let here = Some(thread::current().id());
    assert_eq!(*replaced.lock().unwrap(), here);
    // This handler's drop panics.
    assert!(queue.remove_handler(key(1)));
    wait_until("the line", || lines.any(" panicked when it was dropped: dropped"));
    assert_eq!(*removed.lock().unwrap_or_else(PoisonError::into_inner), here);
    queue.add_handler(key(1), dropped_by(&Arc::default(), false)).unwrap();
    release.open();
    shut_down(&queue);
}

/// A spare thread makes the last call.
#[test]
fn a_removal_does_not_wait_for_other_handlers_that_hang() {
    let queue = start(Config { spare_threads: Some(1), ..config(2) });
    let hung: Vec<_> = (0..2).map(|_| holding()).collect();
    for (kind, (handler, ..)) in hung.iter().enumerate() {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    let life = Life::default();
    queue.add_handler(key(2), life.handler()).unwrap();
    for (kind, (_, entered, _)) in hung.iter().enumerate() {
        queue.produce(sent(kind, 0, 0)).unwrap();
        entered.wait();
    }
    let deadline = Some(Instant::now() + PATIENCE);
    assert_eq!(queue.remove_handler_with(key(2), deadline, &mut Wait), Ok(true));
    assert_eq!(life.events(), [0]);
    for (.., release) in &hung {
        release.open();
    }
    shut_down(&queue);
}

#[test]
fn a_removal_waits_for_the_batch_in_flight() {
    let (life, entered, release) = Life::held();
    let queue = start(config(2));
    queue.add_handler(key(0), life.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            assert!(queue.remove_handler(key(0)));
            life.events()
        });
        // From now on the type is unhandled, although the earlier batch is still in flight.
        wait_until("the type to be without a handler", || queue.stats().handlers.is_empty());
        queue.produce(sent(0, 0, 1)).unwrap();
        assert_eq!(life.events(), [0_usize; 0]);
        release.open();
        assert_eq!(
            removal.join().unwrap(),
            [1, 0],
            "the handler's calls by the time the removal returned"
        );
    });
    assert!(!queue.remove_handler(key(0)), "the handler is already removed");
    shut_down(&queue);
    assert_eq!(life.events(), [1, 0]);
    assert_eq!((queue.stats().consumed, queue.stats().unhandled), (1, 1));
    assert_conserved(&queue.stats());
}

#[test]
fn the_partition_of_a_type_that_has_gone_goes_to_the_next_new_type() {
    let queue = start(config(2));
    let (first, second) = (Witness::default(), Witness::default());
    for kind in 0..4 {
        queue.add_handler(key(kind), first.handler()).unwrap();
    }
    let partition_of = |kind| {
        queue.stats().partitions.iter().position(|partition| partition.types.contains(&key(kind)))
    };
    assert_eq!(partition_of(1), Some(1));
    queue.produce(sent(1, 0, 0)).unwrap();
    flush(&queue);
    assert!(queue.remove_handler(key(1)));
    assert_eq!(partition_of(1), None);
    queue.produce(sent(1, 0, 1)).unwrap();
    flush(&queue);
    queue.add_handler(key(9), first.handler()).unwrap();
    assert_eq!(partition_of(9), Some(1));
    queue.add_handler(key(1), second.handler()).unwrap();
    assert_eq!(partition_of(1), Some(4));
    queue.produce(sent(1, 0, 2)).unwrap();
    queue.produce(sent(9, 0, 3)).unwrap();
    shut_down(&queue);
    assert_eq!((first.seen(), second.seen()), (vec![(0, 1), (3, 1)], vec![(2, 0)]));
    assert_eq!(queue.stats().unhandled, 1);
}

#[test]
fn a_replaced_handler_gets_the_batches_already_taken_and_then_on_close_once() {
    let (old, entered, release) = Life::held();
    let new = Life::default();
    let queue = start(config(1));
    queue.add_handler(key(0), old.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    queue.produce(sent(0, 0, 1)).unwrap();
    std::thread::scope(|scope| {
        let replacement = scope.spawn(|| {
            queue.add_handler(key(0), new.handler()).unwrap();
            // One batch or two, depending on timing, and then `on_close`, before the call returned.
            assert_eq!((old.events()[0], old.events().last()), (1, Some(&0)));
        });
        queue.produce(sent(0, 0, 2)).unwrap();
        release.open();
        replacement.join().unwrap();
    });
    flush(&queue);
    shut_down(&queue);
    assert_eq!(old.events().iter().filter(|event| **event == 0).count(), 1);
    assert_eq!(old.events().iter().sum::<usize>() + new.events().iter().sum::<usize>(), 3);
    assert_eq!(new.events().last(), Some(&0));
    assert_conserved(&queue.stats());
}

#[test]
fn an_instance_that_is_registered_again_is_not_closed() {
    let life = Life::default();
    let handler = life.handler();
    let queue = start(config(2));
    for kind in [0, 0, 1] {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    assert!(queue.remove_handler(key(0)));
    assert_eq!(life.events(), [0_usize; 0], "it still handles the other type");
    assert!(queue.remove_handler(key(1)));
    assert_eq!(life.events(), [0]);
    shut_down(&queue);
    assert_eq!(life.events(), [0]);
}

/// An instance loses its two types while both drain threads are inside other handlers: `on_close`
/// is called once, after the last thread that could have held a batch for the instance.
#[test]
fn an_instance_that_loses_two_types_concurrently_is_closed_once() {
    let (life, queue) = (Life::default(), start(config(2)));
    let handler = life.handler();
    for kind in 0..2 {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    // The third and fourth types are on the same threads as the first and second.
    let held: Vec<_> = (2..4)
        .map(|kind| {
            let (hold, entered, release) = holding();
            queue.add_handler(key(kind), hold).unwrap();
            (entered, release)
        })
        .collect();
    for kind in 2..4 {
        queue.produce(sent(kind, 0, 0)).unwrap();
    }
    for (entered, _) in &held {
        entered.wait();
    }
    std::thread::scope(|scope| {
        for kind in 0..2 {
            scope.spawn({
                let queue = &queue;
                move || assert!(queue.remove_handler(key(kind)))
            });
        }
        wait_until("both to be gone", || queue.stats().handlers.len() == 2);
        for (_, release) in &held {
            release.open();
        }
    });
    shut_down(&queue);
    assert_eq!(life.events(), [0]);
}

#[test]
fn an_instance_registered_twice_for_a_type_is_closed_once() {
    let (life, queue) = (Life::default(), start(config(2)));
    let handler = life.handler();
    queue.add_handlers(key(0), vec![handler.clone(), handler]).unwrap();
    assert!(queue.remove_handler(key(0)));
    assert_eq!(life.events(), [0]);
    shut_down(&queue);
    assert_eq!(life.events(), [0]);
}

/// A handler removes, replaces and adds handlers on the very thread that these calls would have to
/// wait for.
#[test]
fn control_calls_from_a_handler_return_immediately() {
    let queue = Arc::new(start(config(1)));
    let (removed, replaced, added) = (Life::default(), Life::default(), Life::default());
    queue.add_handler(key(1), removed.handler()).unwrap();
    queue.add_handler(key(2), replaced.handler()).unwrap();
    let (own, next): (Weak<BatchQueue<Sent>>, Life) = (Arc::downgrade(&queue), added.clone());
    let acting = move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        let queue = own.upgrade().unwrap();
        assert!(queue.remove_handler(key(1)));
        queue.add_handler(key(2), next.handler()).unwrap();
        assert!(queue.remove_handler(key(0)), "a handler can remove itself");
    };
    queue.add_handler(key(0), HandlerRef::new(acting)).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("both to be closed", || removed.events() == [0] && replaced.events() == [0]);
    queue.produce(sent(2, 0, 1)).unwrap();
    shut_down(&queue);
    assert_eq!((added.events(), queue.stats().failed), (vec![1, 0], 0));
}

/// With a selector that may route a type to any partition, every drain thread may hold items of it.
#[test]
fn a_removal_waits_for_every_thread_that_may_hold_a_batch() {
    let (life, entered, release) = Life::held();
    let partitions = PartitionPolicy::fixed(3).unwrap();
    let queue = start(Config { selector: Selector::Given, partitions, ..config(3) });
    queue.add_handler(key(0), life.handler()).unwrap();
    queue.produce_with(sent(0, 0, 0), Some(2), None, &mut Wait).unwrap();
    entered.wait();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            assert!(queue.remove_handler(key(0)));
            life.events()
        });
        wait_until("the type to be without a handler", || queue.stats().handlers.is_empty());
        release.open();
        assert_eq!(removal.join().unwrap(), [1, 0]);
    });
    shut_down(&queue);
}

#[test]
fn concurrent_removals_and_shutdown_close_each_handler_once() {
    for _ in 0..100 {
        let queue = start(config(2));
        let lives: Vec<Life> = (0..4).map(|_| Life::default()).collect();
        for (kind, life) in lives.iter().enumerate() {
            queue.add_handler(key(kind), life.handler()).unwrap();
            queue.produce(sent(kind, 0, 0)).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| (0..4).filter(|kind| queue.remove_handler(key(*kind))).count());
            scope.spawn(|| shut_down(&queue));
        });
        for life in &lives {
            let events = life.events();
            assert_eq!(events.iter().filter(|event| **event == 0).count(), 1, "{events:?}");
            assert_eq!(events.last(), Some(&0), "a batch after on_close");
        }
        assert!(!queue.remove_handler(key(0)));
        assert_eq!(
            queue.add_handler(key(0), lives[0].handler()),
            Err(AddHandlerError::Closed(Closed))
        );
        assert_conserved(&queue.stats());
    }
}

/// A consumer gets all items. A handler beside it gets none, but is still closed.
#[test]
fn a_handler_beside_a_consumer_is_closed_too() {
    let (consumer, handler) = (Life::default(), Life::default());
    let consuming = consumer.handler();
    let queue = BatchQueue::builder("test", config(2)).consumer(consuming.clone()).start().unwrap();
    queue.add_handler(key(0), handler.handler()).unwrap();
    queue.add_handler(key(1), consuming).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    assert!(queue.remove_handler(key(1)));
    shut_down(&queue);
    assert_eq!((consumer.events(), handler.events()), (vec![1, 0], vec![0]));
}

/// The wait for a removed handler ends with the queue's shutdown deadline.
#[test]
fn a_removal_does_not_outlive_a_shutdown_out_of_time() {
    let (life, entered, release) = Life::held();
    let queue = start(config(1));
    queue.add_handler(key(0), life.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| queue.remove_handler(key(0)));
        wait_until("the type to be without a handler", || queue.stats().handlers.is_empty());
        assert_eq!(queue.shutdown(Some(Instant::now())), 1);
        assert!(removal.join().unwrap());
        release.open();
    });
    wait_until("the drain thread to end", || queue.has_ended());
    assert_eq!(life.events(), [1, 0]);
    assert_conserved(&queue.stats());
}
