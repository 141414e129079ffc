//! What a queue needs for room in a partition, and for its end: see `control/waits.rs`.

use crate::control::waits::{Awaited, Kept, Stuck, Wish};
use crate::flow::consumption::Consumption;
use crate::flow::handler::HandlerRef;
use crate::flow::partition::Partition;
use crate::flow::route::{TypeHandlers, TypeRoute};
use crate::item::{Item, TypeKey};
use crate::shared::Shared;
use crate::sync::Arc;

impl<T: Item> Awaited for Shared<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn handler_at(&self, desk: usize) -> Option<String> {
        self.registered_at(desk).map(|registered| registered.name.to_string())
    }

    fn may_come_true(&self, wish: Wish, stuck: &Stuck) -> bool {
        match wish {
            Wish::Room { partition, key, weight } => {
                self.room_may_come(self.route.partition(partition), key, weight, stuck)
            }
            // Its threads return from their handlers, and close every one.
            Wish::End => {
                self.ending.running().is_empty()
                    || self.ending.is_expired()
                    || (stuck.threads_of(self.address()) == 0
                        && !stuck.desks().any(|desk| self.registered_at(desk).is_some()))
            }
        }
    }

    fn needs(&self, wish: Wish, kept: Kept) -> bool {
        let needs_desk = |desk| match wish {
            Wish::Room { partition, key, .. } => {
                let partition = self.route.partition(partition);
                let is_called = |key| self.is_called_at(desk, key, partition.index);
                is_called(key) || partition.lanes.lock().keys().any(is_called)
            }
            Wish::End => self.registered_at(desk).is_some(),
        };
        kept.thread_of == Some(self.address()) || kept.desk.is_some_and(needs_desk)
    }
}

impl<T: Item> Shared<T> {
    fn room_may_come(
        &self,
        partition: &Partition<T>,
        key: TypeKey,
        weight: usize,
        stuck: &Stuck,
    ) -> bool {
        if partition.room(key) >= weight {
            return true;
        }
        if stuck.threads_of(self.address()) >= self.threads.most() {
            return false;
        }
        if matches!(self.consumption, Consumption::PerThread(_)) {
            // A thread is left, and so is its consumer.
            return true;
        }
        let is_stuck =
            |key| stuck.desks().any(|desk| self.is_called_at(desk, key, partition.index));
        if !is_stuck(key) {
            return true;
        }
        // Items of other types make room, unless its own hold up the partition.
        let counts = partition.counts();
        let others = || partition.lanes.lock().keys().any(|other| !is_stuck(other));
        !self.has_one_type(partition)
            && !partition.is_choked(key)
            && (counts.pushed > counts.taken || others())
    }

    /// Whether items of a type in a partition go to the handler with a desk.
    fn is_called_at(&self, desk: usize, key: TypeKey, partition: usize) -> bool {
        let target = match self.consumption {
            Consumption::PerThread(_) => None,
            _ => self.target_of(key, partition, usize::MAX, 0),
        };
        target.is_some_and(|target| is_at(target.handler(), desk))
    }

    /// The handlers of a type, one of which has this desk.
    fn registered_at(&self, desk: usize) -> Option<Arc<TypeHandlers<T>>> {
        let has = |registered: &Arc<TypeHandlers<T>>| {
            registered.handlers.iter().any(|handler| is_at(handler, desk))
        };
        match &self.consumption {
            Consumption::ByHandler => {
                self.route.types().filter_map(TypeRoute::registered).find(has)
            }
            Consumption::OneConsumer(consumer) => Some(consumer.clone()).filter(has),
            Consumption::PerThread(consumers) => consumers.iter().find(|all| has(all)).cloned(),
        }
    }

    /// Whether the queue calls the handler with a desk.
    pub(super) fn calls_at(&self, desk: usize) -> bool {
        self.registered_at(desk).is_some()
    }
}

fn is_at<T>(handler: &HandlerRef<T>, desk: usize) -> bool {
    Arc::as_ptr(&handler.desk) as usize == desk
}
