//! Retirement: what happens to a handler that was replaced or removed (rule 12 of
//! `ownership/README.md`).
//!
//! A drain thread may be inside it when its type already has another handler. When no thread is, a
//! drain thread calls `on_close` and ends the retirement. Only callers that ask to wait for that.

use crate::config::Selector;
use crate::control::retirements::{Retired, Retirement};
use crate::flow::desk::Recall;
use crate::flow::handler::HandlerRef;
use crate::flow::route::{TypeHandlers, TypeRoute};
use crate::item::Item;
use crate::rules::{Rule, rule_off};
use crate::shared::Shared;
use crate::sync::{Arc, Weak};

impl<T: Item> Shared<T> {
    /// Begins the retirement of `registered`, after the type was published without it. Under the
    /// control lock.
    pub(crate) fn retire(
        self: &Arc<Self>,
        registered: Arc<TypeHandlers<T>>,
        partitions: &[usize],
    ) -> Arc<Retired> {
        let gone: Vec<HandlerRef<T>> =
            registered.handlers.iter().filter(|handler| !self.serves(handler)).cloned().collect();
        self.route.drop_idle_handlers(&gone);
        let key = registered.key;
        // Under the lock of the lanes: a thread that has looked the old handler up there is at its
        // desk by now. Jobs of the type that no thread has in hand go to its new handler, or to
        // none. With another selector than by type, they may be in any partition.
        let recall = |partition: usize| {
            if rule_off(Rule::RecallType) {
                return;
            }
            let partition = self.route.partition(partition);
            if partition.change_lanes(|lanes| lanes.recall_type(key)) {
                self.call_owner(partition, None);
            }
        };
        if self.config.selector == Selector::ByType {
            partitions.iter().copied().for_each(recall);
        } else {
            (0..self.route.partition_count()).for_each(recall);
        }
        let retired = self.retirements.begin(registered);
        // The first that is not inside a handler ends the retirement, if no thread is inside.
        self.threads.wake_all();
        retired
    }

    /// Whether a retirement can end. If not, the queue hears when a thread leaves one of the
    /// handlers. The caller has fenced.
    pub(crate) fn has_ended_retirement(self: &Arc<Self>) -> bool {
        self.retirements.are_pending()
            && self.retirements.has_quiet(|handler| self.serves(handler), &self.watcher())
    }

    /// The retirements that end now; `all` of them, if no thread of the queue calls handlers any
    /// more.
    pub(crate) fn ended_retirements(self: &Arc<Self>, all: bool) -> Vec<Retirement<T>> {
        if !self.retirements.are_pending() {
            return Vec::new();
        }
        // Under the control lock no handler loses a type: an instance that serves none, and is in
        // no other retirement, has had its last batch, and no other thread comes to that result.
        let _control = self.control.lock();
        self.retirements.take_quiet(all, |handler| self.serves(handler), &self.watcher())
    }

    fn watcher(self: &Arc<Self>) -> Weak<dyn Recall> {
        Arc::<Self>::downgrade(self)
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
