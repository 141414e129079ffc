//! The supervisor: lets other threads take over from a drain thread that is held up in a handler.
//!
//! A handler may take seconds, or hang. Its thread is inside no partition then, so all its
//! partitions can move immediately. The supervisor, one thread per process, visits each queue with
//! several drain threads every `takeover_after` while the queue has turns. A thread that has made
//! no progress since the last visit is *away*: its partitions with work move to threads that are
//! not, even while the queue closes. A thread that is about to call a handler whose last call was
//! slow counts as away from then on, and moves its partitions itself.
//!
//! Visits stop when a queue has had no turn for a second; its next turn requests them again. The
//! supervisor calls no user code, so no queue can hold it up.
//!
//! The same thread also visits each queue for its [`watchdog`](crate::control::watchdog),
//! separately, and even if the queue is idle or has a single drain thread.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::control::drains;
use crate::control::log_helper::Line;
use crate::control::state::{Control, ControlState, IDLE_AFTER, Loan, Seen, SeenThread};
use crate::flow::handler::slow_calls::SLOW_CALL;
use crate::flow::partition::{Access, Partition};
use crate::flow::route::owner::Owner;
use crate::item::Item;
use crate::observe::STUCK_AFTER;
use crate::sync::{Arc, Duration, Instant, Ordering, Weak, fence};
use crate::threads::agenda::{Supervised, Visits};
use crate::threads::park::Signal;
use crate::threads::slots::{Reach, ThreadSlot};

/// A thread that has been in one call for longer than this may never return.
const LOST_AFTER: Duration = Duration::from_secs(5);

impl<T: Item> Supervised for Control<T> {
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let again = self.supervise().then_some(self.supervision.tick);
        Self::let_go(self);
        again
    }
}

/// Registers a queue. From now on its turns request visits.
pub(crate) fn register<T: Item>(control: &Arc<Control<T>>) {
    if control.supervision.is_on {
        let queue: Weak<Control<T>> = Arc::downgrade(control);
        control.flow.arming.register(queue);
    }
}

impl<T: Item> Control<T> {
    fn supervise(self: &Arc<Self>) -> bool {
        let seen = &mut *self.supervision.seen.lock();
        if self.flow.ending.is_expired() {
            return false;
        }
        let had_turns = self.note_progress(seen);
        if seen.is_any_away() {
            self.take_over(seen);
        }
        self.give_back(seen);
        self.dismiss_spares(seen);
        self.flow.revise_slow();
        self.report(seen);
        seen.idle_ticks = if had_turns { 0 } else { seen.idle_ticks + 1 };
        let is_idle = seen.idle_ticks >= self.supervision.ticks(IDLE_AFTER)
            && seen.loans.is_empty()
            && !seen.is_any_away()
            && !seen.threads[self.flow.threads.len()..].iter().any(|spare| spare.is_running)
            && !self.flow.slow_calls.has_tickets();
        !is_idle || !self.disarm(seen)
    }

    /// Updates which threads are away. Returns whether there were turns since the last tick.
    fn note_progress(&self, seen: &mut Seen) -> bool {
        let mut had_turns = false;
        for (thread, slot) in seen.threads.iter_mut().zip(self.flow.threads.iter()) {
            let (turns, cycles) = (slot.turns(), slot.cycles());
            had_turns |= turns != thread.turns;
            thread.is_running = slot.is_running() && !slot.is_dismissed();
            let is_awake = thread.is_running && !slot.waker.is_asleep();
            // A thread woken since the last tick may be waiting for the interpreter, or for a core.
            let was_awake = std::mem::replace(&mut thread.is_awake, is_awake);
            let stays = was_awake && is_awake && (turns, cycles) == (thread.turns, thread.cycles);
            // Outside a call, the task of a pool may be waiting for a worker.
            let is_held_up =
                stays && (self.flow.pool.is_none() || slot.tally.counts().calling.is_some());
            thread.is_away = is_held_up || slot.in_slow_call();
            (thread.turns, thread.cycles) = (turns, cycles);
            thread.here_ticks = if thread.is_away { 0 } else { thread.here_ticks + 1 };
            thread.lost *= usize::from(thread.is_away);
            let since = if thread.is_away { away_for(slot) } else { Duration::ZERO };
            thread.is_long = since > SLOW_CALL || slot.in_slow_call();
            slot.set_reach(match thread.is_away {
                false => Reach::Here,
                true if since > LOST_AFTER => Reach::Lost,
                true => Reach::Away,
            });
        }
        had_turns
    }

    /// Ends the visits. Returns `false` if they must continue after all.
    fn disarm(&self, seen: &Seen) -> bool {
        self.flow.arming.clear();
        let is_idle = self.flow.threads.iter().zip(&seen.threads).all(|(slot, thread)| {
            slot.turns() == thread.turns && slot.tally.counts().calling.is_none()
        });
        // If a thread has already armed it, that thread has requested a visit.
        is_idle || !self.flow.arming.raise(Visits::Ticks)
    }

    // ---- the log

    /// Logs the handlers that have held up a thread for a second, if others had to take over or
    /// none could.
    fn report(&self, seen: &Seen) {
        let now = Instant::now();
        let spares =
            seen.threads[self.flow.threads.len()..].iter().filter(|spare| spare.is_running);
        let (spares, most) = (spares.count(), self.flow.threads.spares.most());
        let stuck_in = |thread: usize| {
            let (calling, since) = self.flow.threads[thread].tally.counts().calling?;
            let took = now.saturating_duration_since(since);
            (took >= STUCK_AFTER).then_some((calling, took))
        };
        let running = || (0..seen.threads.len()).filter(|&thread| seen.threads[thread].is_running);
        let is_alone = spares == most && running().all(|thread| stuck_in(thread).is_some());
        for (index, thread) in seen.threads.iter().enumerate().filter(|(_, each)| each.is_long) {
            let Some((calling, took)) = stuck_in(index) else { continue };
            let lost =
                thread.lost.max(seen.loans.values().filter(|loan| loan.from == index).count());
            let handler = self.name_of(&calling);
            if (lost == 0 && !is_alone)
                || self.supervision.log.items_due((index, handler.clone()), 1, now).is_none()
            {
                continue;
            }
            let (queue, seconds) = (&self.flow.name, took.as_secs());
            let outcome = if is_alone {
                "no other is free: raise threads or spare_threads".to_owned()
            } else {
                let spare = if spares > 0 {
                    format!("; {spares} of {most} spare threads run")
                } else {
                    String::new()
                };
                format!("other threads took over {lost} of its partitions{spare}")
            };
            let line = Line::Warning(format!(
                "queue {queue}: handler {handler} has been in one call for {seconds} s on drain \
                 thread {index}; {outcome}"
            ));
            self.log_helper.log(line);
        }
    }
}

/// Returns how long a thread that is away has been in its call. Outside a call, it is assumed to be
/// stuck.
fn away_for(slot: &ThreadSlot) -> Duration {
    slot.tally.counts().calling.map_or(STUCK_AFTER, |(_, since)| since.elapsed())
}

// Take-over: moves partitions away from drain threads that are held up, and back.

/// How long a spare thread without a partition stays.
const SURPLUS: Duration =
    if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };

impl<T: Item> Control<T> {
    /// Moves partitions with work from threads that are away to the others.
    pub(crate) fn take_over(self: &Arc<Self>, seen: &mut Seen) {
        // A caller that registers a handler may hold the lock for long, and the next tick is soon.
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
        // A handler that no thread is inside may be waiting for its last call, or for dead letters.
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
            // A thread that may return soon keeps its share, or it would have nothing to do.
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

    /// Starts a spare thread if one is left and the queue has not ended. Returns its number.
    fn start_spare(self: &Arc<Self>) -> Option<usize> {
        let mut spares = self.flow.threads.spares.numbers();
        let thread = spares.find(|&thread| !self.flow.threads[thread].is_running())?;
        if !self.flow.ending.running().count_in_if_any() {
            return None;
        }
        self.flow.threads[thread].set_running(true);
        if drains::start_spare(self, thread).is_err() {
            // The system has no thread left; the next visit tries again.
            self.flow.threads[thread].set_running(false);
            self.flow.ending.running().begin_end();
            self.flow.ending.running().count_out();
            return None;
        }
        Some(thread)
    }

    /// Gives partitions back to threads that have been reachable for a while.
    pub(crate) fn give_back(&self, seen: &mut Seen) {
        let Seen { threads, loans, .. } = seen;
        if loans.is_empty() {
            return;
        }
        // If all work is slow, moves disturb nothing, and spare threads have little to do.
        let (spares, idle) = (self.flow.threads.len(), self.supervision.ticks(IDLE_AFTER));
        let is_slow = !self.flow.has_quick_work();
        let is_due = |loan: &Loan| {
            let here_ticks = threads[loan.from].here_ticks;
            here_ticks >= idle || is_slow && loan.to >= spares && here_ticks > 0
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

    /// Whether a balancer runs periodically, and so places partitions that were taken over.
    fn is_planned_anew(&self) -> bool {
        self.balancing.is_some() && !self.flow.config.rebalance_interval.is_zero()
    }

    /// Forgets loans after a plan, which has placed these partitions, except those of spare
    /// threads.
    pub(crate) fn forget_loans(&self) {
        let first_spare = self.flow.threads.len();
        self.supervision.seen.lock().loans.retain(|_, loan| loan.to >= first_spare);
    }

    /// Whether a partition has work for its owner.
    fn has_work(&self, partition: &Partition<T>, closing: bool) -> bool {
        if partition.is_finished() {
            return false;
        }
        // Items queued behind a partition's only lane wait for that lane.
        let is_blocked = partition.has_lanes() && self.flow.has_one_type(partition);
        partition.waits_for_owner()
            || partition.is_ready() && !is_blocked
            || closing && !partition.waits_for_calls()
    }

    /// Whether another thread could do the work of a partition: a ready one may have no item.
    /// Checked only if the owner is away, because it locks the gate.
    pub(crate) fn is_held_up(partition: &Partition<T>, closing: bool) -> bool {
        closing || partition.waits_for_owner() || partition.has_queued()
    }

    /// Dismisses spare threads that have had no partition for a while.
    fn dismiss_spares(&self, seen: &mut Seen) {
        let first = self.flow.threads.len();
        if !seen.threads[first..].iter().any(|spare| spare.is_running) {
            return;
        }
        let mut owns = vec![false; seen.threads.len()];
        for partition in self.flow.route.partitions() {
            // Only this thread gives partitions to spare threads. A partition that is moving counts
            // for both threads: its old owner may still be in a turn.
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
                // From here on it gets no partition, and is not restarted before it has left.
                spare.is_running = false;
                // SeqCst: pairs with the fence in `Sleeper::prepare`.
                fence(Ordering::SeqCst);
                slot.waker.wake(Signal::Pressure);
            }
        }
    }

    /// Returns the owner of each partition for a balancer, which does not plan for spare threads.
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
