//! What the handlers count. It is the same for every contender, so that a round ends by the same
//! rule.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// 16 bytes, the size of a pointer and its type.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub kind: usize,
    /// The item's number in its round.
    pub value: u64,
}

/// Written by the one thread inside the type's handler. Aligned to separate cache lines, so that
/// types do not share them.
#[repr(align(128))]
#[derive(Default)]
struct Handled(AtomicU64);

/// The number of items handled so far, by type; with `marks`, also which items.
pub struct Tally {
    handled: Vec<Handled>,
    marks: Vec<AtomicU8>,
}

impl Tally {
    /// `checked_items` is the number of items to mark individually, or 0 to count only.
    pub fn new(types: usize, checked_items: usize) -> Arc<Self> {
        Arc::new(Self {
            handled: (0..types).map(|_| Handled::default()).collect(),
            marks: (0..checked_items).map(|_| AtomicU8::new(0)).collect(),
        })
    }

    /// The handler: a no-op that counts once per batch.
    pub fn consume<'a>(&self, kind: usize, len: usize, batch: impl Iterator<Item = &'a Metric>) {
        if self.marks.is_empty() {
            black_box(batch.last().map(|metric| metric.value));
        } else {
            for metric in batch {
                assert_eq!(metric.kind, kind, "an item reached another type's handler");
                // Relaxed: read after the drain threads were joined.
                let seen = self.marks[usize::try_from(metric.value).expect("a number")]
                    .fetch_add(1, Ordering::Relaxed);
                assert_eq!(seen, 0, "item {} was handled twice", metric.value);
            }
        }
        let handled = &self.handled[kind].0;
        // Relaxed: this thread is the only one that writes. Release: pairs with the Acquire load in
        // `wait_for`.
        handled.store(handled.load(Ordering::Relaxed) + len as u64, Ordering::Release);
    }

    /// Waits until `expected` items of each type have been handled. Checks one type after the
    /// other, so that waiting costs almost nothing.
    pub fn wait_for(&self, expected: &[u64]) {
        for (handled, &expected) in self.handled.iter().zip(expected) {
            // Acquire: pairs with the Release store in `consume`.
            while handled.0.load(Ordering::Acquire) < expected {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Checks that exactly the expected items were handled. Must be called after the drain threads
    /// have ended.
    pub fn verify(&self, expected: &[u64]) -> Result<(), String> {
        for (kind, (handled, &expected)) in self.handled.iter().zip(expected).enumerate() {
            // Relaxed: the writing threads were joined.
            let handled = handled.0.load(Ordering::Relaxed);
            if handled != expected {
                return Err(format!("type {kind}: {handled} items handled, {expected} produced"));
            }
        }
        // Relaxed: as above.
        match self.marks.iter().position(|mark| mark.load(Ordering::Relaxed) != 1) {
            Some(item) => Err(format!("item {item} was not handled exactly once")),
            None => Ok(()),
        }
    }
}
