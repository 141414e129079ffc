//! P3: order holds per type and producer with the selector by type, and per partition otherwise.

use batchqueue::{BatchQueue, Config, PartitionPolicy, Selector, Wait};

use crate::support::{Collector, Sent, config, key, sent, shut_down, start};

fn assert_ordered(items: &[Sent], same: impl Fn(&Sent) -> (usize, usize)) {
    let mut last = std::collections::HashMap::new();
    for item in items {
        let before = last.insert(same(item), item.number);
        assert!(
            before.is_none_or(|before| before < item.number),
            "{item:?} came after number {before:?}"
        );
    }
}

#[test]
fn order_per_type_and_producer_holds_across_segments_and_budgets() {
    let collector = Collector::default();
    // Segments of two items and takes of three exercise every boundary.
    let queue = start(Config { buffer_size: 8, max_batch_items: 3, ..config(2) });
    for kind in 0..3 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    std::thread::scope(|scope| {
        for producer in 0..3 {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..4_000 {
                    queue.produce(sent(number % 3, producer, number)).unwrap();
                }
            });
        }
    });
    shut_down(&queue);
    assert_eq!(collector.items().len(), 12_000);
    assert_ordered(&collector.items(), |item| (item.kind, item.producer));
}

#[test]
fn order_per_type_holds_while_partitions_grow() {
    let collector = Collector::default();
    let queue = start(Config { buffer_size: 64, ..config(2) });
    queue.add_handler(key(0), collector.handler()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..20_000 {
                queue.produce(sent(0, 0, number)).unwrap();
            }
        });
        scope.spawn(|| {
            for kind in 1..200 {
                queue.add_handler(key(kind), collector.handler()).unwrap();
                queue.produce(sent(kind, 1, kind)).unwrap();
            }
        });
    });
    shut_down(&queue);
    assert_eq!(queue.partition_count(), 50 + 150 / 2);
    assert_eq!(collector.items().len(), 20_000 + 199);
    assert_ordered(&collector.items(), |item| (item.kind, item.producer));
}

#[test]
fn produce_many_keeps_order() {
    let collector = Collector::default();
    let queue = start(Config { buffer_size: 100, ..config(2) });
    for kind in 0..2 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    let items: Vec<_> = (0..10_000).map(|number| sent(number / 300 % 2, 0, number)).collect();
    queue.produce_many(&mut items.into_iter(), None, &mut Wait).unwrap();
    shut_down(&queue);
    assert_eq!(collector.items().len(), 10_000);
    assert_ordered(&collector.items(), |item| (item.kind, 0));
}

#[test]
fn produce_many_keeps_order_with_more_types_than_a_producer_remembers() {
    const TYPES: usize = 150;
    // Covers types with a partition each and types that share one; there are more partitions than
    // gates that one call holds.
    for partitions in [20, 200] {
        let partitions = PartitionPolicy::fixed(partitions).unwrap();
        let queue = start(Config { partitions, buffer_size: 300, ..config(2) });
        let collectors: Vec<Collector> = (0..TYPES).map(|_| Collector::default()).collect();
        for (kind, collector) in collectors.iter().enumerate() {
            queue.add_handler(key(kind), collector.handler()).unwrap();
        }
        // The last type is spread, and the second half of the items visits the types in reverse
        // order.
        let spread: Vec<Collector> = (0..3).map(|_| Collector::default()).collect();
        queue.add_handlers(key(TYPES), spread.iter().map(Collector::handler).collect()).unwrap();
        let position =
            |number: usize| if number < 30_000 { number * 7 } else { (60_000 - number) * 7 };
        let kind_of = |number: usize| position(number) % (TYPES + 1);
        let items: Vec<_> = (0..60_000).map(|number| sent(kind_of(number), 0, number)).collect();
        queue.produce_many(&mut items.clone().into_iter(), None, &mut Wait).unwrap();
        shut_down(&queue);
        for (kind, collector) in collectors.iter().enumerate() {
            let wanted: Vec<_> = items.iter().filter(|item| item.kind == kind).copied().collect();
            assert_eq!(collector.items(), wanted);
        }
        assert!(
            spread.iter().all(|instance| instance.items().is_sorted_by_key(|item| item.number))
        );
        let all = collectors.iter().chain(&spread).map(|collector| collector.items().len());
        assert_eq!(all.sum::<usize>(), items.len());
    }
}

#[test]
fn order_per_partition_holds_if_the_caller_names_it() {
    let collector = Collector::default();
    let config = Config {
        selector: Selector::Given,
        partitions: PartitionPolicy::fixed(3).unwrap(),
        buffer_size: 16,
        ..config(3)
    };
    let queue: BatchQueue<Sent> =
        BatchQueue::builder("test", config).consumer(collector.handler()).start().unwrap();
    for number in 0..3_000 {
        queue.produce_with(sent(0, number % 3, number), Some(number % 3), None, &mut Wait).unwrap();
    }
    shut_down(&queue);
    assert_ordered(&collector.items(), |item| (item.producer, 0));
}
