//! The steps of a drain thread that leaves a partition, and completes a move that found it inside.

use super::drain::Each;
use super::positions::At;
use super::rules::Rule;
use super::state::{Index, Owner, State};
use super::world::{Step, World};

impl World {
    pub fn leave_steps(&self, state: &State, thread: Index, each: Each<'_>) {
        let me = &state.threads[usize::from(thread)];
        let partition = me.partition;
        let step = |what| Step("thread", thread, what, partition);
        let mut next = state.clone();
        let at = usize::from(thread);
        let of = usize::from(partition);
        match me.at {
            At::CountDown => {
                next.unfinished -= 1;
                next.threads[at].at = if next.unfinished == 0 { At::WakeAll } else { At::Leave };
                each(step("counts down after"), next);
            }
            At::WakeAll => {
                next.wake_all();
                next.threads[at].at = At::Leave;
                each(step("wakes all after"), next);
            }
            At::Leave => {
                next.threads[at].inside = None;
                next.threads[at].at = At::ReadWord;
                if !self.is_off(Rule::NotifyFlush) {
                    next.notify_flush();
                }
                each(step("leaves"), next);
            }
            At::ReadWord => {
                let seen = state.partitions[of].owner;
                if matches!(seen, Owner::Revoked { from, .. } if from == thread)
                    && !state.is_expired
                    && !self.is_off(Rule::CompleteAtLeave)
                {
                    next.threads[at].seen = Some(seen);
                    next.threads[at].at = At::Assign;
                } else {
                    next.threads[at].after_leave();
                }
                each(step("has read the owner word of"), next);
            }
            At::Assign => {
                let seen = next.threads[at].seen.take();
                let to = state.partitions[of].owner.wanted();
                next.threads[at].lock = to;
                if seen != Some(state.partitions[of].owner) {
                    next.threads[at].at = At::ReadWord;
                } else if self.is_off(Rule::CompareExchange) {
                    next.threads[at].at = At::StoreWord;
                } else {
                    next.partitions[of].owner = Owner::Owned(to);
                    next.threads[at].at = At::Announce;
                }
                each(step("assigns"), next);
            }
            At::StoreWord => {
                next.partitions[of].owner = Owner::Owned(me.lock);
                next.threads[at].at = At::Announce;
                each(step("stores the owner word of"), next);
            }
            At::Announce => {
                self.announce(&mut next, of);
                next.threads[at].at = At::Wake;
                each(step("announces the new owner of"), next);
            }
            At::Wake => {
                self.wake_owner(&mut next, of, me.lock);
                next.threads[at].after_leave();
                each(step("wakes the new owner of"), next);
            }
            other => unreachable!("{other:?} does not belong to a leave"),
        }
    }

    // ---- after a change of the owner word

    pub fn announce(&self, state: &mut State, of: usize) {
        if state.partitions[of].has_lanes()
            && !self.is_off(Rule::AssignLanes)
            && !self.is_off(Rule::AssignWake)
        {
            state.partitions[of].is_ready = true;
        }
    }

    pub fn wake_owner(&self, state: &mut State, of: usize, owner: Index) {
        let is_due = state.partitions[of].is_ready || state.is_closing;
        if is_due && !self.is_off(Rule::AssignWake) {
            state.wake(owner);
        }
    }
}
