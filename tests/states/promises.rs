//! The promises that hold in each state, and the good ends.

use smallvec::SmallVec;

use super::positions::{
    At, CloserAt, DeadlineAt, FlusherAt, MoverAt, Producer, ProducerAt, Thread,
};
use super::state::{Index, LaneState, Partition, State, TYPES};
use super::world::{Hang, World};

impl World {
    /// Returns the promise that a state breaks.
    pub fn broken_promise(&self, state: &State) -> Option<&'static str> {
        if state.broken.is_some() {
            return state.broken;
        }
        for partition in 0..self.partitions {
            let is_inside =
                |thread: &&Thread| thread.works_inside() && thread.partition == partition;
            if state.threads.iter().filter(is_inside).count() > 1 {
                return Some("two threads are inside one partition");
            }
        }
        let inside: SmallVec<[Index; 4]> = state
            .threads
            .iter()
            .filter_map(|thread| match thread.at {
                At::Call => thread.in_flight?.lock,
                At::CallWithLetters => self.keeper.map(|keeper| keeper.lock),
                _ => None,
            })
            .collect();
        if (1..inside.len()).any(|at| inside[at..].contains(&inside[at - 1])) {
            return Some("two threads are inside one handler");
        }
        if inside.iter().any(|&lock| state.retired & 1 << lock != 0) {
            return Some("a thread is inside a removed handler");
        }
        // A batch may return to its lane after producers have filled the room that it left.
        let parked = if self.failures == [0; TYPES] { 0 } else { self.batch };
        let is_over = |its: &Partition| {
            its.queue.len() + its.counted() > self.bound + parked
                || its.stalled() > self.bound + self.batch
        };
        if state.partitions.iter().any(is_over) {
            return Some("a partition holds more than its bound");
        }
        let settled = |its: &Partition| its.settled.count_ones();
        if state.partitions.iter().map(settled).sum::<u32>() != u32::from(state.counted) {
            return Some("an item is counted twice, or not");
        }
        // Items that return after the cut-off of an expiring shutdown are abandoned.
        let is_cut_off = state.threads.iter().any(|thread| thread.is_cut_off);
        if !is_cut_off && !(0..self.partitions).all(|of| Self::accounts_for_all(state, of)) {
            return Some("an item is lost, or in two places");
        }
        if state.registry.as_ref().is_some_and(|registry| !registry.is_consistent()) {
            return Some("a place or a partition is not returned once");
        }
        None
    }

    /// Whether each item put into a partition is in exactly one place: counted, queued, held, with
    /// a thread, or a letter.
    fn accounts_for_all(state: &State, of: Index) -> bool {
        let its = &state.partitions[usize::from(of)];
        let mut seen = its.settled;
        let mut is_once = true;
        let mut see = |position: u8| {
            is_once &= seen & 1 << position == 0;
            seen |= 1 << position;
        };
        its.queue.iter().for_each(|item| see(item.position));
        for lane in its.lanes() {
            lane.tail.iter().for_each(|item| see(item.position));
            let runs = lane.state == LaneState::Running;
            // Items that a call has consumed or buried leave the job when it ends.
            let is_done = |at: u8| runs && (its.is_settled(at) || its.is_buried(at));
            let job = lane.job.iter().map(|item| item.position);
            job.filter(|&at| !is_done(at)).for_each(&mut see);
        }
        let in_flight = state.threads.iter().flat_map(|thread| &thread.letters);
        let letters = state.letters.items().iter().chain(in_flight);
        letters.filter(|(at, _)| *at == of).for_each(|&(_, position)| see(position));
        is_once && usize::try_from(seen.count_ones()) == Ok(its.put.len())
    }

    /// Whether all tasks are done, and all threads rest or have ended.
    pub fn has_ended_well(&self, state: &State) -> bool {
        let ends = self.closes && !self.is_stuck(state);
        let rests = if ends { At::Ended } else { At::Asleep };
        let at_rest = state.threads.iter().all(|it| it.at == rests || self.is_hung(it));
        let counts = !ends || Self::is_conserved(state);
        let is_handled = state.is_expired || self.is_handled(state) && Self::has_let_go(state);
        at_rest && counts && self.is_done(state) && is_handled
    }

    fn is_done(&self, state: &State) -> bool {
        // Producers of a type whose calls hang wait until the close.
        let is_over = |(producer, items): (&Producer, &&[(Index, Index)])| {
            items.get(usize::from(producer.next)).is_none_or(|&(_, kind)| {
                producer.at == ProducerAt::Wait && self.hang == Hang::Forever(kind) && !self.closes
            })
        };
        let all_put = state.producers.iter().zip(self.puts).all(is_over);
        let waits = self.is_stuck(state);
        let closed = if waits { CloserAt::Wait } else { CloserAt::Done };
        let is_moved = usize::from(state.moves) == self.moves.len() || self.closes;
        all_put
            && (is_moved && state.mover == MoverAt::Idle)
            && (!self.closes || state.closer == closed)
            && (!self.has_deadline || state.deadline == DeadlineAt::Done)
            && (!self.flushes || state.flusher == FlusherAt::Done)
            && usize::from(state.changes) == self.changes.len()
    }

    fn is_hung(&self, thread: &Thread) -> bool {
        let kind = thread.in_flight.map(|in_flight| in_flight.kind);
        thread.at == At::Call && kind.is_some_and(|kind| self.hang == Hang::Forever(kind))
    }

    /// Whether a shutdown waits forever, for a call that hangs.
    fn is_stuck(&self, state: &State) -> bool {
        !self.expires && state.threads.iter().any(|thread| self.is_hung(thread))
    }

    /// Whether no item is left that could be handled.
    fn is_handled(&self, state: &State) -> bool {
        let hung = match self.hang {
            Hang::Forever(kind) => Some(kind),
            _ => None,
        };
        let is_handled = |of: usize| {
            let partition = &state.partitions[of];
            let mut kinds = (0..).zip(&partition.put);
            self.may_linger(state, of)
                || kinds.all(|(at, &kind)| partition.is_settled(at) || hung == Some(kind))
        };
        (0..state.partitions.len()).all(is_handled)
    }

    /// Whether no type is left that could go, and all that have gone are forgotten.
    fn has_let_go(state: &State) -> bool {
        let waits = |of: usize| {
            let its = &state.partitions[of];
            usize::from(its.completed()) < its.put.len()
        };
        state.registry.as_ref().is_none_or(|registry| {
            let mut leaving = registry.known.iter().flatten().filter(|it| it.goal.is_some());
            leaving.all(|it| waits(usize::from(it.home)))
                && (registry.former.iter().all(Option::is_none)
                    || (0..state.partitions.len()).any(waits))
        })
    }

    /// After the end of a queue, whether every item is counted once, and none is left where a
    /// thread has ended.
    fn is_conserved(state: &State) -> bool {
        let put: usize = state.partitions.iter().map(|partition| partition.put.len()).sum();
        let is_empty = |partition: &Partition| partition.queue.is_empty() && partition.held() == 0;
        let has_ended = state.threads.iter().any(|thread| thread.at == At::Ended);
        usize::from(state.counted + state.abandoned) == put
            && (!has_ended || state.partitions.iter().all(is_empty))
    }
}
