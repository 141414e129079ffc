//! What the watchdog says.

use std::fmt::Write;

use crate::control::log_helper::Witness;
use crate::item::counted;
use crate::sync::{Arc, Duration, Instant};
use crate::thread_context::KnownThread;

/// A call that takes long.
#[derive(Debug, Clone)]
pub(crate) struct LongCall {
    /// The number of the drain thread.
    pub(super) index: usize,
    pub(super) since: Instant,
    pub(super) handler: String,
    pub(super) took: Duration,
    pub(super) thread: Arc<KnownThread>,
    /// The items in the call, if that is known.
    pub(super) in_call: Option<u64>,
    /// The items that wait for the same handler, or partition.
    pub(super) behind: Option<u64>,
}

impl LongCall {
    /// Without the stack.
    pub(super) fn text(&self, witness: &dyn Witness) -> String {
        let (handler, took) = (&self.handler, seconds(self.took));
        let mut text = format!(
            "handler {handler} has been in one call for {took} on {}",
            witness.name(&self.thread)
        );
        if let Some(items) = self.in_call {
            let _ = write!(text, " with {}", counted(items, "item"));
        }
        if let Some(items) = self.behind.filter(|&items| items > 0) {
            let _ = write!(text, "; {} behind it", wait(items));
        }
        text
    }

    /// The stack, on separate lines. `is_current`: whether the thread is still in that call.
    pub(super) fn stack(&self, witness: &dyn Witness, is_current: impl Fn() -> bool) -> String {
        let stack = is_current().then(|| witness.stack(&self.thread)).flatten();
        // It may have returned while its stack was read.
        let stack = stack.filter(|_| is_current());
        stack.map_or_else(String::new, |stack| format!("\n{stack}"))
    }
}

/// `"1 item waits"`, `"2 items wait"`.
pub(super) fn wait(items: u64) -> String {
    format!("{} wait{}", counted(items, "item"), if items == 1 { "s" } else { "" })
}

pub(super) fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} s", time.as_secs())
    }
}
