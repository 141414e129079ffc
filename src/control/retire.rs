//! Retirement: what happens to a handler that was replaced or removed (rule 12 of
//! `ownership/README.md`).
//!
//! A drain thread may be inside it, or hold a batch for it, when its type already has another
//! handler. Each thread that can be in that position passes a quiescent point first; the last of
//! them calls `on_close` and ends the retirement. Only a caller that asks to waits for that.

use crate::config::Selector;
use crate::control::ownership::Owner;
use crate::control::retirements::{Retired, Retirement};
use crate::flow::handler::HandlerRef;
use crate::flow::partition::Signal;
use crate::flow::route::{TypeHandlers, TypeRoute};
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{Arc, Ordering, fence};

impl<T: Item> Shared<T> {
    /// Begins the retirement of `registered`, after the type was published without it. Under the
    /// control lock.
    pub(crate) fn retire(
        &self,
        registered: Arc<TypeHandlers<T>>,
        partitions: &[usize],
    ) -> Arc<Retired> {
        let gone: Vec<HandlerRef<T>> =
            registered.handlers.iter().filter(|handler| !self.serves(handler)).cloned().collect();
        let homes: Vec<usize> = self
            .route
            .idle_handlers()
            .iter()
            .filter(|idle| gone.iter().any(|gone| gone.is(&idle.handler)))
            .map(|idle| idle.home)
            .collect();
        self.route.drop_idle_handlers(&gone);
        // SeqCst: pairs with the fence of a take, between its read of the owner word and its lookup
        // of the handler. A thread that becomes the owner after the word is read below finds the
        // handler gone.
        fence(Ordering::SeqCst);
        // With another selector than by type, items of one type may be in the hands of any drain
        // thread, and not only of those that own its partitions.
        let waiting: Vec<usize> = if self.config.selector == Selector::ByType {
            let owners = partitions
                .iter()
                .chain(&homes)
                .map(|&partition| self.route.owner(partition).load());
            let inside =
                if rule_off(Rule::WaitForThreadInside) { Owner::wanted } else { Owner::inside };
            owners.map(inside).collect()
        } else {
            (0..self.threads.len()).collect()
        };
        let (retired, waiting) = self.retirements.begin(registered, waiting);
        // SeqCst: pairs with the fence in `Sleeper::prepare`.
        fence(Ordering::SeqCst);
        for thread in waiting {
            self.threads[thread].waker.wake(Signal::Pressure);
        }
        retired
    }

    /// At a quiescent point of `thread`: the retirements that waited for it alone.
    pub(crate) fn ended_retirements(&self, thread: usize) -> Vec<Retirement<T>> {
        if !self.retirements.pass(thread) {
            return Vec::new();
        }
        // Under the control lock no handler loses a type: an instance that serves none, and is in
        // no other retirement, has had its last batch, and no other thread comes to that result.
        let _control = self.control.lock();
        self.retirements.take_ended(|handler| self.serves(handler))
    }

    /// Whether a handler instance still serves some type of this queue.
    fn serves(&self, handler: &HandlerRef<T>) -> bool {
        let has = |registered: Arc<TypeHandlers<T>>| {
            registered.handlers.iter().any(|other| other.is(handler))
        };
        self.consumption.includes(handler)
            || self.route.types().filter_map(TypeRoute::registered).any(has)
    }
}
