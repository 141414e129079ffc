//! Waits of threads that others depend on: in a handler, or on a drain thread.
//!
//! On a shared pool another worker replaces the one that waits, because what it waits for may need
//! a worker.

use crate::control::scheduler::{Compensation, Limit};
use crate::flow::desk::Desk;
use crate::flow::handler::HandlerRef;
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::Arc;
use crate::thread_context::{drained_queue, held_desk};

/// The shared pool has reached its limit of blocked workers.
#[derive(Debug)]
pub(crate) struct NoWorkerLeft;

impl<T: Item> Flow<T> {
    /// Whether the calling thread is a drain thread of this queue.
    fn on_own_drain_thread(self: &Arc<Self>) -> bool {
        drained_queue() == Some(Arc::as_ptr(self) as usize)
    }

    /// Whether the calling thread would wait for itself if it waited for space here: it drains this
    /// queue, or is inside a handler that this queue needs.
    pub(crate) fn would_wait_for_itself(self: &Arc<Self>) -> bool {
        held_desk().is_some_and(|desk| self.calls_at(desk)) || self.on_own_drain_thread()
    }

    /// Called before the calling thread waits for a drain of this queue. If it is a worker of the
    /// pool that drains this queue, another worker replaces it meanwhile. Returns an error if no
    /// worker can: the thread must not wait then.
    pub(crate) fn compensate(&self) -> Result<Option<Compensation>, NoWorkerLeft> {
        match &self.pool {
            Some(pool) if pool.runs_current_thread() => {
                pool.begin_blocking(Limit::Twice).map(Some).ok_or(NoWorkerLeft)
            }
            _ => Ok(None),
        }
    }

    /// Enters a desk for `on_close`. If another queue is inside, the thread waits outside the host,
    /// which that queue's thread may need to leave; on a shared pool another worker replaces it
    /// meanwhile. Called inside the host.
    pub(crate) fn enter_in_turn(&self, desk: &Desk) {
        if desk.try_enter(self.address()) {
            return;
        }
        let mut wait = || {
            let _compensation = self.compensate_without_limit();
            desk.enter();
        };
        self.host.leave(&mut wait);
    }

    /// Called before a call into a handler that works elsewhere: the calling thread only waits for
    /// it.
    pub(crate) fn compensate_for(&self, handler: &HandlerRef<T>) -> Option<Compensation> {
        if handler.handler.works_elsewhere() { self.compensate_without_limit() } else { None }
    }

    /// On a shared pool, starts another worker for a wait of which there is at most one per queue.
    fn compensate_without_limit(&self) -> Option<Compensation> {
        let on_pool = self.pool.as_ref().filter(|pool| pool.runs_current_thread());
        on_pool.and_then(|pool| pool.begin_blocking(Limit::None))
    }
}
