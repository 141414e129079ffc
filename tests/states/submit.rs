//! The steps of a drain thread that looks up the handler of a job, and goes to its handler lock.

use super::drain::Each;
use super::positions::{At, InFlight};
use super::rules::Rule;
use super::state::{Index, LaneState, State};
use super::world::{Step, World};

impl World {
    /// Looks up the handler of the first ready lane, under the lock of the lanes.
    pub fn submit(&self, mut next: State, thread: Index, step: Step, each: Each<'_>) {
        let of = usize::from(next.threads[usize::from(thread)].partition);
        let Some(kind) = next.partitions[of].first_ready() else {
            next.threads[usize::from(thread)].at = At::BeforeLeave;
            return each(step, next);
        };
        let lane = next.partitions[of].lanes[kind].as_ref().expect("it is ready");
        if lane.is_dead {
            self.post_again(&mut next, of, kind);
            return each(step, next);
        }
        if let Some(registry) = &next.registry {
            if let Some(entry) = registry.table[kind] {
                let kind = Index::try_from(kind).expect("few types");
                let at = At::ReadPlace { kind, number: entry.number };
                next.threads[usize::from(thread)].at = at;
            } else {
                self.submit_to(&mut next, thread, kind, None);
            }
            return each(step, next);
        }
        let lock = if self.has_consumers {
            Some(lane.tried_by.unwrap_or(thread))
        } else {
            next.handlers[kind]
        };
        self.submit_to(&mut next, thread, kind, lock);
        each(step, next);
    }

    /// Submits the job to the handler that was found, if any, or to a removed one that still gets
    /// it.
    pub fn submit_to(&self, state: &mut State, thread: Index, kind: usize, lock: Option<Index>) {
        let of = usize::from(state.threads[usize::from(thread)].partition);
        let lane = state.partitions[of].lanes[kind].as_ref().expect("it is ready");
        let Some(lock) = lock.or_else(|| lane.outstanding_for()) else {
            self.check_unhandled(state, of, kind);
            return self.put_in_flight(state, thread, of, kind, None);
        };
        let me = &mut state.threads[usize::from(thread)];
        me.at = At::Submit;
        if !self.leave_to_linger(state, thread, of, kind) {
            let me = &mut state.threads[usize::from(thread)];
            me.lock = lock;
            me.at = At::HandlerLock(Index::try_from(kind).expect("few types"));
        }
    }

    /// Checks that no item ends unhandled if its type has had a handler ever since the put.
    fn check_unhandled(&self, state: &mut State, of: usize, kind: usize) {
        let Some(registry) = &state.registry else { return };
        let lane = state.partitions[of].lanes[kind].as_ref().expect("it is ready");
        let most = if lane.job.is_empty() { lane.tail.len().min(self.batch) } else { 0 };
        let mut items = lane.job.iter().chain(&lane.tail[..most]);
        if items.any(|item| registry.had_handler_all_along(kind, item.origin)) {
            state.break_promise("an item of a type with a handler went to none");
        }
    }

    /// Goes to the handler lock, under the locks of the lanes and of the handler lock.
    pub fn enter_lock(
        &self,
        mut next: State,
        thread: Index,
        kind: usize,
        step: Step,
        each: Each<'_>,
    ) {
        let me = &mut next.threads[usize::from(thread)];
        let (of, number) = (usize::from(me.partition), me.lock);
        let lock = &mut next.locks[usize::from(number)];
        if lock.is_held && !self.is_off(Rule::HoldHandlerLock) {
            lock.tickets.push((me.partition, Index::try_from(kind).expect("few types")));
            me.at = At::Submit;
            let lane = next.partitions[of].lanes[kind].as_mut().expect("it is ready");
            lane.state = LaneState::Posted(number);
        } else {
            lock.is_held = true;
            self.put_in_flight(&mut next, thread, of, kind, Some(number));
        }
        each(step, next);
    }

    fn put_in_flight(
        &self,
        state: &mut State,
        thread: Index,
        of: usize,
        kind: usize,
        lock: Option<Index>,
    ) {
        let lane = state.partitions[of].lanes[kind].as_mut().expect("it is ready");
        self.take_job(lane);
        let me = &mut state.threads[usize::from(thread)];
        let kind = Index::try_from(kind).expect("few types");
        let partition = me.partition;
        me.in_flight = Some(InFlight::new(partition, kind, lock));
        me.at = At::BeforeLeave;
    }
}
