//! P8: items that no handler consumed are logged with their number: per type, or for many types
//! together.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use batchqueue::{Batch, BufferStrategy, Config, Failure, Handler, HandlerRef};

use crate::support::{
    Lines, Sent, assert_conserved, config, holding, key, retrying, sent, shut_down, start_with,
};

fn failing() -> HandlerRef<Sent> {
    // A panic without the panic hook's message.
    HandlerRef::new(|_: &mut Batch<Sent>| std::panic::resume_unwind(Box::new("down")))
}

/// Fails every other call.
struct EachFailsOnce(AtomicUsize);

impl Handler<Sent> for EachFailsOnce {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        if self.0.fetch_add(1, SeqCst).is_multiple_of(2) {
            return Err(Failure::new("the store is busy"));
        }
        drop(batch.drain());
        Ok(())
    }
}

#[test]
fn ten_thousand_failures_are_logged_as_ten_thousand() {
    let (lines, items) = (Lines::default(), 10_000);
    let queue = start_with(&lines, Config { max_batch_items: 1, ..config(1) });
    queue.add_handler(key(0), failing()).unwrap();
    for number in 0..items {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_eq!(queue.stats().failed, items as u64);
    let counted = lines.count("failed in handler") + lines.count("more items of type");
    assert_eq!(counted, items as u64, "{lines:?}");
}

#[test]
fn twenty_thousand_types_without_a_handler_are_a_few_lines() {
    let (lines, types) = (Lines::default(), 20_000);
    let queue = start_with(&lines, config(2));
    for kind in 0..types {
        queue.produce(sent(kind, 0, 0)).unwrap();
    }
    shut_down(&queue);
    assert_eq!(queue.stats().unhandled, types as u64);
    assert_eq!(lines.count("had no handler"), types as u64, "{lines:?}");
    assert!(lines.any("other types had no handler"));
    assert!(lines.len() < 30, "{lines:?}");
}

#[test]
fn the_first_failed_attempt_of_a_type_is_logged_and_later_ones_are_not_for_a_while() {
    let lines = Lines::default();
    let queue = start_with(&lines, Config { max_batch_items: 1, ..retrying(1, Duration::ZERO) });
    queue.add_handler(key(0), HandlerRef::new(EachFailsOnce(AtomicUsize::new(0)))).unwrap();
    for number in 0..100 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 100);
    let wanted = "is tried again in 0 ms, as attempt 1 of 1000 failed: the store is busy";
    assert!(lines.any(wanted), "{lines:?}");
    assert_eq!(lines.len(), 1, "{lines:?}");
}

/// The handler hangs: no drain thread ends.
#[test]
fn an_expired_shutdown_logs_what_was_refused_before() {
    let lines = Lines::default();
    let strategy = BufferStrategy::IfPossible;
    let queue = start_with(&lines, Config { buffer_size: 10, strategy, ..config(1) });
    let (hold, entered, release) = holding();
    queue.add_handler(key(0), hold).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    let refused = (0..100).filter(|&number| queue.produce(sent(0, 0, number)).is_err()).count();
    assert_eq!(queue.shutdown(Some(Instant::now())), 11);
    assert_eq!(lines.count("refused"), refused as u64, "{lines:?}");
    release.open();
    assert_eq!(queue.stats().abandoned, 11);
}

#[test]
fn nothing_is_logged_where_all_is_consumed() {
    let lines = Lines::default();
    let queue = start_with(&lines, config(2));
    queue.add_handler(key(0), HandlerRef::new(|_: &mut Batch<Sent>| ())).unwrap();
    for number in 0..1_000 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_conserved(&queue.stats());
    assert_eq!(lines.len(), 0, "{lines:?}");
}
