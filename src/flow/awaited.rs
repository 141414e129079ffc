//! The answers of a queue to the wait detection in `threads/waits.rs`: what room in a partition, or
//! the end of the queue, depends on.

use crate::flow::handler::HandlerRef;
use crate::flow::partition::Partition;
use crate::flow::partition::lanes::LaneView;
use crate::flow::route::TypeRoute;
use crate::flow::route::type_handlers::{Consumption, TypeHandlers};
use crate::flow::state::Flow;
use crate::item::{Item, TypeKey};
use crate::sync::Arc;
use crate::threads::waits::{Awaited, Kept, Stuck, Wish};

impl<T: Item> Awaited for Flow<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn handler_at(&self, lock: usize) -> Option<String> {
        let keeper = || self.keeper_at(lock).then(|| "the handler of dead letters".to_owned());
        self.registered_at(lock).map(|registered| registered.name.to_string()).or_else(keeper)
    }

    fn may_come_true(&self, wish: Wish, stuck: &Stuck) -> bool {
        match wish {
            Wish::Room { partition, key } => {
                self.room_may_come(self.route.partition(partition), key, stuck)
            }
            // The threads must return from their handlers and close each of them.
            Wish::End => {
                self.ending.running().is_empty()
                    || self.ending.is_expired()
                    || (stuck.threads_of(self.address()) == 0
                        && !stuck.locks().any(|lock| self.calls_at(lock)))
            }
        }
    }

    fn needs(&self, wish: Wish, kept: Kept) -> bool {
        let needs_lock = |lock| match wish {
            Wish::Room { partition, key } => {
                let partition = self.route.partition(partition);
                let lanes = lanes_of(partition);
                let needs = |lane: &LaneView| self.needs_lock(lock, lane, partition);
                needs(&self.lane_of(key, &lanes)) || lanes.iter().any(needs)
            }
            Wish::End => self.calls_at(lock),
        };
        kept.thread_of == Some(self.address()) || kept.lock.is_some_and(needs_lock)
    }

    fn let_go(self: Arc<Self>) {
        Flow::let_go(self);
    }
}

impl<T: Item> Flow<T> {
    fn room_may_come(&self, partition: &Partition<T>, key: TypeKey, stuck: &Stuck) -> bool {
        // Any room is enough: an item that is too heavy is cut.
        if partition.room(key) > 0 {
            return true;
        }
        if stuck.threads_of(self.address()) >= self.threads.most() {
            return false;
        }
        let lanes = lanes_of(partition);
        let is_stuck =
            |lane: &LaneView| stuck.locks().any(|lock| self.needs_lock(lock, lane, partition));
        if !is_stuck(&self.lane_of(key, &lanes)) {
            return true;
        }
        if self.has_one_type(partition) || partition.is_stalled(key) {
            return false;
        }
        // Items of other types make room, if they can be taken or called, or will soon count as
        // stalled.
        let counts = partition.counts();
        let makes_room = |lane: &LaneView| {
            lane.key != key && (!is_stuck(lane) || (lane.holds_items && !lane.is_stalled))
        };
        counts.pushed > counts.taken || lanes.iter().any(makes_room)
    }

    /// Returns the lane of a type, or what a new lane would look like.
    fn lane_of(&self, key: TypeKey, lanes: &[LaneView]) -> LaneView {
        let lane = match self.consumption {
            Consumption::ByHandler => lanes.iter().find(|lane| lane.key == key),
            _ => lanes.first(),
        };
        lane.copied().unwrap_or(LaneView::new(key))
    }

    /// Whether the running call of a lane has this handler lock, or the next one needs it.
    fn needs_lock(&self, lock: usize, lane: &LaneView, partition: &Partition<T>) -> bool {
        if let Some(running_at) = lane.running_at {
            return running_at == lock;
        }
        let consumer = match self.consumption {
            // Any remaining thread can call its own consumer.
            Consumption::PerThread(_) if lane.tried_by.is_none() => return false,
            Consumption::PerThread(_) => lane.tried_by.unwrap_or(0),
            _ => 0,
        };
        let target = self.target_of(lane.key, partition.index, consumer);
        target.is_some_and(|target| is_at(target.handler(), lock))
    }

    /// Whether the queue calls a handler with this lock.
    pub(crate) fn calls_at(&self, lock: usize) -> bool {
        self.registered_at(lock).is_some() || self.keeper_at(lock)
    }

    /// Whether the handler of the queue's dead letters has this lock.
    fn keeper_at(&self, lock: usize) -> bool {
        self.dead_letters.of_queue.as_ref().is_some_and(|of_queue| is_at(&of_queue.handler, lock))
    }

    /// Returns the handlers of a type, one of which has this handler lock.
    fn registered_at(&self, lock: usize) -> Option<Arc<TypeHandlers<T>>> {
        let has = |registered: &Arc<TypeHandlers<T>>| {
            registered.instances().any(|handler| is_at(handler, lock))
        };
        match &self.consumption {
            Consumption::ByHandler => {
                self.route.types().filter_map(TypeRoute::registered).find(has)
            }
            Consumption::OneConsumer(consumer) => Some(consumer.clone()).filter(has),
            Consumption::PerThread(consumers) => consumers.iter().find(|all| has(all)).cloned(),
        }
    }
}

fn lanes_of<T>(partition: &Partition<T>) -> Vec<LaneView> {
    partition.lanes.lock().views().collect()
}

fn is_at<T>(handler: &HandlerRef<T>, lock: usize) -> bool {
    Arc::as_ptr(&handler.lock) as usize == lock
}
