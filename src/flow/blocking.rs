//! The waits that a thread may do while somebody counts on it: in a handler, in a drain thread,
//! between two tries.
//!
//! On a shared pool another worker takes the place of the one that waits, for what it waits for may
//! need one.

use crate::control::scheduler::{Compensation, Limit};
use crate::flow::consumption::Consumption;
use crate::flow::handler::{Entered, EntryToken, HandlerRef};
use crate::flow::route::{TypeHandlers, TypeRoute};
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{Arc, Duration};
use crate::thread_context::{drained_queue, held_token};

/// The shared pool has as many blocked workers as it may have.
#[derive(Debug)]
pub(crate) struct NoWorkerLeft;

impl<T: Item> Shared<T> {
    /// Whether the calling thread is a drain thread of this queue.
    fn on_own_drain_thread(self: &Arc<Self>) -> bool {
        drained_queue() == Some(Arc::as_ptr(self) as usize)
    }

    /// Whether the calling thread, by waiting for space here, would wait for itself: it drains this
    /// queue, or is inside a handler that this queue needs.
    pub(crate) fn would_wait_for_itself(self: &Arc<Self>) -> bool {
        let held = held_token();
        let holds = |handler: &HandlerRef<T>| Some(Arc::as_ptr(&handler.token) as usize) == held;
        let needs = |registered: &Arc<TypeHandlers<T>>| registered.handlers.iter().any(holds);
        let needed = held.is_some()
            && match &self.consumption {
                Consumption::ByHandler => self
                    .route
                    .types()
                    .filter_map(TypeRoute::registered)
                    .any(|handlers| needs(&handlers)),
                Consumption::OneConsumer(consumer) => needs(consumer),
                Consumption::PerThread(consumers) => consumers.iter().any(needs),
            };
        needed || self.on_own_drain_thread()
    }

    /// Before the calling thread waits for a drain of this queue: on a worker of the pool that this
    /// queue drains on, another one takes its place meanwhile. `Err`: none can, so it must not
    /// wait.
    pub(crate) fn compensate(&self) -> Result<Option<Compensation>, NoWorkerLeft> {
        match &self.pool {
            Some(pool) if pool.runs_current_thread() => {
                pool.begin_blocking(Limit::Twice).map(Some).ok_or(NoWorkerLeft)
            }
            _ => Ok(None),
        }
    }

    /// Waits for a handler that another thread is inside, and that may need the host to come out.
    /// On a shared pool that thread may itself wait for a drain there, so another worker takes this
    /// one's place; at most one for each queue of the pool. Called inside the host. `None`: the
    /// host has not run the wait.
    pub(crate) fn enter_in_turn<'a>(&self, token: &'a EntryToken) -> Option<Entered<'a>> {
        let mut entered = None;
        let mut wait = || {
            let _compensation = self.compensate_without_limit();
            entered = Some(token.enter());
        };
        if rule_off(Rule::LeaveHostForToken) {
            wait();
        } else {
            self.host.leave(&mut wait);
        }
        entered
    }

    /// Waits between two tries of a batch. A close ends it: what is left is tried at once.
    pub(crate) fn back_off(&self, delay: Duration) {
        // On a shared pool another worker takes this one's place meanwhile.
        let _compensation = self.compensate_without_limit();
        self.ending.wait_for_close(delay);
    }

    /// Before a call into a handler that works elsewhere, for which the calling thread only waits.
    pub(crate) fn compensate_for(&self, handler: &HandlerRef<T>) -> Option<Compensation> {
        let only_waits = handler.handler.works_elsewhere() && !rule_off(Rule::CompensateForLoop);
        if only_waits { self.compensate_without_limit() } else { None }
    }

    /// On a shared pool: another worker, for a wait of which there is at most one per queue.
    fn compensate_without_limit(&self) -> Option<Compensation> {
        let on_pool = self.pool.as_ref().filter(|pool| pool.runs_current_thread());
        on_pool.and_then(|pool| pool.begin_blocking(Limit::None))
    }
}
