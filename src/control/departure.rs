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

use crate::config::Selector;
use crate::control::known_types::{Goals, KnownType};
use crate::item::{Item, TypeKey};
use crate::shared::{Control, ControlState, Knowledge};

/// How many of the types that are leaving, and of the partitions, a call checks.
const CHECKS_IN_CALL: usize = if cfg!(loom) { 1 } else { 4 };

/// How many types a drain thread checks that has nothing to do.
pub(super) const CHECKS_WHEN_IDLE: usize = 64;

impl<T: Item> Control<T> {
    /// The type has lost its handler, and the jobs that wait for it were recalled.
    pub(super) fn begin_departure(&self, state: &mut ControlState, key: TypeKey) {
        let Some(known) = state.types.get(key) else { return };
        let goal = |index: usize| (index, self.flow.route.partition(index).pushed_under_gate());
        let goals: Goals = if self.flow.config.selector == Selector::ByType {
            known.partitions.iter().copied().map(goal).collect()
        } else {
            (0..self.flow.route.partition_count()).map(goal).collect()
        };
        state.types.leave(key, goals);
    }

    /// Lets some types go that nothing waits for any more, and forgets some that have gone.
    pub(crate) fn end_some_departures(&self, state: &mut ControlState) {
        self.end_departures(state, CHECKS_IN_CALL);
        let completed = |index: usize| self.flow.route.partition(index).completed();
        let pushed = |index: usize| self.flow.route.partition(index).pushed_under_gate();
        let count = self.flow.route.partition_count();
        state.types.whereabouts.advance(count, CHECKS_IN_CALL, pushed, completed);
    }

    pub(super) fn end_departures(&self, state: &mut ControlState, checks: usize) {
        let completed = |index: usize| self.flow.route.partition(index).completed();
        for (key, known) in state.types.take_gone(checks, completed) {
            self.end_departure(state, key, known);
        }
        self.departures.note_pending(state.types.leaving());
    }

    fn end_departure(&self, state: &mut ControlState, key: TypeKey, known: KnownType) {
        let types = &mut state.types;
        // First: what is put from here on goes where items of unknown types go.
        self.flow.route.remove_type(&mut types.table_use, key);
        state.growth.remove_type(&known.partitions, known.weight);
        if self.flow.config.selector == Selector::ByType {
            types.whereabouts.note(key, known.partitions);
        }
        types.free_numbers.push(known.number);
        types.free_spreads.extend(known.spread);
        self.flow.dispatch_log.forget(key);
    }

    /// What is known of a type.
    #[cfg_attr(any(loom, not(any(feature = "python", test))), allow(dead_code))] // for the bindings
    pub(crate) fn knowledge_of(&self, key: TypeKey) -> Knowledge {
        let state = self.state.lock();
        let Some(known) = state.types.get(key) else { return Knowledge::Nothing };
        let has_handler = self.flow.route.place(known.number).registered().is_some();
        if has_handler { Knowledge::Handled } else { Knowledge::Leaving }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
