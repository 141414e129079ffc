//! Produce: puts one item, with or without waiting. Bulk produce is in `produce/many.rs`.

pub(crate) mod many;
pub(crate) mod pending;

use crate::config::{BufferStrategy, Selector};
use crate::error::ProduceError;
use crate::flow::handler::dispatch_log::Problem;
use crate::flow::partition::{Attempt, Partition, Stop};
use crate::flow::state::Flow;
use crate::item::{Item, TypeKey, counted};
use crate::sync::{Arc, Duration, Instant, Ordering, time_since};
use crate::threads::context::{on_drain_thread, this_thread};
use crate::threads::park::Signal;
use crate::threads::pool::Compensation;
use crate::threads::waits::{CHECK_EVERY, Pause, Waiting, WatchedWait, Wish, shorter, slice};

impl<T: Item> Flow<T> {
    /// Puts one item.
    #[allow(clippy::inline_always)] // as `Partition::put`
    #[inline(always)]
    pub(crate) fn produce<P: Pause>(
        self: &Arc<Self>,
        item: T,
        chosen: Option<usize>,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        debug_assert_eq!(item.weight(), 1, "weighted items need produce_weighted");
        let partition = match chosen {
            Some(index) => self.chosen_partition(index),
            None => self.select(item.type_key()),
        };
        match partition.put(item, on_drain_thread) {
            Ok(signal) => {
                self.wake_inside(partition, signal);
                Ok(())
            }
            Err((item, stop)) => self.produce_slowly(partition, item, stop, deadline, pause),
        }
    }

    /// Continues after a failed first attempt.
    #[cold]
    fn produce_slowly<P: Pause>(
        self: &Arc<Self>,
        partition: &Partition<T>,
        mut item: T,
        mut stop: Stop,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        let inside_pool = on_drain_thread();
        let mut wait = ProducerWait::default();
        loop {
            if stop != Stop::Full || !self.mark_stalled_types(partition) {
                let wanted = &Wanted { partition, key: item.type_key(), weight: 1 };
                if let Err(refusal) = self.wait_or_refuse(wanted, stop, deadline, pause, &mut wait)
                {
                    return Err(self
                        .refuse(&item, refusal, stop, partition)
                        .with(item, stop, partition));
                }
            }
            match partition.put_again(item, inside_pool) {
                Ok(signal) => {
                    self.wake_inside(partition, signal);
                    return Ok(());
                }
                Err(back) => (item, stop) = back,
            }
        }
    }

    /// Counts a refused item, and logs it at most once per type and minute.
    fn refuse<E>(
        &self,
        item: &T,
        refusal: Refusal<E>,
        stop: Stop,
        partition: &Partition<T>,
    ) -> Refusal<E> {
        partition.refuse(item.weight());
        let (queue, items) = (&self.name, item.weight() as u64);
        let line = |refused: u64| {
            let (index, size) = (partition.index, partition.buffer_size);
            let why = match (&refusal, stop) {
                (Refusal::Closed, _) => "the queue is shut down".to_owned(),
                (_, Stop::Stalled) => format!(
                    "the handler is slow, failing or hung, so partition {index} keeps its room \
                     for other types"
                ),
                _ => format!(
                    "partition {index} is full ({size}/{size}): raise buffer_size or add drain \
                     threads"
                ),
            };
            let (name, items) = (self.host.type_name(item), counted(refused, "item"));
            let text = Problem::Refused.text(refused);
            let line = format!("queue {queue}: {items} of {name} {text}, {why}");
            (name, line)
        };
        let line = self.dispatch_log.note(queue, Problem::Refused, item.type_key(), items, line);
        if let Some(line) = line {
            self.warn_in_call(line);
        }
        refusal
    }

    #[inline]
    fn select(&self, key: TypeKey) -> &Partition<T> {
        if self.config.selector == Selector::ByType {
            return self.route.partition_for(key);
        }
        // Relaxed: any spread will do.
        let next = self.next_partition.fetch_add(1, Ordering::Relaxed);
        self.route.partition(next % self.route.partition_count())
    }

    /// Returns the partition that the caller chose.
    fn chosen_partition(&self, index: usize) -> &Partition<T> {
        let partition = self.route.partition(index);
        if self.config.selector == Selector::ByType {
            partition.mix();
        }
        partition
    }

    /// Checks whether to wait for room, after a partition did not accept the item: the queue's
    /// strategy must allow it, and the wait must be able to end.
    fn may_wait<E>(
        self: &Arc<Self>,
        partition: &Partition<T>,
        stop: Stop,
    ) -> Result<(), Refusal<E>> {
        if stop == Stop::Closed {
            return Err(Refusal::Closed);
        }
        // Ends a rest of the drain thread, which may rest only while no producer has to wait.
        self.wake_inside(partition, Signal::Pressure);
        if self.config.strategy == BufferStrategy::IfPossible {
            return Err(Refusal::Full);
        }
        if self.would_wait_for_itself() {
            return Err(Refusal::Reentrant(None));
        }
        Ok(())
    }

    /// Waits for room if the item [may wait](Self::may_wait).
    fn wait_or_refuse<P: Pause>(
        self: &Arc<Self>,
        wanted: &Wanted<'_, T>,
        stop: Stop,
        deadline: Option<Instant>,
        pause: &mut P,
        wait: &mut ProducerWait,
    ) -> Result<(), Refusal<P::Interrupt>> {
        let &Wanted { partition, key, weight } = wanted;
        self.may_wait(partition, stop)?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Refusal::TimedOut);
        }
        if wait.begin() {
            let Ok(worker) = self.compensate() else { return Err(Refusal::Reentrant(None)) };
            wait.compensation = worker;
            wait.watched = self.watch_wait(partition.index, key);
            if deadline.is_none() {
                wait.recorded = self.record_wait(partition, key);
            }
        } else if let Some(circle) = wait.circle() {
            return Err(Refusal::Reentrant(Some(circle)));
        }
        let inside_pool = on_drain_thread();
        let check_every = wait.recorded.as_ref().map(|_| CHECK_EVERY);
        pause
            .pause(&mut |limit| {
                let limit = shorter(slice(limit, deadline), self.stall_slice(partition));
                let limit = shorter(limit, check_every);
                partition.wait_for_room(key, weight, limit, inside_pool);
            })
            .map_err(Refusal::Interrupted)
    }

    /// Registers a producer that is about to wait for room with the watchdog.
    pub(crate) fn watch_wait(&self, partition: usize, key: TypeKey) -> Option<WatchedWait> {
        // loom has no clock.
        self.config.warn_after.filter(|_| !cfg!(loom))?;
        let thread = this_thread(|| self.host.thread_number());
        Some(self.waiting_producers.begin(partition, key, thread))
    }

    /// Records the wait if the calling thread is in a handler, because it may never end.
    fn record_wait(self: &Arc<Self>, partition: &Partition<T>, key: TypeKey) -> Option<Waiting> {
        Waiting::begin(self.clone(), Wish::Room { partition: partition.index, key })
    }
}

/// The state of a producer's whole wait: a worker returned after each slice might not be available
/// again.
#[derive(Default)]
struct ProducerWait {
    has_begun: bool,
    compensation: Option<Compensation>,
    /// For the watchdog.
    watched: Option<WatchedWait>,
    recorded: Option<Waiting>,
}

impl ProducerWait {
    /// Begins a slice. Returns whether it is the first.
    fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    fn circle(&self) -> Option<String> {
        self.recorded.as_ref().and_then(Waiting::circle)
    }
}

/// The room that a producer waits for.
struct Wanted<'a, T> {
    partition: &'a Partition<T>,
    key: TypeKey,
    weight: usize,
}

/// Why an item was not put, without the item.
enum Refusal<E> {
    Full,
    Closed,
    TimedOut,
    /// The wait would never end, because it needs something that the calling thread holds; with the
    /// circle of waits if other threads are involved.
    Reentrant(Option<String>),
    Interrupted(E),
}

impl<E> Refusal<E> {
    fn with<T, U>(self, item: U, stop: Stop, partition: &Partition<T>) -> ProduceError<U, E> {
        let (partition, buffer_size) = (partition.index, partition.buffer_size);
        match self {
            Self::Full => ProduceError::Full(item),
            Self::Closed => ProduceError::Closed(item),
            Self::TimedOut => {
                let is_stalled = stop == Stop::Stalled;
                ProduceError::TimedOut { item, partition, buffer_size, is_stalled }
            }
            Self::Reentrant(circle) => {
                ProduceError::Reentrant { item, partition, buffer_size, circle }
            }
            Self::Interrupted(cause) => ProduceError::Interrupted(item, cause),
        }
    }
}

// Searching a full partition for stalled types; see `partition/room.rs`.

/// The shortest time between two searches of one partition.
const SEARCH_EVERY: Duration = Duration::from_millis(10);

/// How long a waiting producer sleeps before it searches again.
const WAIT_SLICE: Duration = Duration::from_millis(50);

impl<T: Item> Flow<T> {
    /// Marks the types that hold up a full partition as stalled. Returns whether that has made
    /// room.
    #[cold]
    fn mark_stalled_types(&self, partition: &Partition<T>) -> bool {
        if !self.may_stall(partition) || !partition.has_lanes() {
            return false;
        }
        partition.begin_search(time_since(self.started), SEARCH_EVERY)
            && partition.mark_stalled(Instant::now())
    }

    /// Returns how long to wait for room before the next search for stalled types, or `None` if no
    /// search is needed. Applies even while the partition has no lanes: one that appears later may
    /// notify no producer.
    fn stall_slice(&self, partition: &Partition<T>) -> Option<Duration> {
        self.may_stall(partition).then_some(WAIT_SLICE)
    }

    fn may_stall(&self, partition: &Partition<T>) -> bool {
        !self.has_one_type(partition)
    }
}

// Weighted produce: an item that represents many, such as a block of rows, is put by its weight,
// and cut where only a piece fits.

impl<T: Item> Flow<T> {
    /// Puts an item by its weight. Returns whatever was refused: the whole item, or the rest of it.
    ///
    /// With `Blocking` an item is put whole, or in pieces of half a buffer, so that a busy
    /// partition does not fragment it. Each attempt without enough room halves the piece size,
    /// because lighter producers may take all room that becomes free. With `IfPossible` as much as
    /// fits is put.
    pub(crate) fn produce_weighted<P: Pause>(
        self: &Arc<Self>,
        mut item: T,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), ProduceError<T, P::Interrupt>> {
        let (partition, inside_pool) = (self.select(item.type_key()), on_drain_thread());
        let mut piece = partition.buffer_size.div_ceil(2);
        let (mut attempt, mut wait) = (Attempt::New, ProducerWait::default());
        loop {
            let least = match self.config.strategy {
                BufferStrategy::Blocking => item.weight().min(piece),
                BufferStrategy::IfPossible => 1,
            };
            let (signal, rest) = partition.put_weighted(item, least, attempt, inside_pool);
            self.wake_inside(partition, signal);
            let Some((rest, stop)) = rest else { return Ok(()) };
            attempt = Attempt::Again;
            let least = rest.weight().min(piece);
            piece = piece.div_ceil(2);
            item = rest;
            if stop == Stop::Full && self.mark_stalled_types(partition) {
                continue;
            }
            let wanted = &Wanted { partition, key: item.type_key(), weight: least };
            if let Err(refusal) = self.wait_or_refuse(wanted, stop, deadline, pause, &mut wait) {
                return Err(self
                    .refuse(&item, refusal, stop, partition)
                    .with(item, stop, partition));
            }
        }
    }
}
