//! The steps of a caller that adds, replaces and removes handlers, one after another.

use super::drain::Each;
use super::positions::{CloserAt, RemoverAt};
use super::registry::{Entry, Registered};
use super::rules::Rule;
use super::state::{Index, LaneState, State};
use super::world::{Step, World};

/// A change of a type's handler.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The type gets the handler with this lock. The caller waits for the end of the previous one.
    Add(Index, Index),
    /// The caller waits until the handler has gone.
    Remove(Index),
    /// The caller does not wait.
    RemoveSoon(Index),
}

impl Change {
    pub fn kind(self) -> Index {
        match self {
            Self::Add(kind, _) | Self::Remove(kind) | Self::RemoveSoon(kind) => kind,
        }
    }

    /// Returns the handler lock that the type gets.
    pub fn lock(self) -> Option<Index> {
        match self {
            Self::Add(_, lock) => Some(lock),
            Self::Remove(_) | Self::RemoveSoon(_) => None,
        }
    }
}

impl World {
    pub fn change_steps(&self, state: &State, each: Each<'_>) {
        let Some(&change) = self.changes.get(usize::from(state.changes)) else { return };
        let kind = usize::from(change.kind());
        let mut next = state.clone();
        let step = |what, partition| Step("change", state.changes, what, partition);
        match state.remover {
            RemoverAt::Begin => {
                if state.is_controlled {
                    return;
                }
                self.begin_change(&mut next, change);
                each(step("begins, for type", change.kind()), next);
            }
            RemoverAt::Keep(partition) => {
                if state.partitions[usize::from(partition)].is_locked {
                    return;
                }
                self.keep_outstanding(&mut next, usize::from(partition), kind);
                let after = self.next_partition(state, partition);
                next.remover = after.map_or(RemoverAt::Publish, RemoverAt::Keep);
                each(step("leaves what lingers to the handler, in", partition), next);
            }
            RemoverAt::Publish => {
                self.publish(&mut next, change);
                each(step("publishes type", change.kind()), next);
            }
            RemoverAt::PublishNew => {
                let lock = change.lock().expect("a new type has a handler");
                let registry = next.registry.as_mut().expect("types come and go");
                let home = registry.known[kind].expect("it has a home").home;
                *registry.place_of(kind) = Some(Registered { kind: change.kind(), home, lock });
                next.remover = RemoverAt::ListNew;
                each(step("publishes the handler of type", change.kind()), next);
            }
            RemoverAt::ListNew => {
                let registry = next.registry.as_mut().expect("types come and go");
                let known = registry.known[kind].expect("it has a home");
                registry.table[kind] = Some(Entry { number: known.number, home: known.home });
                registry.note_handler(kind, true);
                Self::end_change(&mut next, true);
                each(step("lists the new type", change.kind()), next);
            }
            RemoverAt::Recall(_) | RemoverAt::Bit(_) | RemoverAt::Wake(_) => {
                self.recall_type(state, kind, step("recalls jobs of type", change.kind()), each);
            }
            RemoverAt::Pend => {
                Self::pend(next, change, step("retires a handler of", change.kind()), each);
            }
            RemoverAt::Wait => {
                let lock = 1 << state.before.expect("a handler that is retired");
                let waits = !self.is_off(Rule::WaitForRetired);
                if !waits || state.retires & lock == 0 || state.is_expired {
                    next.retired |= if state.is_expired { 0 } else { lock };
                    Self::end_change(&mut next, false);
                    each(step("returns, without a handler of type", change.kind()), next);
                }
            }
        }
    }

    /// Whether a handler of a type has this handler lock.
    pub fn is_lock_of(&self, kind: usize, lock: Index) -> bool {
        let mut added = self.changes.iter().filter(|change| usize::from(change.kind()) == kind);
        self.locks[kind] == lock || added.any(|change| change.lock() == Some(lock))
    }

    fn begin_change(&self, state: &mut State, change: Change) {
        let kind = usize::from(change.kind());
        let before = match &mut state.registry {
            None => state.handlers[kind],
            Some(registry) => registry.known[kind]
                .and_then(|known| registry.places[usize::from(known.number)])
                .map(|registered| registered.lock),
        };
        state.is_controlled = true;
        state.before = before;
        let is_new = state.registry.as_ref().is_some_and(|it| it.known[kind].is_none());
        let removes = change.lock().is_none();
        if state.closer != CloserAt::Begin || removes && before.is_none() {
            // The change is refused, or there is nothing to do.
            Self::end_change(state, true);
        } else if is_new {
            self.place_type(state, kind);
            state.remover = RemoverAt::PublishNew;
        } else if self.lingers && removes {
            state.remover = RemoverAt::Keep(Self::first_partition(state, change.kind()));
        } else {
            self.publish(state, change);
        }
    }

    /// Publishes another handler, or none, for a type that has not gone.
    fn publish(&self, state: &mut State, change: Change) {
        let (kind, lock) = (usize::from(change.kind()), change.lock());
        if let Some(registry) = &mut state.registry {
            let home = registry.known[kind].expect("it has a home").home;
            let registered = lock.map(|lock| Registered { kind: change.kind(), home, lock });
            *registry.place_of(kind) = registered;
            registry.note_handler(kind, lock.is_some());
            let stays = lock.is_some() && !self.is_off(Rule::StayAfterReturn);
            if let Some(known) = registry.known[kind].as_mut().filter(|_| stays) {
                known.goal = None;
            }
        } else {
            state.handlers[kind] = lock;
        }
        if state.before.is_some() {
            state.remover = RemoverAt::Recall(Self::first_partition(state, change.kind()));
        } else {
            Self::end_change(state, true);
        }
    }

    fn end_change(state: &mut State, is_controlled: bool) {
        state.remover = RemoverAt::Begin;
        state.changes += 1;
        state.before = None;
        if is_controlled {
            state.is_controlled = false;
        }
    }

    /// Returns the first partition in which jobs of a type may wait for its handler: its home, if
    /// it has one.
    fn first_partition(state: &State, kind: Index) -> Index {
        let known = state.registry.as_ref().and_then(|it| it.known[usize::from(kind)]);
        known.map_or(0, |known| known.home)
    }

    fn next_partition(&self, state: &State, partition: Index) -> Option<Index> {
        let next = partition + 1;
        (state.registry.is_none() && next < self.partitions).then_some(next)
    }

    fn recall_type(&self, state: &State, kind: usize, step: Step, each: Each<'_>) {
        let mut next = state.clone();
        let after = |partition| {
            self.next_partition(state, partition).map_or(RemoverAt::Pend, RemoverAt::Recall)
        };
        match state.remover {
            RemoverAt::Recall(partition) => {
                let its = &mut next.partitions[usize::from(partition)];
                next.remover = after(partition);
                if !self.is_off(Rule::RecallType) {
                    if its.is_locked {
                        return;
                    }
                    if let Some(lane) = its.lanes[kind].as_mut()
                        && lane.state != LaneState::Running
                    {
                        lane.state = LaneState::Ready;
                        next.remover = RemoverAt::Bit(partition);
                    }
                }
            }
            RemoverAt::Bit(partition) => {
                self.set_bit(&mut next, usize::from(partition));
                next.remover = RemoverAt::Wake(partition);
            }
            RemoverAt::Wake(partition) => {
                self.wake_inside(&mut next, usize::from(partition));
                next.remover = after(partition);
            }
            other => unreachable!("{other:?} recalls no jobs"),
        }
        each(step, next);
    }

    /// Retires the handler. If the type has no other, it is leaving.
    fn pend(mut next: State, change: Change, step: Step, each: Each<'_>) {
        let kind = usize::from(change.kind());
        let lock = 1 << next.before.expect("a handler that is retired");
        next.retires |= lock;
        next.is_controlled = false;
        if let Some(registry) = &mut next.registry
            && change.lock().is_none()
            && let Some(known) = &mut registry.known[kind]
        {
            let put = next.partitions[usize::from(known.home)].put.len();
            known.goal = Some(Index::try_from(put).expect("few items"));
        }
        let mut at_once = next.clone();
        if Self::idle_handlers(&mut at_once) & lock != 0 {
            // Without an `on_close`.
            at_once.retires &= !lock;
            at_once.retired |= lock;
            Self::end_change(&mut at_once, false);
            each(step, at_once);
        }
        next.wake_all();
        if matches!(change, Change::RemoveSoon(_)) {
            Self::end_change(&mut next, false);
        } else {
            next.remover = RemoverAt::Wait;
        }
        each(step, next);
    }

    /// Keeps items that linger, or would after a call. Under the control lock and that of the
    /// lanes.
    fn keep_outstanding(&self, state: &mut State, of: usize, kind: usize) {
        let to = state.before.expect("a handler that is removed");
        let its = &mut state.partitions[of];
        let queued = if self.has_several_types(its) { 0 } else { its.queue.len() };
        let Some(lane) = its.lanes[kind].as_mut() else { return };
        let has_failed = lane.state != LaneState::Running && !lane.job.is_empty();
        let items = lane.tail.len() + queued;
        if !has_failed && (1..self.batch).contains(&items) {
            if !self.is_off(Rule::KeepLingering) {
                lane.outstanding = Index::try_from(items).expect("few items");
                lane.outstanding_to = to;
            }
            for item in lane.tail.iter().chain(&its.queue[..queued]) {
                its.outstanding |= 1 << item.position;
            }
        }
    }
}
