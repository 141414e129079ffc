//! The dispatch log: decides when a line about refused, failed or unhandled items is due, and keeps
//! what was never logged.

use crate::item::{TypeKey, counted};
use crate::observe::{Due, Others, Throttle};
use crate::sync::Instant;

/// A problem with items that no handler consumed, or that could not be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    Failed,
    Unhandled,
    Refused,
    DeadLettered,
    LostLetters,
    DropPanicked,
    /// Not lost: the first of several attempts failed.
    TriedAgain,
}

impl Problem {
    const ALL: [Self; 7] = [
        Self::Failed,
        Self::Unhandled,
        Self::Refused,
        Self::DeadLettered,
        Self::LostLetters,
        Self::DropPanicked,
        Self::TriedAgain,
    ];

    /// Returns the predicate of a line about this many items.
    pub(crate) fn text(self, items: u64) -> &'static str {
        let is_one = items == 1;
        match self {
            Self::Failed => "failed",
            Self::Unhandled => "had no handler",
            Self::Refused if is_one => "was refused",
            Self::Refused => "were refused",
            Self::DeadLettered => "went to the handler of dead letters",
            Self::LostLetters => "failed in the handler of dead letters",
            Self::DropPanicked if is_one => "panicked when it was dropped",
            Self::DropPanicked => "panicked when they were dropped",
            Self::TriedAgain if is_one => "is tried again",
            Self::TriedAgain => "are tried again",
        }
    }
}

/// Limits log lines to one per type and minute for a few types, and one for all others.
#[derive(Debug)]
pub(crate) struct DispatchLog {
    /// The throttles, by problem.
    items: [Throttle<TypeKey>; Problem::ALL.len()],
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
        Self { items: Problem::ALL.map(|_| Throttle::new()), side_calls: Throttle::new() }
    }

    /// Counts items of a type. Returns a line if one is due.
    pub(crate) fn note(
        &self,
        queue: &str,
        problem: Problem,
        key: TypeKey,
        items: u64,
        line: impl FnOnce(u64) -> (String, String),
    ) -> Option<String> {
        let throttle = &self.items[problem as usize];
        match throttle.note(key, items, Instant::now())? {
            Due::Subject(items) => {
                let (label, line) = line(items);
                throttle.label(&key, &label);
                Some(line)
            }
            Due::Others(others) => Some(others_line(queue, problem, others)),
        }
    }

    /// Counts a failure of a side call. Returns the failures since the last line if a line is due.
    pub(crate) fn note_side_call(&self, call: SideCall, handler: &str) -> Option<u64> {
        self.side_calls.items_due((call, handler.to_owned()), 1, Instant::now())
    }

    /// Forgets a type that is gone, because another one may get its key.
    pub(crate) fn forget(&self, key: TypeKey) {
        self.items.iter().for_each(|throttle| throttle.forget(&key));
    }

    /// Returns the last lines, about everything that was counted and never logged.
    pub(crate) fn take_rest(&self, queue: &str) -> Vec<String> {
        let mut lines = Vec::new();
        // The final outcome of retried items has been counted.
        for problem in Problem::ALL.into_iter().filter(|each| *each != Problem::TriedAgain) {
            let rest = self.items[problem as usize].take_rest();
            let more = |(label, items)| {
                let (more, text) = (counted(items, "more item"), problem.text(items));
                match problem {
                    Problem::LostLetters => format!("queue {queue}: {more} {text} ({label})"),
                    _ => format!("queue {queue}: {more} of {label} {text}"),
                }
            };
            lines.extend(rest.subjects.into_iter().map(more));
            lines.extend(rest.others.map(|others| others_line(queue, problem, others)));
        }
        lines
    }
}

fn others_line(queue: &str, problem: Problem, others: Others) -> String {
    let Others { items, subjects } = others;
    let (types, text) = (counted(subjects as u64, "other type"), problem.text(items));
    format!("queue {queue}: {} of {types} {text}", counted(items, "item"))
}
