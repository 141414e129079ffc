//! A lane: the order of one type in one partition.
//!
//! A lane exists only while it holds something: at most one job, which is the next call of the
//! type's handler, and behind it the tail, from which later jobs are made.
//!
//! ```text
//!              add          submit: the handler lock is free
//!   (no lane) ─────▶ ready ──────────────────────────▶ running ──end, no tail──▶ (no lane)
//!                     ▲ │                               │   │
//!                     │ └─submit: the handler lock is held─▶ posted │──end, a tail──▶ ready
//!                     │                  │  └─the holder serves it─▶ running
//!                     ├──────recall──────┘                  │
//!                     ├──────────due───── backing off ◀─────┘ failed, to be tried again
//!                     └─full or due────── lingering ◀──── ready, with less than a batch
//! ```

use std::any::Any;

use smallvec::{SmallVec, smallvec};

use crate::flow::batch::{Batch, Failure};
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::lock::JobPlace;
use crate::flow::segments::PutTime;
use crate::item::{Item, TypeKey};
use crate::observe::CallFigures;
use crate::sync::{Arc, Deadline, Duration, Instant};

/// How long the job of a lane waits before a full partition marks its type as stalled.
pub(crate) const STALLED_AFTER: Duration = Duration::from_millis(if cfg!(loom) { 0 } else { 100 });

/// The items, of one type and partition, that one call of a handler gets.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) place: JobPlace,
    pub(crate) batch: Batch<T>,
    /// The items of the batch before its first try, by weight.
    pub(crate) items: usize,
    /// The weight of the last item beyond the batch limit. It counts as left in the lane, and goes
    /// back there before the first try.
    pub(crate) excess: usize,
    /// The pieces of a halved batch that are tried after this one, last to first.
    pub(crate) pieces: Vec<Piece<T>>,
    /// Tries of the batch so far.
    pub(crate) tries: u32,
    /// The time spent in the handler so far.
    pub(crate) took: Duration,
    /// When its first item was put, or an earlier time; kept until the first try.
    pub(crate) put_at: Option<Instant>,
    /// The figures of the last try, until they are noted.
    pub(crate) call: Option<CallFigures>,
    /// The drain thread whose consumer tried it, if each thread has its own consumer.
    pub(crate) tried_by: Option<usize>,
    /// The final failure, if the box of its dead letters had no room.
    pub(crate) dead: Option<Box<Dead<T>>>,
    /// If a removed handler gets the job, kept until it is settled.
    pub(crate) _unsettled: Option<UnsettledMark>,
}

/// A part of a batch that was halved.
#[derive(Debug)]
pub(crate) struct Piece<T> {
    pub(crate) batch: Batch<T>,
    /// Tries of its items so far.
    pub(crate) tries: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It is in the list of ready lanes.
    Ready,
    /// Its job has a ticket at the handler lock with this address. With a deadline, it is submitted
    /// again at that time.
    Posted(usize, Option<Deadline>),
    /// A thread has its job in flight, and holds the handler lock with this address; 0 without a
    /// handler.
    Running(usize),
    BackingOff(Deadline),
    /// Its batch has fewer than `full` items, and waits for more until the deadline.
    Lingering {
        until: Deadline,
        full: usize,
    },
}

impl State {
    pub(crate) fn due(self) -> Option<Deadline> {
        match self {
            Self::BackingOff(until)
            | Self::Lingering { until, .. }
            | Self::Posted(_, Some(until)) => Some(until),
            _ => None,
        }
    }
}

/// A job whose items failed for good, on its way to a box.
#[derive(Debug)]
pub(crate) struct Dead<T> {
    pub(crate) failure: Failure,
    pub(crate) to: Arc<DeadLetterBox<T>>,
    _waits: Arc<()>,
}

impl<T> Dead<T> {
    pub(crate) fn new(failure: Failure, to: Arc<DeadLetterBox<T>>) -> Self {
        Self { failure, _waits: to.wait_mark(), to }
    }
}

/// The items that a removed handler still gets: those that lingered when it was removed.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// The number of items, by weight.
    pub(crate) items: usize,
    /// The handlers, as the route had them.
    pub(crate) to: Arc<dyn Any + Send + Sync>,
    /// Dropped when the items are settled.
    pub(crate) unsettled: UnsettledMark,
}

/// A mark of unsettled items: a removal waits until no clone is left.
pub(crate) type UnsettledMark = Arc<()>;

/// A lower bound of the position and put time of a run of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Since {
    /// At least this many other items of the partition were put before each of them.
    pub(crate) taken: u64,
    /// No item of the run was put earlier.
    pub(crate) put_at: PutTime,
}

#[cfg(all(test, loom))]
impl Since {
    /// Returns the start of a partition's first items.
    pub(crate) fn start() -> Self {
        Self { taken: 0, put_at: PutTime::default() }
    }
}

#[derive(Debug)]
pub(crate) struct Lane<T> {
    pub(crate) key: TypeKey,
    pub(crate) state: State,
    /// The job to be retried, ahead of the tail. Boxed, like `outstanding`, because few lanes have
    /// either, and every batch moves its lane.
    pub(crate) failed: Option<Box<Job<T>>>,
    pub(crate) tail: Batch<T>,
    pub(crate) outstanding: Option<Box<Outstanding>>,
    /// The start of the job's items.
    pub(crate) start: Since,
    /// The runs of items in the tail, with their weights.
    runs: SmallVec<[(usize, Since); 1]>,
    /// When a put that found the partition full first saw this job.
    waits_since: Option<Instant>,
    /// Whether its held items do not count against the bound; see `partition/room.rs`.
    pub(crate) is_stalled: bool,
}

impl<T> Lane<T> {
    pub(crate) fn new(key: TypeKey, since: Since) -> Self {
        Self {
            key,
            state: State::Ready,
            failed: None,
            tail: Batch::default(),
            outstanding: None,
            start: since,
            runs: smallvec![(0, since)],
            waits_since: None,
            is_stalled: false,
        }
    }

    pub(crate) fn begin_run(&mut self, since: Since) {
        if self.runs.last().is_none_or(|(_, start)| *start != since) {
            self.runs.push((0, since));
        }
    }

    pub(crate) fn note_added(&mut self, weight: usize) {
        if let Some((items, _)) = self.runs.last_mut() {
            *items += weight;
        }
    }

    /// Takes the next batch off the tail. Returns it with the excess weight of its last item, which
    /// counts as left behind; see [`Batch::split_front`].
    pub(crate) fn split_tail(&mut self, most: usize) -> (Batch<T>, usize)
    where
        T: Item,
    {
        let (batch, excess) = self.tail.split_front(most);
        self.start = self.tail_start();
        self.drop_runs(batch.len());
        (batch, excess)
    }

    /// Removes lost items from the front of the tail, by weight.
    pub(crate) fn lose(&mut self, weight: usize) {
        self.tail.forget(weight);
        self.drop_runs(weight);
    }

    /// Shortens the runs after `items` were taken from the front of the tail.
    fn drop_runs(&mut self, mut items: usize) {
        let gone = self.runs.iter().take_while(|(run, _)| {
            let is_gone = *run <= items;
            items -= if is_gone { *run } else { 0 };
            is_gone
        });
        let gone = gone.count();
        self.runs.drain(..gone);
        if let Some((run, _)) = self.runs.first_mut() {
            *run -= items;
        }
    }

    /// Ends the job. Returns whether the tail has items for another one.
    pub(crate) fn end_job(&mut self) -> bool {
        self.waits_since = None;
        self.start = self.tail_start();
        !self.tail.is_empty()
    }

    /// Whether it lingers with a full batch.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.state, State::Lingering { full, .. } if self.tail.len() >= full)
    }

    /// Returns the items that are not in flight, by weight.
    pub(crate) fn held(&self) -> usize {
        self.failed.as_ref().map_or(0, |job| job.weight()) + self.tail.len()
    }

    pub(crate) fn lingers(&self) -> bool {
        matches!(self.state, State::Lingering { .. })
    }

    /// Returns a position before which no item outside the job in flight was put, if there is such
    /// an item.
    pub(crate) fn first_held(&self) -> Option<u64> {
        if self.failed.is_some() {
            return Some(self.start.taken);
        }
        (!self.tail.is_empty()).then(|| self.tail_start().taken)
    }

    /// Whether its job has waited for `limit`, counted from the first call of this method.
    pub(crate) fn has_waited(&mut self, limit: Duration, now: Instant) -> bool {
        now.saturating_duration_since(*self.waits_since.get_or_insert(now)) >= limit
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn runs(&self) -> &[(usize, Since)] {
        &self.runs
    }

    /// Returns the start of the tail, or that of the job if the tail is empty.
    pub(crate) fn tail_start(&self) -> Since {
        self.runs.first().map_or(self.start, |(_, start)| *start)
    }
}
