//! The steps of a producer, which waits while its partition is full.

use super::drain::Each;
use super::positions::{Producer, ProducerAt};
use super::registry::Origin;
use super::rules::Rule;
use super::state::{Index, Item, State};
use super::world::{Step, World};

impl World {
    pub fn producer_steps(&self, state: &State, number: usize, each: Each<'_>) {
        let producer = &state.producers[number];
        let Some(&(planned, kind)) = self.puts[number].get(usize::from(producer.next)) else {
            return;
        };
        // Where types come and go, the plan only decides where items of unknown types go.
        let partition = producer.route.map_or(planned, |route| route.partition);
        let of = usize::from(partition);
        let who = Index::try_from(number).expect("few producers");
        let step = |what| Step("producer", who, what, partition);
        let mut next = state.clone();
        match producer.at {
            ProducerAt::LookUp => {
                next.producers[number].route = Some(Self::look_up(state, number, kind, planned));
                next.producers[number].at = ProducerAt::Put;
                each(step("looks its type up, before"), next);
            }
            ProducerAt::Put => {
                self.put(&mut next, number, of, kind);
                each(step("puts into"), next);
            }
            ProducerAt::Wake => {
                let inside = state.partitions[of].owner.inside();
                next.wake(inside);
                self.end_put(&mut next.producers[number]);
                each(step("wakes the owner of"), next);
            }
            ProducerAt::Press => {
                next.wake(state.partitions[of].owner.inside());
                next.producers[number].at = ProducerAt::Register;
                each(step("presses the owner of"), next);
            }
            ProducerAt::Register => {
                next.producers[number].waits = true;
                next.producers[number].is_notified = false;
                next.producers[number].at = ProducerAt::CheckAgain;
                each(step("registers at"), next);
            }
            ProducerAt::CheckAgain => {
                let waits = self.is_full(state, of, kind) && !state.partitions[of].is_closed;
                next.producers[number].waits = waits;
                next.producers[number].at = if waits { ProducerAt::Wait } else { ProducerAt::Put };
                each(step("checks again"), next);
            }
            ProducerAt::Wait => {
                if producer.is_notified {
                    next.producers[number].waits = false;
                    next.producers[number].at = ProducerAt::Put;
                    each(step("is notified of room in"), next);
                } else {
                    self.stall_steps(state, of, step("marks a type as stalled in"), each);
                }
            }
        }
    }

    /// Puts the first item of the first producer, before all else.
    pub fn put_early(&self, state: &mut State) {
        let (partition, kind) = self.puts[0][0];
        let origin = Origin::new(0, 0, None);
        let its = &mut state.partitions[usize::from(partition)];
        its.queue.push(Item { kind, position: 0, run: 0, origin });
        its.put.push(kind);
        its.open = Index::from(self.segment() > 1);
        its.is_mixed = !self.is_off(Rule::MarkMixed);
        its.is_ready = true;
        state.producers[0].next = 1;
    }

    /// Puts an item, under the gate.
    fn put(&self, state: &mut State, number: usize, of: usize, kind: Index) {
        let is_full = self.is_full(state, of, kind) && !self.is_off(Rule::Bound);
        let partition = &mut state.partitions[of];
        let producer = &mut state.producers[number];
        if partition.is_closed && !self.is_off(Rule::ClosedFlag) {
            self.end_put(producer);
            return;
        }
        if is_full && self.lingers {
            (partition.is_wanted, partition.is_ready) = (true, true);
            producer.at = ProducerAt::Press;
            return;
        } else if is_full {
            producer.at = ProducerAt::Register;
            return;
        }
        if producer.route.is_some_and(|route| !route.is_known) && !self.is_off(Rule::MarkMixed) {
            partition.is_mixed = true;
        }
        let was_empty = partition.queue.is_empty();
        let position = Index::try_from(partition.put.len()).expect("few items");
        let origin = producer.route.map(|route| route.origin).unwrap_or_default();
        partition.queue.push(Item { kind, position, run: 0, origin });
        partition.put.push(kind);
        partition.open = (partition.open + 1) % Index::try_from(self.segment()).expect("few items");
        // In a partition with suppressed notifications, only the put that fills the batch notifies.
        let was_suppressed = position < partition.notify_at;
        let is_over = position + 1 == partition.notify_at && !self.is_off(Rule::EndSuppression);
        if is_over || was_empty && !was_suppressed {
            partition.is_ready = true;
            producer.at = ProducerAt::Wake;
        } else {
            self.end_put(producer);
        }
    }

    fn end_put(&self, producer: &mut Producer) {
        producer.next += 1;
        producer.at = self.first_step();
        producer.route = None;
    }

    pub fn first_step(&self) -> ProducerAt {
        if self.homes.is_some() { ProducerAt::LookUp } else { ProducerAt::Put }
    }

    fn is_full(&self, state: &State, of: usize, kind: Index) -> bool {
        let partition = &state.partitions[of];
        let used = partition.put.len() - usize::from(partition.released);
        used >= self.bound || partition.stalled[usize::from(kind)]
    }

    /// Lets a waiting producer mark a type whose job has waited for long as stalled.
    fn stall_steps(&self, state: &State, of: usize, step: Step, each: Each<'_>) {
        let partition = &state.partitions[of];
        let used = partition.put.len() - usize::from(partition.released);
        if !self.has_several_types(partition)
            || self.is_off(Rule::MarkStalled)
            || partition.is_locked
            || used < self.bound
        {
            return;
        }
        for kind in 0..state.partitions[of].lanes.len() {
            let mut next = state.clone();
            let lane = next.partitions[of].lanes[kind].as_mut();
            let Some(lane) = lane.filter(|lane| lane.held() > 0 && !lane.is_stalled) else {
                continue;
            };
            lane.is_stalled = true;
            self.make_room(&mut next, of, true);
            each(step, next);
        }
    }
}
