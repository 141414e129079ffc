//! Close and expiry: how a queue ends. The steps are rules 13 and 14 of `flow/ownership/README.md`.

use crate::control::log_helper::patience;
use crate::control::rebalancer;
use crate::control::state::Control;
use crate::error::FlushError;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::partition::{Access, Partition};
use crate::item::{Item, counted};
use crate::sync::{Arc, Instant, OnceLock};
use crate::threads::context::on_drain_thread;
use crate::threads::waits::{CHECK_EVERY, Pause, Waiting, Wish, shorter, slice};

impl<T: Item> Control<T> {
    /// Restricts who may put items in, and stops growth. Returns `false` if access was already as
    /// narrow.
    pub(crate) fn restrict(&self, access: Access) -> bool {
        let mut state = self.state.lock();
        if state.access >= access {
            return false;
        }
        state.access = access;
        if access == Access::Closed {
            self.flow.ending.set_unfinished(self.flow.route.partition_count());
        }
        // Under each gate: a put is either in before this, or refused.
        for partition in self.flow.route.partitions() {
            partition.restrict(access);
        }
        true
    }

    /// Closes the queue to all but drain threads, ahead of a shutdown with this `deadline`.
    pub(crate) fn close_to_outside(&self, deadline: Option<Instant>) {
        self.restrict(Access::DrainThreads);
        self.flow.ending.deadlines.announce(deadline);
        self.publish_news();
    }

    /// Closes the queue and lets the drain threads end, without waiting. Returns `false` if it was
    /// already closed.
    pub(crate) fn close(&self) -> bool {
        let closes = self.restrict(Access::Closed);
        if closes {
            self.flow.ending.publish_closing();
            self.flow.threads.wake_all();
            if self.balancing.is_some() {
                rebalancer::unregister(self);
            }
        }
        closes
    }

    /// Makes drain threads check the deadlines again: one may be earlier than they knew.
    fn publish_news(&self) {
        self.flow.ending.deadlines.publish_news();
        self.flow.threads.wake_all();
    }

    /// Closes the queue and waits for the drain threads to end, but not for the log. Returns the
    /// number of abandoned items.
    pub(crate) fn end<P: Pause>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<u64, P::Interrupt> {
        let _time = self.flow.ending.deadlines.begin(deadline);
        if !self.close() && deadline.is_some() {
            self.publish_news();
        }
        if self.is_inline() {
            self.end_inline(deadline, pause)?;
        }
        // A drain thread waits only if the wait can end: not for its own queue, a queue that needs
        // the handler it is in, or handlers that wait for that handler.
        let may_wait = !self.flow.would_wait_for_itself();
        if may_wait && let Ok(_compensation) = self.flow.compensate() {
            let waiting = Waiting::begin(self.flow.clone(), Wish::End);
            while !self.flow.ending.running().is_empty() {
                if let Some(circle) = waiting.as_ref().and_then(Waiting::circle) {
                    let name = &self.flow.name;
                    self.flow.warn(format!(
                        "queue {name}: a shutdown from a handler did not wait, because it would \
                         never have ended: {circle}"
                    ));
                    break;
                }
                let over = self.flow.ending.is_expired();
                if over || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    self.expire();
                    break;
                }
                let check_every = waiting.as_ref().map(|_| CHECK_EVERY);
                pause.pause(&mut |limit| {
                    let is_over = || self.flow.ending.is_expired();
                    let limit = shorter(slice(limit, deadline), check_every);
                    self.flow.ending.running().wait(limit, is_over);
                })?;
            }
        }
        Ok(self.state.lock().abandoned)
    }

    /// Expires the queue: items that are not settled by now count as abandoned, whatever happens to
    /// them later. Returns their number.
    pub(crate) fn expire(&self) -> u64 {
        let mut state = self.state.lock();
        if self.flow.ending.is_expired_under_lock() {
            return state.abandoned;
        }
        let settled: u64 = self.flow.threads.iter().map(|slot| slot.tally.expire()).sum();
        let produced: u64 = self.flow.route.partitions().map(Partition::pushed_under_gate).sum();
        state.abandoned = produced - settled;
        let (calls, left) = (self.long_calls(Instant::now()), self.partitions_left());
        self.flow.ending.expire();
        let abandoned = state.abandoned;
        drop(state);
        self.flow.threads.wake_all();
        self.flow.ending.running().notify();
        self.flow.flushes.notify();
        self.flow.retirements.end_all();
        self.flow.host.note_abandoned();
        if abandoned == 0 && !self.flow.ending.running().is_empty() {
            let name = &self.flow.name;
            self.flow.warn(format!(
                "queue {name}: shutdown ran out of time while handlers were closing{}",
                self.describe(&calls)
            ));
        }
        if abandoned > 0 {
            let (name, items) = (&self.flow.name, counted(abandoned, "item"));
            // After the lock is released: this may drop the last reference to removed handlers.
            let places = self.places(&left);
            self.flow.warn(format!(
                "queue {name}: shutdown ran out of time and abandoned {items}{places}{}",
                self.describe(&calls)
            ));
        }
        // A drain thread logs these when it ends, which one that hangs never does.
        for line in self.flow.dispatch_log.take_rest(&self.flow.name) {
            self.flow.warn(line);
        }
        abandoned
    }
}

// Flushes: threads that wait until what was accepted has been handled.

impl<T: Item> Control<T> {
    /// Whether all accepted items have been handled. If a flush is waiting, ends lingering.
    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn is_all_handled(&self) -> bool {
        // No short circuit: every partition must stop lingering.
        let open =
            self.flow.route.partitions().filter(|it| it.begin_flush() > it.completed()).count();
        let is_settled = |it: Arc<DeadLetterBox<T>>| it.settled() >= it.posted();
        open == 0 && self.flow.dead_letters.with_letters().into_iter().all(is_settled)
    }

    /// See `BatchQueue::flush`.
    pub(crate) fn flush<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<bool, FlushError<P::Interrupt>> {
        if on_drain_thread() {
            return Err(FlushError::FromDrainThread);
        }
        let _flushing = self.flow.flushes.begin();
        // Read under each gate: an item whose produce returned before this call is counted.
        let goals: Vec<_> = self
            .flow
            .route
            .partitions()
            .map(|partition| (partition, partition.begin_flush()))
            .collect();
        let settled = || goals.iter().all(|(partition, goal)| partition.completed() >= *goal);
        // Once the items are settled, their letters are in boxes, which are served in order.
        let letters = OnceLock::new();
        let reached = || {
            let goal = |letter_box: Arc<DeadLetterBox<T>>| (letter_box.posted(), letter_box);
            let goals = || -> Vec<_> {
                self.flow.dead_letters.with_letters().into_iter().map(goal).collect()
            };
            settled() && letters.get_or_init(goals).iter().all(|(goal, it)| it.settled() >= *goal)
        };
        let expired = || self.flow.ending.is_expired();
        self.flow.threads.wake_all();
        loop {
            if reached() || expired() {
                // After expiry, positions advance past abandoned items, so only the count is
                // reliable.
                let is_settled = self.state.lock().abandoned == 0;
                self.log_helper
                    .wait_written(patience(deadline), pause)
                    .map_err(FlushError::Interrupted)?;
                return Ok(is_settled);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            let wait = pause.pause(&mut |limit| {
                self.flow.flushes.wait(|| reached() || expired(), slice(limit, deadline));
            });
            if let Err(cause) = wait {
                return Err(FlushError::Interrupted(cause));
            }
        }
    }
}
