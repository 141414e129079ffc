//! The steps by which types go and are forgotten. Calls that read statistics make them too, so they
//! may happen at any time.

use super::drain::Each;
use super::rules::Rule;
use super::state::{Index, State};
use super::world::{Step, World};

impl World {
    pub fn departure_steps(&self, state: &State, each: Each<'_>) {
        let Some(registry) = &state.registry else { return };
        let step = |what, number| Step("departure", 0, what, number);
        if let Some(kind) = registry.going {
            let mut next = state.clone();
            if let Some(registry) = &mut next.registry {
                registry.going = None;
                self.end_departure(registry, usize::from(kind));
            }
            next.is_controlled = false;
            return each(step("ends, of type", kind), next);
        }
        if state.is_controlled {
            return;
        }
        for (kind, known) in (0..).zip(&registry.known) {
            let Some((home, goal)) = known.and_then(|it| Some((it.home, it.goal?))) else {
                continue;
            };
            let its = &state.partitions[usize::from(home)];
            let is_settled = its.completed() >= goal;
            if its.is_locked || !is_settled && !self.is_off(Rule::GoWhenSettled) {
                continue;
            }
            let mut next = state.clone();
            next.is_controlled = true;
            if let Some(registry) = &mut next.registry {
                registry.going = Some(kind);
            }
            if (0..goal).any(|at| !its.is_settled(at) && !its.is_buried(at)) && !state.is_expired {
                next.break_promise("a type left its partition before its items");
            }
            each(step("begins, of type", kind), next);
        }
        self.cursor_step(state, each);
    }

    fn cursor_step(&self, state: &State, each: Each<'_>) {
        let mut next = state.clone();
        let is_locked = |at: Index| state.partitions[usize::from(at)].is_locked;
        let Some(cursor) = state.registry.as_ref().map(|it| it.cursor()) else { return };
        if !is_locked(cursor) && self.advance_cursor(&mut next) {
            each(Step("departure", 0, "looks whether all is settled in", cursor), next);
        }
    }
}
