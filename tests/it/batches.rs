//! The items of one call of a handler.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use batchqueue::{
    AddHandlerError, Batch, BatchQueue, Config, HandledType, HandlerRef, Item, PartitionPolicy,
    Selector, TypeKey, Wait,
};

use crate::support::{
    Latch, PATIENCE, Rows, Sent, assert_conserved, config, key, sent, shut_down, start, wait_until,
};

/// The numbers of each call, and the latch that the first call waits for.
struct Calls {
    numbers: Mutex<Vec<Vec<usize>>>,
    inside: Latch,
    release: Latch,
}

impl Calls {
    fn new() -> Arc<Self> {
        let numbers = Mutex::default();
        Arc::new(Self { numbers, inside: Latch::default(), release: Latch::default() })
    }

    fn handler<T: Item>(
        self: &Arc<Self>,
        numbers: fn(&T) -> std::ops::Range<usize>,
    ) -> HandlerRef<T> {
        let calls = self.clone();
        HandlerRef::new(move |batch: &mut Batch<T>| {
            let weight = batch.len();
            let call: Vec<usize> = batch.drain().flat_map(|item| numbers(&item)).collect();
            assert_eq!(call.len(), weight);
            calls.numbers.lock().unwrap().push(call);
            calls.inside.open();
            calls.release.wait();
        })
    }

    fn sizes(&self) -> Vec<usize> {
        self.numbers.lock().unwrap().iter().map(Vec::len).collect()
    }

    fn assert_in_order(&self, count: usize) {
        let numbers = self.numbers.lock().unwrap().concat();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    }
}

fn numbers_of(item: &Sent) -> std::ops::Range<usize> {
    item.number..item.number + 1
}

/// Items that gather while a handler is busy arrive in full batches, whatever the segment size.
#[test]
fn no_call_gets_more_than_the_limit_and_all_but_the_last_are_full() {
    for selector in [Selector::ByType, Selector::RoundRobin, Selector::Given] {
        for (max_batch_items, buffer_size) in
            [(1, 100), (7, 20), (7, 100), (100, 2_000), (500, 2_000), (501, 2_000), (3, 3_000_000)]
        {
            let partitions = PartitionPolicy::fixed(1).unwrap();
            let queue =
                start(Config { selector, partitions, max_batch_items, buffer_size, ..config(1) });
            let calls = Calls::new();
            queue.add_handler(key(0), calls.handler(numbers_of)).unwrap();
            let put = |number| {
                let partition = (selector == Selector::Given).then_some(0);
                queue.produce_with(sent(0, 0, number), partition, None, &mut Wait).unwrap();
            };
            put(0);
            calls.inside.wait();
            let gathered = buffer_size.min(3 * max_batch_items + 2);
            (1..=gathered).for_each(put);
            calls.release.open();
            shut_down(&queue);
            let mut wanted = vec![1];
            wanted.extend(vec![max_batch_items; gathered / max_batch_items]);
            wanted.extend(Some(gathered % max_batch_items).filter(|&rest| rest > 0));
            assert_eq!(calls.sizes(), wanted, "{selector:?} {max_batch_items} {buffer_size}");
            calls.assert_in_order(gathered + 1);
        }
    }
}

/// Items of two types in one partition, where one has its own limit.
#[test]
fn each_type_has_batches_up_to_its_limit() {
    for selector in [Selector::ByType, Selector::RoundRobin, Selector::Given] {
        let partitions = PartitionPolicy::fixed(1).unwrap();
        let queue = start(Config { selector, partitions, max_batch_items: 7, ..config(1) });
        let types = [(Calls::new(), None, 7), (Calls::new(), Some(3), 3)];
        for (kind, (calls, max_batch_items, _)) in types.iter().enumerate() {
            let limited = HandledType { max_batch_items: *max_batch_items, ..key(kind).into() };
            queue.add_handler(limited, calls.handler(numbers_of)).unwrap();
        }
        let partition = (selector == Selector::Given).then_some(0);
        for number in 0..1_000 {
            for kind in 0..2 {
                queue.produce_with(sent(kind, 0, number), partition, None, &mut Wait).unwrap();
            }
        }
        for (calls, ..) in &types {
            calls.release.open();
        }
        shut_down(&queue);
        for (calls, _, limit) in types {
            let sizes = calls.sizes();
            assert!(sizes.iter().all(|&size| size <= limit), "{selector:?} {sizes:?}");
            assert!(limit == 7 || sizes.contains(&limit), "{selector:?} {sizes:?}");
            calls.assert_in_order(1_000);
        }
    }
}

#[test]
fn a_limit_above_that_of_the_queue_holds_in_the_partition_of_its_type() {
    let queue = start(Config { max_batch_items: 5, buffer_size: 2_000, ..config(1) });
    let calls = Calls::new();
    let limited = HandledType { max_batch_items: Some(100), ..key(0).into() };
    queue.add_handler(limited, calls.handler(numbers_of)).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    calls.inside.wait();
    (1..=302).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
    calls.release.open();
    shut_down(&queue);
    assert_eq!(calls.sizes(), [1, 100, 100, 100, 2]);
    calls.assert_in_order(303);
}

#[test]
fn a_new_handler_of_a_type_brings_its_limit() {
    let queue = start(Config { max_batch_items: 5, buffer_size: 2_000, ..config(1) });
    for (max_batch_items, wanted) in [(Some(7), [1, 7, 7]), (Some(2), [1, 2, 2]), (None, [1, 5, 5])]
    {
        let calls = Calls::new();
        let limited = HandledType { max_batch_items, ..key(0).into() };
        queue.add_handler(limited, calls.handler(numbers_of)).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
        calls.inside.wait();
        (1..wanted.iter().sum()).for_each(|number| queue.produce(sent(0, 0, number)).unwrap());
        calls.release.open();
        assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true));
        assert_eq!(calls.sizes(), wanted);
    }
    shut_down(&queue);
}

#[test]
fn a_limit_of_none_or_too_many_items_is_refused() {
    let queue = start(config(1));
    for items in [0, 100_000_001] {
        let limited = HandledType { max_batch_items: Some(items), ..key(0).into() };
        let refused = queue.add_handler(limited, Calls::new().handler(numbers_of));
        let Err(AddHandlerError::Config(problem)) = refused else { panic!("{refused:?}") };
        let wanted = format!("type 16: max_batch_items is {items}; give 1 to 100000000");
        assert_eq!(problem.to_string(), wanted);
    }
    shut_down(&queue);
}

#[test]
fn items_of_rows_are_cut_at_the_limit() {
    for rows in [1, 2, 5, 7, 30, 300] {
        let config = Config { max_batch_items: 7, buffer_size: 1_000, ..config(1) };
        let queue = BatchQueue::builder("rows", config).start().unwrap();
        let calls = Calls::new();
        queue.add_handler(key(0), calls.handler(|item: &Rows| item.0.clone())).unwrap();
        let put = |rows| queue.produce_weighted(rows, None, &mut Wait).unwrap();
        put(Rows(0..1));
        calls.inside.wait();
        for start in (1..901).step_by(rows) {
            put(Rows(start..(start + rows).min(901)));
        }
        let stats = queue.stats();
        assert_eq!((stats.queued, stats.in_flight), (900, 1));
        calls.release.open();
        wait_until("all rows", || queue.stats().consumed == 901);
        let mut wanted = vec![1];
        wanted.extend([7; 128]);
        wanted.push(4);
        assert_eq!(calls.sizes(), wanted, "{rows}");
        calls.assert_in_order(901);
        assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0);
    }
}

/// Rows that cannot be cut.
#[derive(Debug)]
struct Brittle(usize);

impl Item for Brittle {
    fn type_key(&self) -> TypeKey {
        key(0)
    }

    fn weight(&self) -> usize {
        self.0
    }

    fn cut(self, weight: usize) -> (Self, Self) {
        panic!("cut at {weight}")
    }
}

#[test]
fn an_item_that_panics_when_it_is_cut_fails_its_batch_only() {
    let config = Config { max_batch_items: 7, buffer_size: 100, ..config(1) };
    let queue = BatchQueue::builder("brittle", config).start().unwrap();
    let calls = Calls::new();
    queue.add_handler(key(0), calls.handler(|item: &Brittle| 0..item.0)).unwrap();
    for weight in [1, 3, 9, 2, 5] {
        queue.produce_weighted(Brittle(weight), None, &mut Wait).unwrap();
        if weight == 1 {
            calls.inside.wait();
        }
    }
    calls.release.open();
    assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0);
    assert_eq!(calls.sizes(), [1, 7]);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.failed), (8, 12), "3 and 9 were in one batch");
    assert_conserved(&stats);
}
