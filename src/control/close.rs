//! Close and expiry: how a queue comes to its end. The steps are rules 13 and 14 of
//! `ownership/README.md`.

use crate::control::balance::control_thread;
use crate::control::shutdown_waits::WaitForEnd;
use crate::flow::gate::Access;
use crate::flow::handler::Item;
use crate::flow::partition::Partition;
use crate::flow::produce::{Pause, slice};
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{Arc, Instant, Ordering};
use crate::thread_context::drained_queue;

impl<T: Item> Shared<T> {
    /// Narrows who may put items in. No growth from here.
    pub(crate) fn restrict(&self, access: Access) -> bool {
        let mut control = self.control.lock();
        if control.access >= access {
            return false;
        }
        control.access = access;
        if access == Access::Closed {
            // Relaxed: published by the Release store of `closing`.
            self.unfinished.store(self.route.partition_count(), Ordering::Relaxed);
        }
        // Under each gate: a put is either in before this, or refused.
        for partition in self.route.partitions() {
            partition.restrict(access);
        }
        true
    }

    /// Closes for everybody and sends the drain threads to their end. Idempotent; does not wait.
    pub(crate) fn close(&self) {
        if self.restrict(Access::Closed) {
            // Release: pairs with the Acquire loads of `closing`; a drain thread that sees it finds
            // every gate closed.
            self.closing.store(true, Ordering::Release);
            self.wake_all();
            self.notify_closed();
            if self.balancing.is_some() {
                control_thread::unregister(self);
            }
        }
    }

    /// Closes, and waits for the end of the drain threads; see `BatchQueue::shutdown_with`.
    pub(crate) fn shutdown<P: Pause>(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<u64, P::Interrupt> {
        self.close();
        // On a drain thread it waits where that can end: not for its own queue, nor for one that
        // needs the handler which it is inside, nor for one that waits for its own.
        let waits =
            drained_queue().map(|waiter| WaitForEnd::begin(waiter, Arc::as_ptr(self) as usize));
        let may_wait = !matches!(waits, Some(None)) && !self.would_wait_for_itself();
        if (may_wait || rule_off(Rule::ShutdownFromHandlerReturns))
            && let Ok(_compensation) = self.compensate()
        {
            while !self.running.is_none() {
                let over = self.expired.load(Ordering::Acquire);
                if over || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(self.expire());
                }
                pause.pause(&mut |limit| self.running.wait(slice(limit, deadline)))?;
            }
        }
        Ok(self.control.lock().abandoned)
    }

    /// The time is over: what is not settled by now counts as abandoned, whatever becomes of it.
    pub(crate) fn expire(&self) -> u64 {
        let mut control = self.control.lock();
        // Relaxed: only written under `control`.
        if self.expired.load(Ordering::Relaxed) {
            return control.abandoned;
        }
        let settled: u64 = self.threads.iter().map(|slot| slot.tally.expire()).sum();
        let produced: u64 = self.route.partitions().map(Partition::pushed_under_gate).sum();
        control.abandoned = produced - settled;
        // Release: pairs with the Acquire in `is_over`.
        self.expired.store(true, Ordering::Release);
        let abandoned = control.abandoned;
        drop(control);
        self.wake_all();
        self.notify_progress();
        self.retirements.give_up();
        if abandoned == 0 && !self.running.is_none() {
            let name = &self.name;
            self.host.log(&format!(
                "queue {name}: shutdown ran out of time while handlers were closing"
            ));
        }
        if abandoned > 0 {
            let name = &self.name;
            self.host.log(&format!(
                "queue {name}: shutdown ran out of time and abandoned {abandoned} items"
            ));
        }
        abandoned
    }
}
