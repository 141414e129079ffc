//! The steps of the side that moves partitions, of closes and flushes, and of the clock.

use super::drain::Each;
use super::positions::{At, CloserAt, DeadlineAt, FlusherAt, MoverAt};
use super::rules::Rule;
use super::state::{Index, LaneState, LaneUse, Owner, Partition, State};
use super::world::{Step, World};

impl World {
    // ---- moves

    pub fn mover_steps(&self, state: &State, each: Each<'_>) {
        let mut next = state.clone();
        let step = |what, partition| Step("mover", 0, what, partition);
        match state.mover {
            MoverAt::Idle => self.begin_moves(state, each),
            MoverAt::Revoke { partition, seen, to } => {
                let owner = state.partitions[usize::from(partition)].owner;
                if owner == seen {
                    self.exchange(&mut next, partition, after_revoke(seen, to), to);
                } else {
                    Self::begin_revoke(&mut next, partition, to);
                }
                each(step("revokes", partition), next);
            }
            MoverAt::Store { partition, next: word, to } => {
                next.partitions[usize::from(partition)].owner = word;
                next.after_exchange(partition, word, to);
                each(step("stores the owner word of", partition), next);
            }
            MoverAt::ReadInside { partition, from, to } => {
                let is_inside = state.threads[usize::from(from)].inside == Some(partition);
                if is_inside && !self.is_off(Rule::MoverChecksInside) {
                    next.end_move();
                } else {
                    next.mover = MoverAt::Assign { partition, from, to };
                }
                each(step("reads who is inside of", partition), next);
            }
            MoverAt::Assign { partition, from, to } => {
                let owner = state.partitions[usize::from(partition)].owner;
                if owner == (Owner::Revoked { from, to }) {
                    self.exchange(&mut next, partition, Owner::Owned(to), to);
                } else {
                    next.end_move();
                }
                each(step("assigns", partition), next);
            }
            MoverAt::Announce { partition, to } => {
                self.announce(&mut next, usize::from(partition));
                next.mover = MoverAt::Wake { partition, to };
                each(step("announces the new owner of", partition), next);
            }
            MoverAt::Wake { partition, to } => {
                self.wake_owner(&mut next, usize::from(partition), to);
                next.end_move();
                each(step("wakes the new owner of", partition), next);
            }
        }
    }

    fn begin_moves(&self, state: &State, each: Each<'_>) {
        if state.is_controlled || state.is_expired {
            return;
        }
        let is_open = state.closer == CloserAt::Begin;
        if let Some(&(partition, to)) = self.moves.get(usize::from(state.moves))
            && is_open
        {
            let mut next = state.clone();
            next.is_controlled = true;
            next.moves += 1;
            Self::begin_revoke(&mut next, partition, to);
            each(Step("mover", 0, "begins to move", partition), next);
        }
        let Some(hung) = self.hang.kind().filter(|_| !self.is_off(Rule::TakeOver)) else { return };
        let is_away = |thread: Index| {
            let thread = &state.threads[usize::from(thread)];
            thread.at == At::Call && thread.in_flight.is_some_and(|job| job.kind == hung)
        };
        for partition in 0..self.partitions {
            let its = &state.partitions[usize::from(partition)];
            let Owner::Owned(from) = its.owner else { continue };
            let is_blocked = its.has_lanes() && !self.has_several_types(its);
            let has_work = matches!(its.lane_use(), LaneUse::Owner | LaneUse::Timer)
                || its.is_ready && !is_blocked
                || state.is_closing && its.must_be_finished();
            if its.is_finished || !has_work || !is_away(from) {
                continue;
            }
            for to in (0..self.threads).filter(|&to| !is_away(to)) {
                let mut next = state.clone();
                next.is_controlled = true;
                Self::begin_revoke(&mut next, partition, to);
                each(Step("supervisor", 0, "begins to move", partition), next);
            }
        }
    }

    /// Reads the owner word.
    fn begin_revoke(state: &mut State, partition: Index, to: Index) {
        let seen = state.partitions[usize::from(partition)].owner;
        if seen.wanted() == to {
            state.end_move();
        } else {
            state.mover = MoverAt::Revoke { partition, seen, to };
        }
    }

    /// After a successful comparison, makes the exchange, or only its first half.
    fn exchange(&self, state: &mut State, partition: Index, word: Owner, to: Index) {
        if self.is_off(Rule::CompareExchange) {
            state.mover = MoverAt::Store { partition, next: word, to };
        } else {
            state.partitions[usize::from(partition)].owner = word;
            state.after_exchange(partition, word, to);
        }
    }

    // ---- the end

    pub fn closer_steps(&self, state: &State, each: Each<'_>) {
        let mut next = state.clone();
        let step = |what, partition| Step("closer", 0, what, partition);
        match state.closer {
            CloserAt::Begin => {
                if state.is_controlled {
                    return;
                }
                next.is_controlled = true;
                next.unfinished = self.partitions;
                next.closer = CloserAt::Gate(0);
                each(step("begins, first with", 0), next);
            }
            CloserAt::Gate(partition) => {
                next.partitions[usize::from(partition)].is_closed = true;
                if !self.is_off(Rule::NotifyClosed) {
                    next.notify_producers(usize::from(partition), self.puts);
                }
                let is_last = partition + 1 == self.partitions;
                next.closer =
                    if is_last { CloserAt::Publish } else { CloserAt::Gate(partition + 1) };
                next.is_controlled = !is_last;
                each(step("closes the gate of", partition), next);
            }
            CloserAt::Publish => {
                next.is_closing = true;
                next.wake_all();
                next.closer = CloserAt::Wait;
                each(step("publishes the close, of all", self.partitions), next);
            }
            CloserAt::Wait => {
                let has_ended = state.threads.iter().all(|thread| thread.at == At::Ended);
                if has_ended {
                    next.closer = CloserAt::Done;
                    each(step("sees the end of all", self.partitions), next);
                } else if self.expires && !state.is_controlled {
                    next.is_controlled = true;
                    next.closer = CloserAt::Expire(0);
                    each(step("runs out of time for all", self.partitions), next);
                }
            }
            CloserAt::Expire(thread) => {
                next.threads[usize::from(thread)].is_cut_off = true;
                let is_last = thread + 1 == self.threads;
                next.closer = if is_last { CloserAt::Count } else { CloserAt::Expire(thread + 1) };
                each(step("draws the line for thread", thread), next);
            }
            CloserAt::Count => {
                let put: usize = state.partitions.iter().map(|each| each.put.len()).sum();
                next.abandoned =
                    Index::try_from(put).expect("few items").wrapping_sub(state.counted);
                next.is_expired = true;
                next.is_controlled = false;
                next.wake_all();
                next.notify_flush();
                next.closer = CloserAt::Done;
                each(step("counts what is abandoned, of all", self.partitions), next);
            }
            CloserAt::Done => {}
        }
    }

    /// Sets a deadline at any time; the last try before it comes later.
    pub fn deadline_steps(&self, state: &State, each: Each<'_>) {
        let mut next = state.clone();
        let step = |what| Step("shutdown", 0, what, self.partitions);
        match state.deadline {
            DeadlineAt::Begin => {
                next.deadline = DeadlineAt::Wake;
                each(step("sets its deadline, for all"), next);
            }
            DeadlineAt::Wake => {
                next.wake_all();
                next.deadline = DeadlineAt::Done;
                each(step("wakes the threads of all"), next);
            }
            DeadlineAt::Done => {}
        }
        if state.has_deadline() && !state.is_late {
            let mut next = state.clone();
            next.is_late = true;
            each(Step("clock", 0, "comes to the last try, in all", self.partitions), next);
        }
    }

    // ---- flush

    pub fn flusher_steps(&self, state: &State, each: Each<'_>) {
        let mut next = state.clone();
        let step = |what| Step("flush", 0, what, self.partitions);
        match state.flusher {
            FlusherAt::Begin => {
                next.flush_waits = true;
                next.flusher = FlusherAt::Goals;
                each(step("says that it waits for all"), next);
            }
            FlusherAt::Goals => {
                for (goal, partition) in next.goals.iter_mut().zip(&mut next.partitions) {
                    *goal = Index::try_from(partition.put.len()).expect("few items");
                    partition.is_ready |= self.lingers;
                }
                next.flusher = FlusherAt::Wake;
                each(step("sets its goals for all"), next);
            }
            FlusherAt::Wake => {
                next.wake_all();
                next.flusher = FlusherAt::Check;
                each(step("wakes all"), next);
            }
            FlusherAt::Check => {
                if state.partitions.iter().any(|partition| partition.is_locked) {
                    return;
                }
                let completed = |partition: &Partition| {
                    if self.is_off(Rule::CompletedBehindLanes) {
                        partition.taken
                    } else {
                        partition.completed()
                    }
                };
                let mut goals = state.goals.iter().zip(&state.partitions);
                let is_reached = goals.all(|(&goal, partition)| completed(partition) >= goal);
                if is_reached && next.has_settled_letters() {
                    next.flusher = FlusherAt::Done;
                    next.check_flush();
                } else {
                    next.flush_is_notified = false;
                    next.flusher = FlusherAt::Wait;
                }
                each(step("checks all"), next);
            }
            FlusherAt::Wait => {
                if state.flush_is_notified {
                    next.flusher = FlusherAt::Check;
                    each(step("is notified, of all"), next);
                }
            }
            FlusherAt::Done => {}
        }
    }

    // ---- the clock

    pub fn clock_steps(&self, state: &State, each: Each<'_>) {
        if self.has_long_waits {
            return;
        }
        for partition in 0..self.partitions {
            for kind in 0..state.handlers.len() {
                let mut next = state.clone();
                let lane = next.partitions[usize::from(partition)].lanes[kind].as_mut();
                let Some(lane) = lane else { continue };
                lane.state = match lane.state {
                    LaneState::BackingOff { is_due: false } => {
                        LaneState::BackingOff { is_due: true }
                    }
                    LaneState::Lingering { is_due: false } => LaneState::Lingering { is_due: true },
                    LaneState::AwaitsRoom { is_due: false } => {
                        LaneState::AwaitsRoom { is_due: true }
                    }
                    _ => continue,
                };
                each(Step("clock", 0, "ends a wait in", partition), next);
            }
        }
    }
}

/// Returns what a mover turns an owner word into.
fn after_revoke(seen: Owner, to: Index) -> Owner {
    match seen {
        Owner::Revoked { from, .. } if from == to => Owner::Owned(to),
        Owner::Revoked { from, .. } | Owner::Owned(from) => Owner::Revoked { from, to },
    }
}

impl State {
    fn after_exchange(&mut self, partition: Index, word: Owner, to: Index) {
        self.mover = match word {
            Owner::Owned(_) => MoverAt::Announce { partition, to },
            Owner::Revoked { from, to } => MoverAt::ReadInside { partition, from, to },
        };
    }

    fn end_move(&mut self) {
        self.mover = MoverAt::Idle;
        self.is_controlled = false;
    }

    fn check_flush(&mut self) {
        let mut goals = self.goals.iter().zip(&self.partitions);
        if !goals.all(|(&goal, its)| (0..goal).all(|at| its.is_settled(at))) {
            self.break_promise("a flush returned before the items were handled");
        }
    }
}
