//! P5: at most `buffer_size` items are queued in a partition, plus one cycle's batch per drain
//! thread.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use batchqueue::{BufferStrategy, Config};

use crate::support::{Collector, config, holding, key, sent, shut_down, start};

#[test]
fn exactly_buffer_size_items_fit() {
    for buffer_size in [1, 2, 3, 7, 256, 257, 1_000] {
        let (handler, entered, release) = holding();
        let queue =
            start(Config { buffer_size, strategy: BufferStrategy::IfPossible, ..config(1) });
        queue.add_handler(key(0), handler).unwrap();
        queue.produce(sent(0, 0, 0)).unwrap();
        entered.wait();
        let accepted = (0..buffer_size + 10)
            .filter(|&number| queue.produce(sent(0, 0, number)).is_ok())
            .count();
        assert_eq!(accepted, buffer_size);
        assert_eq!(queue.stats().queued, buffer_size as u64);
        release.open();
        shut_down(&queue);
    }
}

#[test]
fn usage_stays_within_bounds_under_load() {
    let collector = Collector::default();
    let queue = start(Config { buffer_size: 16, max_batch_items: 8, ..config(2) });
    for kind in 0..4 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let producers: Vec<_> = (0..3)
            .map(|producer| {
                let queue = &queue;
                scope.spawn(move || {
                    for number in 0..5_000 {
                        queue.produce(sent(number % 4, producer, number)).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(SeqCst) {
                let stats = queue.stats();
                for partition in &stats.partitions {
                    // Queued items plus those in flight at the owner: max_batch_items, rounded up
                    // to a segment of 4.
                    assert!(partition.used <= 16 + 8 + 3, "{partition:?}");
                }
            }
        });
        for producer in producers {
            producer.join().unwrap();
        }
        done.store(true, SeqCst);
    });
    shut_down(&queue);
}
