//! Statistics of calls and waits, for handlers and consumers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use batchqueue::{Batch, BatchQueue, HandlerRef, Stats, TypeKey};

use crate::support::{Collector, Latch, Sent, config, key, sent, shut_down, start, wait_until};

/// Returns a handler that stays in its call until the latch opens.
fn held(latch: &Arc<Latch>) -> HandlerRef<Sent> {
    let latch = latch.clone();
    HandlerRef::new(move |batch: &mut Batch<Sent>| {
        latch.wait();
        batch.drain().for_each(drop);
    })
}

fn grows(first: &Stats, queue: &BatchQueue<Sent>, figure: fn(&Stats) -> Duration) {
    wait_until("the figure to grow", || figure(&queue.stats()) > figure(first));
}

#[test]
fn a_running_call_and_the_items_behind_it_grow_older() {
    let (queue, latch) = (start(config(1)), Arc::new(Latch::default()));
    queue.add_handler(key(0), held(&latch)).unwrap();
    assert_eq!(queue.stats().oldest_age, Duration::ZERO);
    queue.produce(sent(0, 0, 0)).unwrap();
    let in_call = |stats: &Stats| stats.handlers[0].in_call;
    wait_until("the call", || in_call(&queue.stats()) > Duration::ZERO);
    assert_eq!(queue.stats().oldest_age, Duration::ZERO, "its item is in the call");
    queue.produce(sent(0, 0, 1)).unwrap();
    let first = queue.stats();
    grows(&first, &queue, in_call);
    grows(&first, &queue, |stats| stats.oldest_age);
    latch.open();
    shut_down(&queue);
    let stats = queue.stats();
    assert_eq!((stats.oldest_age, in_call(&stats)), (Duration::ZERO, Duration::ZERO));
    let handler = &stats.handlers[0];
    assert!(handler.call_p50 <= handler.call_p99 && handler.call_p99 <= handler.call_max);
    assert!(handler.call_max >= in_call(&first), "the first call took that long already");
    assert!((handler.batch_items_mean - 1.0).abs() < f64::EPSILON);
}

#[test]
fn what_an_expired_shutdown_left_behind_waits_no_more() {
    let (queue, latch) = (start(config(1)), Arc::new(Latch::default()));
    queue.add_handler(key(0), held(&latch)).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the call", || queue.stats().in_flight == 1);
    queue.produce(sent(0, 0, 1)).unwrap();
    assert_eq!(queue.shutdown(Some(Instant::now())), 2);
    assert_eq!(queue.stats().oldest_age, Duration::ZERO);
    latch.open();
}

#[test]
fn consumers_have_one_entry_for_all_of_them() {
    let builder = |threads| BatchQueue::builder("test", config(threads));
    let collector = Collector::default();
    let each = collector.clone();
    let queues = [
        builder(1).consumer(collector.handler()).start().unwrap(),
        builder(2).consumer_per_thread(move |_| each.handler()).start().unwrap(),
    ];
    for queue in queues {
        for number in 0..100 {
            queue.produce(sent(number % 3, 0, number)).unwrap();
        }
        shut_down(&queue);
        let (stats, histograms) = (queue.stats(), queue.histograms());
        let [handler] = stats.handlers.as_slice() else { panic!("{:?}", stats.handlers) };
        assert_eq!((handler.key, handler.consumed), (TypeKey::CONSUMER, 100));
        let [(TypeKey::CONSUMER, types)] = histograms.as_slice() else { panic!("{histograms:?}") };
        assert_eq!(types.batch_items.sum(), 100);
        assert_eq!(types.calls.count(), handler.batches);
        assert_eq!(types.waits.count(), handler.batches);
    }
}
