//! Close and expiry: how a queue ends. The steps are rules 13 and 14 of `ownership/README.md`.

use crate::control::balance::control_thread;
use crate::control::log_helper::last_patience;
use crate::control::waits::{CHECK_EVERY, Waiting, Wish};
use crate::flow::partition::Partition;
use crate::flow::partition::gate::Access;
use crate::flow::pause::{Pause, shorter, slice};
use crate::item::{Item, counted};
use crate::shared::Shared;
use crate::sync::{Arc, Instant, panicking};
use crate::thread_context::on_drain_thread;

impl<T: Item> Shared<T> {
    /// Narrows who may put items in. The queue does not grow from here on.
    pub(crate) fn restrict(&self, access: Access) -> bool {
        let mut control = self.control.lock();
        if control.access >= access {
            return false;
        }
        control.access = access;
        if access == Access::Closed {
            self.ending.set_unfinished(self.route.partition_count());
        }
        // Under each gate: a put is either in before this, or refused.
        for partition in self.route.partitions() {
            partition.restrict(access);
        }
        true
    }

    /// Closes for all threads but drain threads. `deadline`: that of the shutdown that will follow.
    pub(crate) fn close_to_outside(&self, deadline: Option<Instant>) {
        self.restrict(Access::DrainThreads);
        self.ending.deadlines.announce(deadline);
        self.publish_news();
    }

    /// Closes for all threads and lets the drain threads end. Does not wait. Returns `false` if the
    /// queue was closed.
    pub(crate) fn close(&self) -> bool {
        let closes = self.restrict(Access::Closed);
        if closes {
            self.ending.publish_closing();
            self.threads.wake_all();
            if self.balancing.is_some() {
                control_thread::unregister(self);
            }
        }
        closes
    }

    /// A drain thread may have to act sooner than it knew.
    fn publish_news(&self) {
        self.ending.deadlines.publish_news();
        self.threads.wake_all();
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
        let _time = self.ending.deadlines.begin(deadline);
        if !self.close() && deadline.is_some() {
            self.publish_news();
        }
        if self.is_inline() {
            self.end_inline(deadline, pause)?;
        }
        // A drain thread waits only if the wait can end: not for its own queue, nor for a queue
        // that needs the handler which it is inside, nor for handlers that wait for its own.
        let may_wait = !self.would_wait_for_itself();
        if may_wait && let Ok(_compensation) = self.compensate() {
            let waiting = Waiting::begin(self.clone(), Wish::End);
            while !self.ending.running().is_empty() {
                if let Some(circle) = waiting.as_ref().and_then(Waiting::circle) {
                    let name = &self.name;
                    self.warn(format!(
                        "queue {name}: a shutdown from a handler did not wait, because it would \
                         never have ended: {circle}"
                    ));
                    break;
                }
                let over = self.ending.is_expired();
                if over || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    self.expire();
                    break;
                }
                let check_every = waiting.as_ref().map(|_| CHECK_EVERY);
                pause.pause(&mut |limit| {
                    let is_over = || self.ending.is_expired();
                    let limit = shorter(slice(limit, deadline), check_every);
                    self.ending.running().wait(limit, is_over);
                })?;
            }
        }
        Ok(self.control.lock().abandoned)
    }

    /// The time is over: what is not settled by now counts as abandoned, whatever happens to it
    /// later.
    pub(crate) fn expire(&self) -> u64 {
        let mut control = self.control.lock();
        if self.ending.is_expired_under_lock() {
            return control.abandoned;
        }
        let settled: u64 = self.threads.iter().map(|slot| slot.tally.expire()).sum();
        let produced: u64 = self.route.partitions().map(Partition::pushed_under_gate).sum();
        control.abandoned = produced - settled;
        let (calls, left) = (self.long_calls(Instant::now()), self.partitions_left());
        self.ending.expire();
        let abandoned = control.abandoned;
        drop(control);
        self.threads.wake_all();
        self.ending.running().notify();
        self.flushes.notify();
        self.retirements.end_all();
        self.host.note_abandoned();
        if abandoned == 0 && !self.ending.running().is_empty() {
            let name = &self.name;
            self.warn(format!(
                "queue {name}: shutdown ran out of time while handlers were closing{}",
                self.describe(&calls)
            ));
        }
        if abandoned > 0 {
            let (name, items) = (&self.name, counted(abandoned, "item"));
            // After the lock is released: the last reference to removed handlers may be dropped.
            let places = self.places(&left);
            self.warn(format!(
                "queue {name}: shutdown ran out of time and abandoned {items}{places}{}",
                self.describe(&calls)
            ));
        }
        // A drain thread that hangs does not come to its end, where it would log them.
        for line in self.dispatch_log.take_rest(&self.name) {
            self.warn(line);
        }
        abandoned
    }
}

/// Closes the queue when a drain thread unwinds. Panics of handlers and of items are caught; what
/// remains is the code of a host, like its log, and what a handler says about itself, like whether
/// it needs the host. The partitions of that thread have no owner any more, so the queue closes and
/// counts what is left as abandoned.
pub(crate) struct CloseOnPanic<T: Item>(pub(crate) Arc<Shared<T>>);

impl<T: Item> Drop for CloseOnPanic<T> {
    fn drop(&mut self) {
        if panicking() {
            let name = &self.0.name;
            self.0.warn(format!(
                "queue {name}: a drain thread panicked outside of its handlers; the queue shuts \
                 down"
            ));
            self.0.close();
            self.0.expire();
        }
    }
}
