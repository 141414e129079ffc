//! Close and expiry: how a queue ends. The steps are rules 13 and 14 of `ownership/README.md`.

use crate::control::balance::control_thread;
use crate::control::log_helper::last_patience;
use crate::control::waits::{CHECK_EVERY, Waiting, Wish};
use crate::flow::partition::Partition;
use crate::flow::partition::gate::Access;
use crate::flow::pause::{Pause, shorter, slice};
use crate::item::{Item, counted};
use crate::shared::Control;
use crate::sync::{Arc, Instant};
use crate::thread_context::on_drain_thread;

impl<T: Item> Control<T> {
    /// Narrows who may put items in. The queue does not grow from here on.
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

    /// Closes for all threads but drain threads. `deadline`: that of the shutdown that will follow.
    pub(crate) fn close_to_outside(&self, deadline: Option<Instant>) {
        self.restrict(Access::DrainThreads);
        self.flow.ending.deadlines.announce(deadline);
        self.publish_news();
    }

    /// Closes for all threads and lets the drain threads end. Does not wait. Returns `false` if the
    /// queue was closed.
    pub(crate) fn close(&self) -> bool {
        let closes = self.restrict(Access::Closed);
        if closes {
            self.flow.ending.publish_closing();
            self.flow.threads.wake_all();
            if self.balancing.is_some() {
                control_thread::unregister(self);
            }
        }
        closes
    }

    /// A drain thread may have to act sooner than it knew.
    fn publish_news(&self) {
        self.flow.ending.deadlines.publish_news();
        self.flow.threads.wake_all();
    }

    /// See `BatchQueue::shutdown_with`.
    pub(crate) fn shutdown<P: Pause>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<u64, P::Interrupt> {
        let abandoned = self.end(deadline, pause)?;
        if !on_drain_thread() {
            self.log_helper.wait_written(last_patience(deadline), pause)?;
        }
        Ok(abandoned)
    }

    /// Closes, and waits for the end of the drain threads, but not for the log.
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
        // A drain thread waits only if the wait can end: not for its own queue, nor for a queue
        // that needs the handler which it is inside, nor for handlers that wait for its own.
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

    /// The time is over: what is not settled by now counts as abandoned, whatever happens to it
    /// later.
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
            // After the lock is released: the last reference to removed handlers may be dropped.
            let places = self.places(&left);
            self.flow.warn(format!(
                "queue {name}: shutdown ran out of time and abandoned {items}{places}{}",
                self.describe(&calls)
            ));
        }
        // A drain thread that hangs does not come to its end, where it would log them.
        for line in self.flow.dispatch_log.take_rest(&self.flow.name) {
            self.flow.warn(line);
        }
        abandoned
    }
}
