//! Retirement: what happens to a handler that was replaced or removed (rule 12 of
//! `ownership/README.md`).
//!
//! A drain thread may be inside it when its type already has another handler. When no thread is, a
//! drain thread calls `on_close` and ends the retirement. Only callers that ask to wait for that. A
//! handler without an `on_close` that no thread is inside retires immediately, unless its type goes
//! and has items left: those who remove types wait for the drain threads, so that types do not come
//! faster than they can go.

use crate::config::Selector;
use crate::control::retirements::{Begun, Retired};
use crate::flow::desk::lane::{Debt, Owed};
use crate::flow::handler::HandlerRef;
use crate::flow::route::TypeHandlers;
use crate::item::Item;
use crate::shared::Control;
use crate::sync::Arc;

impl<T: Item> Control<T> {
    /// Begins the retirement of `registered`, after the type was published without it. Under the
    /// control lock; when the caller has released that, it continues the retirement. `may_end`: it
    /// need not wait for a drain thread.
    pub(super) fn retire(
        self: &Arc<Self>,
        registered: Arc<TypeHandlers<T>>,
        debt: Option<Debt>,
        may_end: bool,
    ) -> Begun<T> {
        self.flow.serving.remove(registered.instances());
        let gone: Vec<HandlerRef<T>> =
            registered.instances().filter(|handler| !self.flow.serves(handler)).cloned().collect();
        self.flow.route.drop_idle_handlers(&gone);
        let key = registered.key;
        // Under the lock of the lanes: a thread that has looked the old handler up there is at its
        // desk by now. Jobs of the type that no thread has in hand go to its new handler, or to
        // none. With another selector than by type, they may be in any partition.
        let recall = |partition: usize| {
            let partition = self.flow.route.partition(partition);
            if partition.change_lanes(|lanes| lanes.recall_type(key)) {
                self.flow.call_owner(partition, None);
            }
        };
        self.partitions_of(&registered.partitions).for_each(recall);
        let serves = |handler: &HandlerRef<T>| self.flow.serves(handler);
        self.flow.retirements.begin(registered, debt, may_end, serves, &self.flow.watcher())
    }

    /// Ends a retirement that is over already, or wakes all threads: the first that is not inside
    /// a handler ends it, when no thread is inside. Without a lock.
    pub(super) fn continue_retirement(&self, begun: Begun<T>) -> Arc<Retired> {
        match begun.over {
            Some(retirement) => {
                if let Some(line) = retirement.end(&self.flow.name) {
                    self.flow.warn_in_call(line);
                }
            }
            None => self.flow.threads.wake_all(),
        }
        begun.retired
    }

    /// Where the items of a type may be that has these partitions.
    pub(crate) fn partitions_of(&self, partitions: &[usize]) -> impl Iterator<Item = usize> {
        let all = self.flow.config.selector != Selector::ByType;
        let (own, count) = (if all { &[] } else { partitions }, self.flow.route.partition_count());
        own.iter().copied().chain(0..if all { count } else { 0 })
    }

    /// Handlers that are about to be removed still get what lingers. Under the control lock.
    pub(crate) fn owe_what_lingers(&self, registered: &Arc<TypeHandlers<T>>) -> Option<Debt> {
        registered.settings.max_delay?;
        let debt = Debt::default();
        for partition in self.partitions_of(&registered.partitions) {
            let partition = self.flow.route.partition(partition);
            // What is put from now on need not reach them.
            let queued = || partition.pushed_under_gate() - partition.taken();
            partition.change_lanes(|lanes| {
                let queued = if self.flow.has_one_type(partition) { queued() } else { 0 };
                let queued = usize::try_from(queued).unwrap_or(usize::MAX);
                let full = registered.settings.max_batch_items;
                lanes.owe(registered.key, queued, full, |items| Owed {
                    items,
                    to: registered.clone(),
                    debt: debt.clone(),
                });
            });
        }
        Some(debt)
    }
}
