//! Batches that wait to become full.

use super::rules::Rule;
use super::state::{Index, Item, Lane, LaneState, Partition, State};
use super::world::World;

impl World {
    /// Returns how many items a lane takes, in a partition of one type.
    pub fn room_in(&self, lane: &Lane) -> usize {
        let takes_more = lane.state == LaneState::Ready || lane.state.is_lingering();
        let takes_more = takes_more && lane.job.is_empty();
        if takes_more { self.batch.saturating_sub(lane.tail.len()) } else { 0 }
    }

    /// Whether batches that are not full may wait in this turn.
    fn is_patient(&self, state: &mut State, thread: Index, of: usize) -> bool {
        let flushes = state.flush_waits && !self.is_off(Rule::FlushEndsLinger);
        let (me, its) = (&mut state.threads[usize::from(thread)], &mut state.partitions[of]);
        let closing = me.saw_closing;
        *me.is_patient
            .get_or_insert_with(|| !closing && !std::mem::take(&mut its.is_wanted) && !flushes)
    }

    /// Whether a partition has no room for lanes that linger.
    fn holds_much(&self, its: &Partition) -> bool {
        its.held() >= if self.has_several_types(its) { self.bound.div_ceil(2) } else { self.bound }
    }

    /// After a take, ends lingering if there is no room or no time for it.
    pub fn end_linger(&self, state: &mut State, thread: Index, of: usize) {
        let its = &state.partitions[of];
        if its.lanes().all(|lane| lane.state.is_due().is_none()) {
            return;
        }
        if self.holds_much(its) || !self.is_patient(state, thread, of) {
            for lane in state.partitions[of].lanes.iter_mut().flatten() {
                if lane.state.is_lingering() {
                    lane.state = LaneState::Ready;
                }
            }
        }
    }

    /// Whether a ready lane is left to linger.
    pub fn leave_to_linger(
        &self,
        state: &mut State,
        thread: Index,
        of: usize,
        kind: usize,
    ) -> bool {
        let its = &state.partitions[of];
        let lane = its.lanes[kind].as_ref().expect("it is ready");
        let gathered = lane.tail.len();
        if !self.lingers
            || !lane.job.is_empty()
            || lane.outstanding > 0
            || lane.has_waited
            || gathered >= self.batch
            || self.holds_much(its)
            || !self.is_patient(state, thread, of)
        {
            return false;
        }
        let its = &mut state.partitions[of];
        if !self.has_several_types(its) && its.queue.is_empty() {
            let room = self.bound.saturating_sub(its.counted());
            let lacking = (self.batch - gathered).min(room);
            its.notify_at = Index::try_from(its.put.len() + lacking).expect("few items");
        }
        its.lanes[kind].as_mut().expect("it is ready").state =
            LaneState::Lingering { is_due: false };
        true
    }

    /// Whether all items left in a partition wait for more, as they may forever.
    pub fn may_linger(&self, state: &State, of: usize) -> bool {
        let its = &state.partitions[of];
        let waits = |lane: &Lane| {
            lane.state.is_lingering() && lane.tail.len() + its.queue.len() < self.batch
        };
        // An item of another type may wait behind it only if that was not known.
        let is_other = |item: &Item| {
            let (kind, registry) = (usize::from(item.kind), state.registry.as_ref());
            its.lanes[kind].is_none()
                && registry.is_some_and(|it| it.had_handler_all_along(kind, item.origin))
        };
        self.has_long_waits
            && its.has_lanes()
            && its.lanes().all(waits)
            && !its.queue.iter().any(is_other)
    }
}
