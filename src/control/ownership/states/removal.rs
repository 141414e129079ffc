//! The steps of a caller that removes or replaces the handler of a type.

use super::drain::Each;
use super::positions::{CloserAt, RemoverAt};
use super::state::{Index, LaneState, State};
use super::world::{Step, World};
use crate::rules::Rule;

impl World {
    pub fn remover_steps(
        &self,
        state: &State,
        kind: Index,
        replacement: Option<Index>,
        each: Each<'_>,
    ) {
        let mut next = state.clone();
        let step = |what, partition| Step("removal", 0, what, partition);
        let after = |partition: Index| {
            let is_last = partition + 1 == self.partitions;
            if is_last { RemoverAt::Pend } else { RemoverAt::Recall(partition + 1) }
        };
        match state.remover {
            RemoverAt::Begin => {
                if state.is_controlled {
                    return;
                }
                next.is_controlled = true;
                let owes = self.lingers && replacement.is_none();
                if state.closer != CloserAt::Begin {
                    // Refused.
                    next.is_controlled = false;
                    next.remover = RemoverAt::Done;
                } else if owes {
                    next.remover = RemoverAt::Owe(0);
                } else {
                    Self::publish(&mut next, kind, replacement);
                }
                each(step("begins, before", 0), next);
            }
            RemoverAt::Owe(partition) => {
                if state.partitions[usize::from(partition)].is_locked {
                    return;
                }
                self.owe(&mut next, usize::from(partition), kind);
                let is_last = partition + 1 == self.partitions;
                next.remover =
                    if is_last { RemoverAt::Publish } else { RemoverAt::Owe(partition + 1) };
                each(step("leaves what lingers to the handler, in", partition), next);
            }
            RemoverAt::Publish => {
                Self::publish(&mut next, kind, replacement);
                each(step("publishes, before", 0), next);
            }
            RemoverAt::Recall(partition) => {
                let its = &mut next.partitions[usize::from(partition)];
                next.remover = after(partition);
                if !self.is_off(Rule::RecallType) {
                    if its.is_locked {
                        return;
                    }
                    if let Some(lane) = its.lanes[usize::from(kind)].as_mut()
                        && lane.state != LaneState::Running
                    {
                        lane.state = LaneState::Ready;
                        next.remover = RemoverAt::Bit(partition);
                    }
                }
                each(step("recalls the jobs of", partition), next);
            }
            RemoverAt::Bit(partition) => {
                self.set_bit(&mut next, usize::from(partition));
                next.remover = RemoverAt::Wake(partition);
                each(step("sets the bit of", partition), next);
            }
            RemoverAt::Wake(partition) => {
                self.wake_inside(&mut next, usize::from(partition));
                next.remover = after(partition);
                each(step("wakes who is inside of", partition), next);
            }
            RemoverAt::Pend => {
                next.retires = true;
                next.is_controlled = false;
                let mut at_once = next.clone();
                if self.watch_retired(&mut at_once) {
                    // Without an `on_close`.
                    (at_once.retires, at_once.has_retired) = (false, true);
                    at_once.remover = RemoverAt::Done;
                    each(step("sees no thread at the desk of type", kind), at_once);
                }
                next.wake_all();
                next.remover = RemoverAt::Wait;
                each(step("retires the handler of type", kind), next);
            }
            RemoverAt::Wait => {
                let waits = !self.is_off(Rule::WaitForRetired);
                if !waits || !state.retires || state.is_expired {
                    next.has_retired |= !state.is_expired;
                    next.remover = RemoverAt::Done;
                    each(step("returns, without the handler of type", kind), next);
                }
            }
            RemoverAt::Done => {}
        }
    }

    /// Under the control lock and that of the lanes: what lingers, or would after a call.
    fn owe(&self, state: &mut State, of: usize, kind: Index) {
        let its = &mut state.partitions[of];
        let queued = if self.is_mixed { 0 } else { its.queue.len() };
        let Some(lane) = its.lanes[usize::from(kind)].as_mut() else { return };
        let has_failed = lane.state != LaneState::Running && !lane.job.is_empty();
        let items = lane.tail.len() + queued;
        if !has_failed && (1..self.batch).contains(&items) {
            if !self.is_off(Rule::OweLingering) {
                lane.owed = Index::try_from(items).expect("few items");
            }
            for item in lane.tail.iter().chain(&its.queue[..queued]) {
                its.owed |= 1 << item.position;
            }
        }
    }

    fn publish(state: &mut State, kind: Index, replacement: Option<Index>) {
        state.handlers[usize::from(kind)] = replacement;
        state.remover = RemoverAt::Recall(0);
    }
}
