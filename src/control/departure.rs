//! Departure: how a type goes that has lost its handler.
//!
//! When all that was in its partitions at the removal is settled, nothing waits for the type any
//! more. Producers then find it no longer, and its place, its partitions and its name go to the
//! next new type. What they still put, because they had looked the type up before, ends without a
//! handler, as does an item of a type that was never registered. Partitions keep their counts, so
//! no figure changes.
//!
//! A few of the types that are leaving, and a few partitions for those that have gone, are checked
//! with each call that adds or removes a handler or reads statistics. A drain thread that has
//! nothing to do checks types that are leaving, too.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `pending` | control side, under the control lock | drain threads after an empty cycle |

use crate::config::Selector;
use crate::control::known_types::{Goals, KnownType};
use crate::item::{Item, TypeKey};
use crate::shared::{Control, Shared};
use crate::sync::{AtomicUsize, Ordering};

/// How many of the types that are leaving, and of the partitions, a call checks.
const CHECKS_IN_CALL: usize = if cfg!(loom) { 1 } else { 4 };

/// How many types a drain thread checks that has nothing to do.
const CHECKS_WHEN_IDLE: usize = 64;

/// How many types are leaving.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    pending: AtomicUsize,
}

/// What a queue still knows of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(any(loom, not(any(feature = "python", test))), allow(dead_code))] // for the bindings
pub(crate) enum Knowledge {
    Handled,
    /// Its handler was removed, and it has not gone.
    Leaving,
    Nothing,
}

impl<T: Item> Shared<T> {
    /// The type has lost its handler, and the jobs that wait for it were recalled.
    pub(super) fn begin_departure(&self, control: &mut Control, key: TypeKey) {
        let Some(known) = control.types.get(key) else { return };
        let goal = |index: usize| (index, self.route.partition(index).pushed_under_gate());
        let goals: Goals = if self.config.selector == Selector::ByType {
            known.partitions.iter().copied().map(goal).collect()
        } else {
            (0..self.route.partition_count()).map(goal).collect()
        };
        control.types.leave(key, goals);
    }

    /// Lets some types go that nothing waits for any more, and forgets some that have gone.
    pub(crate) fn end_some_departures(&self, control: &mut Control) {
        self.end_departures(control, CHECKS_IN_CALL);
        let completed = |index: usize| self.route.partition(index).completed();
        let pushed = |index: usize| self.route.partition(index).pushed_under_gate();
        let count = self.route.partition_count();
        control.types.whereabouts.advance(count, CHECKS_IN_CALL, pushed, completed);
    }

    /// Lets types go after an empty cycle of a drain thread.
    pub(crate) fn end_departures_when_idle(&self) {
        // Relaxed: a thread that sees an old value checks in a later cycle. Not in loom, which has
        // no end of empty cycles to explore.
        if cfg!(loom) || self.departures.pending.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Another thread that holds the lock may do so for long.
        if let Some(mut control) = self.control.try_lock() {
            self.end_departures(&mut control, CHECKS_WHEN_IDLE);
        }
    }

    fn end_departures(&self, control: &mut Control, checks: usize) {
        let completed = |index: usize| self.route.partition(index).completed();
        for (key, known) in control.types.take_gone(checks, completed) {
            self.end_departure(control, key, known);
        }
        // Relaxed: as in `end_departures_when_idle`.
        self.departures.pending.store(control.types.leaving(), Ordering::Relaxed);
    }

    fn end_departure(&self, control: &mut Control, key: TypeKey, known: KnownType) {
        let types = &mut control.types;
        // First: what is put from here on goes where items of unknown types go.
        self.route.remove_type(&mut types.table_use, key);
        control.growth.remove_type(&known.partitions, known.weight);
        if self.config.selector == Selector::ByType {
            types.whereabouts.note(key, known.partitions);
        }
        types.free_numbers.push(known.number);
        types.free_spreads.extend(known.spread);
        self.dispatch_log.forget(key);
    }

    /// What is known of a type.
    #[cfg_attr(any(loom, not(any(feature = "python", test))), allow(dead_code))] // for the bindings
    pub(crate) fn knowledge_of(&self, key: TypeKey) -> Knowledge {
        let control = self.control.lock();
        let Some(known) = control.types.get(key) else { return Knowledge::Nothing };
        let has_handler = self.route.place(known.number).registered().is_some();
        if has_handler { Knowledge::Handled } else { Knowledge::Leaving }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
