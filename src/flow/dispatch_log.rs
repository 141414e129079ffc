//! Decides when a line about refused, failed or unhandled items is due.

use crate::item::TypeKey;
use crate::observe::Throttle;
use crate::sync::Instant;

/// Limits log lines to one per type and minute.
#[derive(Debug)]
pub(crate) struct DispatchLog {
    unhandled: Throttle<TypeKey>,
    failed: Throttle<TypeKey>,
    refused: Throttle<TypeKey>,
    side_calls: Throttle<(SideCall, String)>,
}

/// The handler calls that carry no items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SideCall {
    OnIdle,
    OnClose,
}

impl DispatchLog {
    pub(crate) fn new() -> Self {
        Self {
            unhandled: Throttle::new(),
            failed: Throttle::new(),
            refused: Throttle::new(),
            side_calls: Throttle::new(),
        }
    }

    /// Returns the number of failed items of the type since the last line if a line is due.
    pub(crate) fn note_failed(&self, key: TypeKey, items: u64) -> Option<u64> {
        self.failed.note(key, items, Instant::now())
    }

    /// Returns the number of unhandled items of the type since the last line if a line is due.
    pub(crate) fn note_unhandled(&self, key: TypeKey, items: u64) -> Option<u64> {
        self.unhandled.note(key, items, Instant::now())
    }

    /// Returns the number of refused items of the type since the last line if a line is due.
    pub(crate) fn note_refused(&self, key: TypeKey, items: usize) -> Option<u64> {
        self.refused.note(key, items as u64, Instant::now())
    }

    /// Returns the number of failures of the call since the last line if a line is due.
    pub(crate) fn note_side_call(&self, call: SideCall, handler: &str) -> Option<u64> {
        self.side_calls.note((call, handler.to_owned()), 1, Instant::now())
    }
}
