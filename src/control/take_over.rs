//! Take-over: partitions move away from drain threads that are held up, and back.

use crate::control::ownership::Owner;
use crate::control::scheduler::Signal;
use crate::control::scheduler::dedicated;
use crate::flow::partition::Partition;
use crate::flow::partition::gate::Access;
use crate::item::Item;
use crate::shared::{Control, ControlState, Loan, QUIET, Seen, SeenThread};
use crate::sync::{Arc, Duration, Ordering, fence};

/// A spare thread leaves when it has had no partition for this long.
const SURPLUS: Duration =
    if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };

impl<T: Item> Control<T> {
    /// Moves what threads that are away would serve to the others.
    pub(super) fn take_over(self: &Arc<Self>, seen: &mut Seen) {
        // A caller that registers may hold the lock for long; the next tick comes soon.
        let Some(mut state) = self.state.try_lock() else { return };
        if self.flow.ending.is_expired_under_lock() {
            return;
        }
        let closing = state.access == Access::Closed;
        let mut load = vec![0_usize; seen.threads.len()];
        let mut held_up = Vec::new();
        for partition in self.flow.route.partitions().filter(|each| self.has_work(each, closing)) {
            match self.flow.route.owner(partition.index).load() {
                Owner::Owned(owner) if seen.is_away(owner) => {
                    if Self::is_held_up(partition, closing) {
                        held_up.push((partition.index, owner));
                        load[owner] += 1;
                    }
                }
                owner => load[owner.wanted()] += 1,
            }
        }
        let is_quick = |&(partition, _): &(usize, usize)| {
            let partition = self.flow.route.partition(partition);
            !(partition.is_slow() && self.flow.has_one_type(partition))
        };
        // A handler that no thread is inside may wait for its last call, or for dead letters.
        let needs_spare = seen.are_all_long()
            && (held_up.iter().any(is_quick)
                || self.flow.has_ended_retirement()
                || self.flow.has_dead_letters());
        if (needs_spare || self.flow.needs_spare_for_slow())
            && let Some(spare) = self.start_spare()
        {
            seen.threads[spare] = SeenThread { is_running: true, ..SeenThread::default() };
        }
        for (partition, owner) in held_up {
            let here = (0..load.len()).filter(|&thread| seen.is_here(thread));
            let Some(to) = here.min_by_key(|&thread| load[thread]) else { break };
            // A thread that may return soon keeps its share: it could do nothing otherwise.
            let levels = load[to] == 0 || load[to] + 1 < load[owner];
            if (levels || seen.threads[owner].is_long) && self.move_to(&mut state, partition, to) {
                load[to] += 1;
                load[owner] -= 1;
                seen.threads[owner].lost += 1;
                self.supervision.count_taken_over();
                if !self.is_planned_anew() || to >= self.flow.threads.len() {
                    seen.loans.entry(partition).or_insert(Loan { from: owner, to }).to = to;
                }
            }
        }
    }

    /// Starts a spare thread, if one is left and the queue has not ended. Returns its number.
    fn start_spare(self: &Arc<Self>) -> Option<usize> {
        let mut spares = self.flow.threads.spares.numbers();
        let thread = spares.find(|&thread| !self.flow.threads[thread].is_running())?;
        if !self.flow.ending.running().count_in_if_any() {
            return None;
        }
        self.flow.threads[thread].set_running(true);
        if dedicated::start_spare(self, thread).is_err() {
            // The system has no thread left; the next visit tries again.
            self.flow.threads[thread].set_running(false);
            self.flow.ending.running().begin_end();
            self.flow.ending.running().count_out();
            return None;
        }
        Some(thread)
    }

    /// Gives partitions back whose thread has been reachable for a while.
    pub(super) fn give_back(&self, seen: &mut Seen) {
        let Seen { threads, loans, .. } = seen;
        if loans.is_empty() {
            return;
        }
        // Where all work is slow, nothing is disturbed by moves, and spare threads do little.
        let (spares, quiet) = (self.flow.threads.len(), self.supervision.ticks(QUIET));
        let is_slow = !self.flow.has_quick_work();
        let is_due = |loan: &Loan| {
            let here_ticks = threads[loan.from].here_ticks;
            here_ticks >= quiet || is_slow && loan.to >= spares && here_ticks > 0
        };
        if !loans.values().any(is_due) {
            return;
        }
        let Some(mut state) = self.state.try_lock() else { return };
        loans.retain(|&partition, loan| {
            if is_due(loan) && state.access == Access::Open {
                self.end_loan(&mut state, partition, *loan);
            }
            state.access == Access::Open && !is_due(loan)
        });
    }

    fn end_loan(&self, state: &mut ControlState, partition: usize, loan: Loan) {
        if self.flow.route.owner(partition).load().wanted() == loan.to {
            self.move_to(state, partition, loan.from);
        }
    }

    /// Whether a balancer runs without a request, and finds a place for what was taken over.
    fn is_planned_anew(&self) -> bool {
        self.balancing.is_some() && !self.flow.config.rebalance_interval.is_zero()
    }

    /// After a plan: what was taken over stays where the plan has it, unless a spare thread has it.
    pub(crate) fn forget_loans(&self) {
        let first_spare = self.flow.threads.len();
        self.supervision.seen.lock().loans.retain(|_, loan| loan.to >= first_spare);
    }

    /// Whether the owner of a partition has something to do in it.
    fn has_work(&self, partition: &Partition<T>, closing: bool) -> bool {
        if partition.is_finished() {
            return false;
        }
        // What is queued behind the only lane of a partition waits for the lane.
        let is_blocked = partition.has_lanes() && self.flow.has_one_type(partition);
        partition.waits_for_owner()
            || partition.is_ready() && !is_blocked
            || closing && !partition.waits_for_calls()
    }

    /// Whether another thread could do the work in a partition that seems to have some: it may be
    /// ready without an item. Not asked of all partitions, because it locks the gate.
    pub(crate) fn is_held_up(partition: &Partition<T>, closing: bool) -> bool {
        closing || partition.waits_for_owner() || partition.has_queued()
    }

    /// Lets spare threads go that have had no partition for a while.
    pub(super) fn dismiss_spares(&self, seen: &mut Seen) {
        let first = self.flow.threads.len();
        if !seen.threads[first..].iter().any(|spare| spare.is_running) {
            return;
        }
        let mut owns = vec![false; seen.threads.len()];
        for partition in self.flow.route.partitions() {
            // Only this thread gives partitions to spare threads. A partition on its way there
            // counts as well: its old owner may still be in a turn.
            let owner = self.flow.route.owner(partition.index).load();
            (owns[owner.inside()], owns[owner.wanted()]) = (true, true);
        }
        for (thread, spare) in seen.threads.iter_mut().enumerate().skip(first) {
            spare.surplus_ticks = if owns[thread] || spare.is_away || !spare.is_running {
                0
            } else {
                spare.surplus_ticks + 1
            };
            if spare.surplus_ticks >= self.supervision.ticks(SURPLUS) {
                let slot = &self.flow.threads[thread];
                slot.dismiss();
                // It gets no partition from here on, and is not started again before it has left.
                spare.is_running = false;
                // SeqCst: pairs with the fence in `Sleeper::prepare`.
                fence(Ordering::SeqCst);
                slot.waker.wake(Signal::Pressure);
            }
        }
    }

    /// The owner of each partition as a balancer sees it, which plans for no spare thread.
    pub(crate) fn planned_owners(&self, partitions: usize) -> Vec<usize> {
        let mut owners: Vec<usize> = (0..partitions)
            .map(|partition| self.flow.route.owner(partition).load().wanted())
            .collect();
        if owners.iter().any(|&owner| owner >= self.flow.threads.len()) {
            let seen = self.supervision.seen.lock();
            for (partition, owner) in owners.iter_mut().enumerate() {
                let home = || seen.loans.get(&partition).map_or(0, |loan| loan.from);
                *owner = if *owner < self.flow.threads.len() { *owner } else { home() };
            }
        }
        owners
    }
}
