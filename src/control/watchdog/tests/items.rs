//! What the watchdog says of items that wait for their call.

use super::super::LastSeen;
use super::*;

#[test]
fn items_that_are_tried_again_and_again_are_reported() {
    let retry = RetryPolicy {
        attempts: Some(1_000),
        backoff: HOUR,
        max_backoff: HOUR,
        ..RetryPolicy::default()
    };
    let (queue, log) = start(Config { retry: Some(retry), ..config(1, 1) });
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(Failing)).unwrap();
    queue.produce(Number(ORDER)).unwrap();
    wait_until(|| queue.stats().held == 1);
    let lines = log.wait_for(1);
    assert!(lines[0].contains("is tried again"), "{lines:?}");
    let start = Instant::now();
    visit(&queue, start);
    visit(&queue, start + HOUR);
    let lines = log.wait_for(2);
    assert_eq!(
        lines[1..],
        ["queue orders: an item in partition 0 (Order) has waited for its call for 3600 s; 1 \
          item waits there; what failed there waits for its next attempt"]
    );
    queue.shutdown(Some(Instant::now()));
}

#[test]
fn items_that_wait_for_their_batch_to_become_full_are_not_reported() {
    let (queue, log) = start(Config { max_delay: Some(HOUR * 24), ..config(1, 1) });
    queue.add_handler(ORDER, HandlerRef::new(Held::default())).unwrap();
    for _ in 0..3 {
        queue.produce(Number(ORDER)).unwrap();
    }
    wait_until(|| queue.flow.route.partition(0).waiting().is_none());
    let start = Instant::now();
    visit(&queue, start);
    visit(&queue, start + 2 * HOUR);
    assert_eq!(queue.shutdown(None), 0);
    assert_eq!(log.lines(), [""; 0]);
}

#[test]
fn classes_that_pass_a_hung_one_do_not_hide_its_oldest_item() {
    let config = Config { selector: Selector::RoundRobin, ..config(2, 1) };
    let (queue, log) = start(Config { partitions: PartitionPolicy::fixed(2).unwrap(), ..config });
    let held = Held::default();
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(held.clone())).unwrap();
    queue.add_handler(named(CLICK, "Click"), HandlerRef::new(Held::default())).unwrap();
    let held_up = hold(&queue, &held);
    for _ in 0..4 {
        queue.produce(Number(ORDER)).unwrap();
    }
    let start = Instant::now();
    for step in 0..8 {
        for _ in 0..100 {
            queue.produce(Number(CLICK)).unwrap();
        }
        wait_until(|| queue.stats().consumed == 100 * (step + 1));
        visit(&queue, start + HOUR / 4 * u32::try_from(step).unwrap());
    }
    wait_until(|| log.lines().iter().any(|line| line.contains("an item in partition")));
    drop(held_up);
    queue.shutdown(None);
}

#[test]
fn a_queue_whose_pool_is_busy_elsewhere_reports_its_items() {
    let threads = ThreadPolicy::fixed(1).unwrap();
    let (log, other_log) = (Log::default(), Log::default());
    let start_on_pool = |name: &str, log: &Log| {
        let builder = BatchQueue::builder(name, config(1, 1)).host(log.clone());
        watched(builder.shared_scheduler("watched pool", threads).start().unwrap())
    };
    let (queue, other) = (start_on_pool("orders", &log), start_on_pool("other", &other_log));
    let held = Held::default();
    queue.add_handler(named(ORDER, "Order"), HandlerRef::new(held.clone())).unwrap();
    other.add_handler(named(CLICK, "Click"), HandlerRef::new(Held::default())).unwrap();
    let held_up = hold(&queue, &held);
    other.produce(Number(CLICK)).unwrap();
    let start = Instant::now();
    for hours in 0..=1 {
        visit(&queue, start + hours * HOUR);
        visit(&other, start + hours * HOUR);
    }
    let lines = log.wait_for(1);
    assert!(lines[0].contains("for 3600 s on batchqueue-watched pool-0"), "{lines:?}");
    let lines = other_log.wait_for(1);
    assert!(lines[0].contains("an item in partition 0 (Click) has waited"), "{lines:?}");
    drop(held_up);
    queue.shutdown(None);
    other.shutdown(None);
}

#[test]
fn nothing_is_remembered_of_partitions_without_waiting_items() {
    let (queue, _log) = start(config(1, 16));
    for key in 1..=16 {
        queue.add_handler(TypeKey(16 * key), HandlerRef::new(Held::default())).unwrap();
        queue.produce(Number(TypeKey(16 * key))).unwrap();
    }
    wait_until(|| queue.stats().consumed == 16);
    visit(&queue, Instant::now());
    {
        let LastSeen { waiting, calls, .. } = &*queue.visitor.seen.lock();
        assert!(waiting.oldest().is_none());
        assert_eq!(calls.len(), 1);
    }
    queue.shutdown(None);
}
