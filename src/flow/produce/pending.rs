//! Produce for callers that must not wait, such as an event loop: an item that does not fit is
//! kept, and the caller retries.
//!
//! ```text
//!  try_produce ──no room──▶ PendingItem ──listen──▶ room? ──yes──▶ try_again ──▶ in
//!                                             │ no              │ no room
//!                                             └─▶ is notified ◀─┘
//! ```
//!
//! Room that appears between the first attempt and `listen` is not announced, so the caller checks
//! once more after calling `listen`, and then at each notification. The attempt is counted at the
//! first try, the refusal when the caller gives up.

use std::fmt;

use crate::error::ProduceError;
use crate::flow::partition::space::Listener;
use crate::flow::partition::{Partition, Stop};
use crate::flow::produce::Refusal;
use crate::flow::produce::many::Source;
use crate::flow::route::type_handlers::Consumption;
use crate::flow::state::Flow;
use crate::item::{Item, TypeKey};
use crate::sync::Arc;
use crate::threads::context::on_drain_thread;
use crate::threads::waits::{Waiting, WatchedWait};

/// Why an item was not put.
#[derive(Debug)]
pub enum TryProduceError<T: Item> {
    /// The item may still be accepted.
    Pending(PendingItem<T>),
    /// The item was refused, and is counted as such.
    Refused(ProduceError<T>),
}

/// An item that found no room, and whose producer has not given up. Dropping it counts as a
/// refusal.
#[must_use = "if it is dropped, the item is refused"]
pub struct PendingItem<T: Item> {
    flow: Arc<Flow<T>>,
    partition: usize,
    /// `None` once the item is settled.
    item: Option<T>,
    /// Why the last attempt found no room.
    stop: Stop,
    /// The recorded wait of the handler whose task puts the item.
    wait: Option<Waiting>,
    /// For the watchdog, once the item waits.
    watched: Option<WatchedWait>,
}

impl<T: Item> PendingItem<T> {
    fn new(flow: &Arc<Flow<T>>, partition: &Partition<T>, item: T) -> Self {
        Self {
            flow: flow.clone(),
            partition: partition.index,
            item: Some(item),
            stop: Stop::Full,
            wait: None,
            watched: None,
        }
    }

    /// Returns the partition that the item waits for.
    pub fn partition(&self) -> usize {
        self.partition
    }

    /// Returns the line that the item waits in. Items in one line are put in order of arrival.
    pub fn line(&self) -> Line {
        self.flow.line(self.place(), self.item.as_ref().map_or(TypeKey(0), Item::type_key))
    }

    /// Returns the name of the queue.
    #[cfg(feature = "python")]
    pub(crate) fn queue(&self) -> &str {
        &self.flow.name
    }

    /// Returns the waiting item; always `Some`.
    pub fn item(&self) -> Option<&T> {
        self.item.as_ref()
    }

    /// Notifies `listener` of room in the partition from now on. Room may have appeared earlier, so
    /// check again, or retry, after this call.
    pub fn listen(&self, listener: Arc<dyn Listener>) -> Listening<T> {
        self.place().listen(listener.clone());
        Listening { flow: self.flow.clone(), partition: self.partition, listener }
    }

    /// Records a wait without a deadline in a task of a handler. If it can never end, because other
    /// handlers wait for this one, it may be [given up](Self::is_given_up).
    pub fn begin_wait(&mut self) {
        if self.wait.is_none()
            && let Some(item) = &self.item
        {
            self.wait = self.flow.record_wait(self.place(), item.type_key());
        }
    }

    /// Whether the wait has been given up, so that the next attempt refuses the item. Call this
    /// periodically.
    pub fn is_given_up(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.circle().is_some())
    }

    /// Puts the item if there is room now.
    ///
    /// # Errors
    /// The item is still pending, or is refused because the queue is shut down or the wait was
    /// given up.
    pub fn try_again(mut self) -> Result<(), TryProduceError<T>> {
        let circle = self.wait.as_ref().and_then(Waiting::circle);
        if circle.is_some() {
            return Err(self.refuse(Refusal::Reentrant(circle)));
        }
        let Some(item) = self.item.take() else { return Ok(()) };
        let partition = self.flow.route.partition(self.partition);
        match partition.put_again(item, on_drain_thread()) {
            Ok(signal) => {
                self.flow.wake_inside(partition, signal);
                Ok(())
            }
            Err((item, stop)) => {
                self.item = Some(item);
                self.stopped(stop)
            }
        }
    }

    /// Gives up because the caller's deadline has passed.
    pub fn time_out(self) -> ProduceError<T> {
        match self.refuse(Refusal::TimedOut) {
            TryProduceError::Refused(refused) => refused,
            TryProduceError::Pending(_) => unreachable!("refused"),
        }
    }

    fn place(&self) -> &Partition<T> {
        self.flow.route.partition(self.partition)
    }

    fn stopped(mut self, stop: Stop) -> Result<(), TryProduceError<T>> {
        if stop == Stop::Full && self.flow.mark_stalled_types(self.place()) {
            return self.try_again();
        }
        self.stop = stop;
        Err(match self.flow.may_wait(self.place(), stop) {
            Ok(()) => TryProduceError::Pending(self.watched()),
            Err(refusal) => self.refuse(refusal),
        })
    }

    fn watched(mut self) -> Self {
        if self.watched.is_none() {
            let key = self.item.as_ref().map_or(TypeKey(0), Item::type_key);
            self.watched = self.flow.watch_wait(self.partition, key);
        }
        self
    }

    fn refuse(mut self, refusal: Refusal<std::convert::Infallible>) -> TryProduceError<T> {
        let Some(item) = self.item.take() else { unreachable!("settled by a call that takes it") };
        let refusal = self.flow.refuse(&item, refusal, self.stop, self.place());
        TryProduceError::Refused(refusal.with(item, self.stop, self.place()))
    }
}

impl<T: Item> Drop for PendingItem<T> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            self.flow.refuse(&item, Refusal::<()>::TimedOut, self.stop, self.place());
        }
    }
}

impl<T: Item> fmt::Debug for PendingItem<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingItem").field("partition", &self.partition).finish_non_exhaustive()
    }
}

/// A partition and a type. An item waits for room behind those of its type or, with a consumer,
/// behind all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Line {
    /// The partition's index.
    pub partition: usize,
    /// The type; with a consumer, one value for all types.
    pub key: TypeKey,
}

/// Notifies a listener of room in one partition until it is dropped.
pub struct Listening<T: Item> {
    flow: Arc<Flow<T>>,
    partition: usize,
    listener: Arc<dyn Listener>,
}

impl<T: Item> Drop for Listening<T> {
    fn drop(&mut self) {
        self.flow.route.partition(self.partition).stop_listening(&self.listener);
    }
}

impl<T: Item> fmt::Debug for Listening<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl<T: Item> Flow<T> {
    /// Puts one item without waiting. `is_awaited` returns whether items that the caller does not
    /// want to overtake wait in a line.
    pub(crate) fn try_produce(
        self: &Arc<Self>,
        item: T,
        chosen: Option<usize>,
        is_awaited: &dyn Fn(Line) -> bool,
    ) -> Result<(), TryProduceError<T>> {
        let partition = match chosen {
            Some(index) => self.chosen_partition(index),
            None => self.select(item.type_key()),
        };
        // A thread that those items wait for must not wait behind them.
        let line = self.line(partition, item.type_key());
        if is_awaited(line) && !self.would_wait_for_itself() {
            partition.begin_delayed();
            let pending = PendingItem::new(self, partition, item);
            return Err(TryProduceError::Pending(pending));
        }
        match partition.put(item, on_drain_thread) {
            Ok(signal) => {
                self.wake_inside(partition, signal);
                Ok(())
            }
            Err((item, stop)) => PendingItem::new(self, partition, item).stopped(stop),
        }
    }

    fn line(&self, partition: &Partition<T>, key: TypeKey) -> Line {
        let by_type = matches!(self.consumption, Consumption::ByHandler);
        Line { partition: partition.index, key: if by_type { key } else { TypeKey(0) } }
    }

    /// Returns the number of items that a line's partition has room for.
    pub(crate) fn room(&self, line: Line) -> usize {
        let partition = self.route.partition(line.partition);
        let room = partition.room(line.key);
        if room == 0 && self.mark_stalled_types(partition) {
            partition.room(line.key)
        } else {
            room
        }
    }

    /// Puts items in order, up to the first that cannot be put immediately. The rest stays in
    /// `items`.
    pub(crate) fn try_produce_many(
        self: &Arc<Self>,
        items: &mut impl Source<T>,
    ) -> Result<(), TryProduceError<T>> {
        match self.put_many(items) {
            Some((item, partition, stop)) => PendingItem::new(self, partition, item).stopped(stop),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::TryProduceError;
    use crate::config::Config;
    use crate::flow::batch::Batch;
    use crate::flow::handler::HandlerRef;
    use crate::flow::partition::space::Listener;
    use crate::queue::BatchQueue;
    use crate::sync::{Arc, Condvar, Mutex, wait_for};
    use crate::testing::loom::{Number, ONE, Seen, config, model, model_by_turns};
    use crate::testing::threads::Latch;

    /// An event loop that sleeps until it is notified.
    #[derive(Default)]
    struct Ear {
        heard: Mutex<bool>,
        more: Condvar,
    }

    impl Listener for Ear {
        fn hear(&self, _partition: usize) {
            *self.heard.lock() = true;
            self.more.notify_all();
        }
    }

    impl Ear {
        fn sleep(&self) {
            let mut heard = self.heard.lock();
            while !std::mem::take(&mut *heard) {
                heard = wait_for(&self.more, heard, None);
            }
        }
    }

    /// Puts an item as an event loop would. Returns whether it was put.
    fn put(queue: &BatchQueue<Number>, number: u32) -> bool {
        let mut pending = match queue.try_produce(Number(ONE, number), None, &|_| false) {
            Ok(()) => return true,
            Err(TryProduceError::Refused(_)) => return false,
            Err(TryProduceError::Pending(pending)) => pending,
        };
        let ear = Arc::new(Ear::default());
        let _listening = pending.listen(ear.clone());
        loop {
            if queue.room(pending.line()) == 0 {
                ear.sleep();
            }
            match pending.try_again() {
                Ok(()) => return true,
                Err(TryProduceError::Refused(_)) => return false,
                Err(TryProduceError::Pending(again)) => pending = again,
            }
        }
    }

    /// The owner takes while the loop begins to listen: the loop is notified, or sees the room.
    #[test]
    fn loom_space_while_a_loop_begins_to_listen() {
        model_by_turns(5, 2, || {
            let seen = Arc::new(Seen::default());
            let queue =
                BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap();
            queue.add_handler(ONE, seen.handler()).unwrap();
            assert!(put(&queue, 1));
            assert!(put(&queue, 2));
            queue.shutdown(None);
            assert_eq!(seen.numbers(), [1, 2]);
        });
    }

    /// Only the close can end the wait: the handler is running, and the partition is full.
    #[test]
    fn loom_close_while_a_loop_listens() {
        model(2, || {
            let queue = Arc::new(
                BatchQueue::builder("q", Config { buffer_size: 1, ..config(1) }).start().unwrap(),
            );
            let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
            let handler = {
                let (entered, release) = (entered.clone(), release.clone());
                HandlerRef::new(move |batch: &mut Batch<Number>| {
                    drop(batch.drain());
                    entered.open();
                    release.wait();
                })
            };
            queue.add_handler(ONE, handler).unwrap();
            queue.produce(Number(ONE, 1)).unwrap();
            entered.wait();
            queue.produce(Number(ONE, 2)).unwrap();
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || put(&queue, 3))
            };
            queue.close();
            assert!(!producer.join().unwrap());
            release.open();
            queue.shutdown(None);
            let stats = queue.stats();
            assert_eq!((stats.attempts, stats.produced, stats.refused), (3, 2, 1));
        });
    }
}
