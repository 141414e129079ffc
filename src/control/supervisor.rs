//! The supervisor: other threads take over from a drain thread that is held up in a handler.
//!
//! A handler may take seconds, or hang. Its thread is inside no partition meanwhile, so that all it
//! owns can move immediately. The supervisor, one thread of the process, visits each queue with
//! several drain threads every `takeover_after` while it has turns. A thread that has made no
//! progress since the last visit is *away*: its partitions that have something to do go to threads
//! that are not, also while the queue closes (`take_over.rs`). A thread that is about to call a
//! handler whose last call was slow is away from then on, and sees to this itself.
//!
//! A queue that has had no turn for a second is visited no more; its next turn asks for visits
//! again. The supervisor calls no user code, so that no queue can hold it up.
//!
//! The same thread visits each queue for its [`watchdog`](super::watchdog), in separate visits:
//! also one with a single drain thread, and one that is idle.

use crate::control::agenda::{Supervised, Visits};
use crate::control::log_helper::Line;
use crate::control::slow_calls::SLOW_CALL;
use crate::control::thread_slots::{Reach, ThreadSlot};
use crate::item::Item;
use crate::observe::STUCK_AFTER;
use crate::shared::{Control, QUIET, Seen};
use crate::sync::{Arc, Duration, Instant, Weak};

/// A thread that has been in one call for longer may never return.
const LOST_AFTER: Duration = Duration::from_secs(5);

impl<T: Item> Supervised for Control<T> {
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let again = self.supervise().then_some(self.supervision.tick);
        Self::let_go(self);
        again
    }
}

/// Registers a queue, whose turns ask for visits from now on.
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
        seen.quiet_ticks = if had_turns { 0 } else { seen.quiet_ticks + 1 };
        let is_quiet = seen.quiet_ticks >= self.supervision.ticks(QUIET)
            && seen.loans.is_empty()
            && !seen.is_any_away()
            && !seen.threads[self.flow.threads.len()..].iter().any(|spare| spare.is_running)
            && !self.flow.slow_calls.has_tickets();
        !is_quiet || !self.disarm(seen)
    }

    /// Finds out which threads are away. Returns whether there were turns since the last tick.
    fn note_progress(&self, seen: &mut Seen) -> bool {
        let mut had_turns = false;
        for (thread, slot) in seen.threads.iter_mut().zip(self.flow.threads.iter()) {
            let (turns, cycles) = (slot.turns(), slot.cycles());
            had_turns |= turns != thread.turns;
            thread.is_running = slot.is_running() && !slot.is_dismissed();
            let is_awake = thread.is_running && !slot.waker.is_asleep();
            // One that was woken since the last tick may wait for the interpreter, or for a core.
            let was_awake = std::mem::replace(&mut thread.is_awake, is_awake);
            let stays = was_awake && is_awake && (turns, cycles) == (thread.turns, thread.cycles);
            // Without a call, the task of a pool may wait for a worker.
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
        // If it is armed already, the thread that did so has asked for a visit.
        is_idle || !self.flow.arming.raise(Visits::Ticks)
    }

    // ---- the log

    /// Logs which handler holds a thread up, once it has for a second and others had to take over.
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

/// For how long a thread that is away has been in its call. If it is elsewhere, it may not return
/// soon.
fn away_for(slot: &ThreadSlot) -> Duration {
    slot.tally.counts().calling.map_or(STUCK_AFTER, |(_, since)| since.elapsed())
}
