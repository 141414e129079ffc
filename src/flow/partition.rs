//! A partition: a crossbeam channel of sealed segments, and one open segment behind a lock.
//!
//! The lock, called the gate, guards the open segment together with the bound, the closed mark and
//! the counts, so that a put decides and acts in one step. Full segments leave through the channel:
//! the thread inside receives them without the lock, and the cost of the channel is paid per
//! segment rather than per item.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `gate.*` | producers, closer, thread inside (under the lock) | the same; statistics, meter |
//! | `space` | waiting producers; thread inside and closer, after freeing or closing | the same |
//! | `lanes` | thread inside, threads that end a job, removal (under the lock) | also flushes |
//! | `taken` | thread inside, plain stores under the lock of the lanes | producers (gate) |
//! | `released` | threads that change the lanes, under their lock | producers (gate) |
//! | `stalled`, `gate.has_stalled` | the same; producers that find it full | producers |
//! | `gate.lingers`, `gate.linger` | see [`Linger`] | the same |
//! | `gate.put_at`, `oldest_sealed_ns` | see *put times* at the end of the file | the same |
//! | `lane_use` | threads that change the lanes | drain threads before sleep, the assigning side |
//! | `weighed` | producers, thread inside (under the gate) | the same |
//! | `finished` | thread inside | the thread inside after it |
//! | `last_call_slow` | threads that call; registration | supervisor |
//! | `host_free` | registration of handlers | thread inside |
//! | `mixed` | registration of types; producers, before they put an unrouted type | thread inside |
//! | `largest_batch` | registration of handlers | thread inside |
//! | `revoked_at_ns` | control side, before it revokes | thread inside |
//!
//! `pushed - taken` items are queued. Items that are taken and not settled are in the lanes, held
//! there or in flight. `pushed - released` items, queued or held, count against the bound; see
//! `partition/room.rs`.

pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod put;
pub(crate) mod ready;
pub(crate) mod room;
pub(crate) mod space;
pub(crate) mod take;
#[cfg(all(test, not(loom)))]
mod tests;

use rustc_hash::FxHashSet;

use crate::flow::partition::lanes::{LaneUse, Lanes};
use crate::flow::partition::ready::ReadyBit;
use crate::flow::partition::space::Space;
use crate::flow::segments::{PutTime, Segment, SegmentPool};
use crate::item::TypeKey;
use crate::observe::{PartitionCounts, measures};
use crate::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Duration, Instant, OnceLock,
    Ordering, QuickMutex, SegmentChannel,
};
use crate::threads::park::Signal;

/// Why a put stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Full,
    /// The item's type is stalled; see `partition/room.rs`.
    Stalled,
    Closed,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Partition<T> {
    gate: QuickMutex<Gate<T>>,
    drain_side: DrainSide,
    /// Locked before the gate.
    pub(crate) lanes: QuickMutex<Lanes<T>>,
    pub(crate) index: usize,
    pub(crate) buffer_size: usize,
    segment_size: usize,
    /// Created for the first full segment: in a queue with many types, most partitions never fill
    /// one.
    sealed: OnceLock<SegmentChannel<Segment<T>>>,
    ready: ReadyBit,
    space: Space,
    /// Locked after the gate.
    stalled: QuickMutex<StalledTypes>,
    /// When a put that finds the partition full may next search for stalled lanes, relative to the
    /// queue's start.
    next_stall_check_ns: AtomicU64,
    slow: SlowCounts,
    segment_pool: Arc<SegmentPool<T>>,
    /// The items put before the open segment, by weight.
    weighed: AtomicU64,
    /// Whether no known handler of its types needs the host, so that drain threads take from here
    /// outside it.
    host_free: AtomicBool,
    last_call_slow: AtomicBool,
    /// Whether items of several types may be here, with the selector `ByType`.
    mixed: AtomicBool,
    /// The largest batch limit that one of its types has had, if above the queue's.
    largest_batch: AtomicUsize,
}

/// The fields that the thread inside writes, in a separate cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct DrainSide {
    taken: AtomicU64,
    released: AtomicU64,
    /// A [`LaneUse`].
    lane_use: AtomicU8,
    finished: AtomicBool,
    /// Received segments that `gate.sealed` still counts.
    received: AtomicU16,
    /// The put time of the oldest segment in the channel, or of the one before it; see
    /// *put times*.
    oldest_sealed_ns: AtomicU64,
    revoked_at_ns: AtomicU64,
}

impl<T> Partition<T> {
    /// Whether items of several types may be here. Called for taken items. Relaxed: the gate or the
    /// channel that delivered an item delivered its mark, too.
    pub(crate) fn is_mixed(&self) -> bool {
        self.mixed.load(Ordering::Relaxed)
    }

    /// Marks that items of other types may arrive from now on. A producer that calls this may hold
    /// gates.
    pub(crate) fn mix(&self) {
        if !self.is_mixed() {
            self.mixed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the most items that one of its types may get in a call if that exceeds the queue's
    /// limit, and 0 otherwise. Not in loom, where no type has a limit.
    pub(crate) fn largest_batch(&self) -> usize {
        // Relaxed: a turn that sees the old limit takes less.
        if cfg!(loom) { 0 } else { self.largest_batch.load(Ordering::Relaxed) }
    }

    /// Notes that one of its types has a handler with this batch limit.
    pub(crate) fn note_batch_limit(&self, items: usize) {
        // Relaxed: as in `largest_batch`.
        self.largest_batch.fetch_max(items, Ordering::Relaxed);
    }

    /// Relaxed: a thread that sees the old mark does the same work in or outside the host.
    pub(crate) fn is_host_free(&self) -> bool {
        self.host_free.load(Ordering::Relaxed)
    }

    pub(crate) fn set_host_free(&self, host_free: bool) {
        self.host_free.store(host_free, Ordering::Relaxed);
    }

    /// Whether the last call for its items took long.
    pub(crate) fn is_slow(&self) -> bool {
        // Relaxed: a hint, ordered by nothing.
        self.last_call_slow.load(Ordering::Relaxed)
    }

    /// Notes after a call whether it took long.
    #[inline]
    pub(crate) fn note_slow(&self, is_slow: bool) {
        if self.is_slow() != is_slow {
            // Relaxed: as in `is_slow`.
            self.last_call_slow.store(is_slow, Ordering::Relaxed);
        }
    }

    pub(crate) fn new(
        index: usize,
        ready: ReadyBit,
        buffer_size: usize,
        segment_size: usize,
        segment_pool: Arc<SegmentPool<T>>,
    ) -> Self {
        // Unless items linger, a put touches one cache line of the partition: the lock and what it
        // guards. loom's locks are larger.
        const { assert!(std::mem::offset_of!(Gate<T>, linger) + 8 <= 64 || cfg!(loom)) };
        Self {
            gate: QuickMutex::new(Gate::new()),
            drain_side: DrainSide::default(),
            lanes: QuickMutex::new(Lanes::new()),
            index,
            buffer_size,
            segment_size,
            sealed: OnceLock::new(),
            ready,
            space: Space::new(),
            stalled: QuickMutex::new(StalledTypes::default()),
            next_stall_check_ns: AtomicU64::new(0),
            slow: SlowCounts::default(),
            segment_pool,
            weighed: AtomicU64::new(put::NONE),
            host_free: AtomicBool::new(false),
            last_call_slow: AtomicBool::new(false),
            mixed: AtomicBool::new(false),
            largest_batch: AtomicUsize::new(0),
        }
    }

    // ---- queued items

    /// Whether nothing is queued, exactly.
    fn is_empty(&self, gate: &mut Gate<T>) -> bool {
        // `released` shares a cache line with `taken`, and a put that finds nothing queued makes a
        // plan.
        self.refresh_released(gate);
        gate.pushed() == self.taken()
    }

    /// Whether something is queued. A partition may be ready with nothing queued; see `take.rs`.
    pub(crate) fn has_queued(&self) -> bool {
        !self.is_empty(&mut self.gate.lock())
    }

    /// Returns the number of items taken so far.
    pub(crate) fn taken(&self) -> u64 {
        // Acquire: pairs with the Release in `store_taken`.
        self.drain_side.taken.load(Ordering::Acquire)
    }

    #[inline]
    fn append(&self, gate: &mut Gate<T>, item: T) {
        gate.note_time();
        gate.open.push(item);
        self.seal_full(gate);
    }

    /// Seals the open segment after a put if it is full, or if it completes a batch that waits for
    /// that.
    #[inline]
    fn seal_full(&self, gate: &mut Gate<T>) {
        if gate.open.len() >= self.segment_size || gate.lingers && gate.ends_batch() {
            self.seal(gate);
        }
    }

    #[cold]
    fn seal(&self, gate: &mut Gate<T>) {
        let next = self.segment_pool.segment();
        let full = self.replace_open(gate, next);
        self.note_oldest_sealed(gate, full.put_at);
        // Sealed segments are full, except one that ends a batch, and count against the bound until
        // `taken` is stored. So the channel never holds more than `buffer_size / segment_size` of
        // them plus that one.
        let most = self.buffer_size / self.segment_size + 3;
        match self.sealed.get_or_init(|| SegmentChannel::bounded(most)).try_send(full) {
            Ok(()) => gate.sealed += 1,
            // Unreachable because of the bound.
            Err(segment) => {
                gate.before_open -= segment.items.len() as u64;
                gate.open = segment.items;
            }
        }
    }

    /// Announces that `put` items were put, under the gate: sets the ready bit on the transition
    /// from empty to non-empty, and returns the signal for the owner.
    #[inline]
    fn announce(&self, gate: &mut Gate<T>, was_empty: bool, put: usize) -> Signal {
        if put == 0 {
            return Signal::Nothing;
        }
        let notify = if gate.lingers { gate.note_put(put) } else { Notify::AsUsual };
        if was_empty && notify == Notify::AsUsual || notify == Notify::BatchIsFull {
            self.ready.set();
        }
        let level = self.pressure_level(gate);
        if gate.queued() >= level {
            // A stale value may make the partition look fuller than it is.
            self.refresh_released(gate);
        }
        gate.plan(level, self.segment_size);
        if gate.lingers {
            gate.plan_suppression();
        }
        let queued = gate.queued();
        if notify == Notify::Suppressed {
            Signal::Nothing
        } else if queued >= level && queued < level + put {
            Signal::Pressure
        } else if was_empty || notify == Notify::BatchIsFull {
            // A full batch may wait for a rest to end, which happens when an item is due.
            Signal::FirstItem
        } else {
            Signal::Nothing
        }
    }

    /// Returns the number of queued items at which a put signals pressure: half of the bound, or
    /// seven eighths where items linger. A thread leaves such partitions at different levels, so
    /// with half of the bound each would end a rest separately, for one batch.
    fn pressure_level(&self, gate: &Gate<T>) -> usize {
        let size = self.buffer_size;
        if gate.lingers { size - size / 8 } else { size.div_ceil(2) }
    }

    // ---- control and statistics

    pub(crate) fn set_ready(&self) {
        self.ready.set();
    }

    /// Whether the ready bit is set. The caller has fenced.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.is_set()
    }

    /// Records when the partition was revoked, relative to the queue's start. Called before the
    /// owner word changes.
    pub(crate) fn note_revoked(&self, at: Duration) {
        // Relaxed: published by the exchange of the owner word.
        self.drain_side
            .revoked_at_ns
            .store(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn revoked_at(&self) -> Duration {
        // Relaxed: the caller has read the owner word.
        Duration::from_nanos(self.drain_side.revoked_at_ns.load(Ordering::Relaxed))
    }

    /// Restricts who may put, and notifies waiting producers.
    pub(crate) fn restrict(&self, access: Access) {
        let mut gate = self.gate.lock();
        gate.access = gate.access.max(access);
        gate.withdraw_plan();
        drop(gate);
        self.space.notify();
    }

    /// Returns the position in the partition's order up to which all items are settled.
    pub(crate) fn completed(&self) -> u64 {
        let lanes = self.lanes.lock();
        lanes.completed(self.taken())
    }

    /// Whether there are items that are taken and not settled.
    pub(crate) fn has_lanes(&self) -> bool {
        self.lane_use() != LaneUse::Empty
    }

    /// Whether all items that are taken and not settled are in calls, and the owner has noted it.
    pub(crate) fn waits_for_calls(&self) -> bool {
        self.lane_use() == LaneUse::NotedCalls
    }

    /// Whether the lanes have work for the owner, now or later.
    pub(crate) fn waits_for_owner(&self) -> bool {
        matches!(self.lane_use(), LaneUse::Owner | LaneUse::Timer)
    }

    /// Whether the lanes have no work for the owner before a deadline, for which it has a timer.
    pub(crate) fn waits_for_timer(&self) -> bool {
        self.lane_use() == LaneUse::Timer
    }

    fn lane_use(&self) -> LaneUse {
        // Relaxed: ordered by the caller's fence.
        LaneUse::of(self.drain_side.lane_use.load(Ordering::Relaxed))
    }

    /// Changes the lanes under their lock, and updates what they wait for. `change` must not drop
    /// items.
    #[inline]
    pub(crate) fn change_lanes<R>(&self, change: impl FnOnce(&mut Lanes<T>) -> R) -> R {
        let mut lanes = self.lanes.lock();
        let result = change(&mut lanes);
        self.note_lanes(lanes.lane_use());
        result
    }

    /// Publishes what the lanes wait for, under their lock, after a change.
    #[inline]
    pub(crate) fn note_lanes(&self, lane_use: LaneUse) {
        // Relaxed: a caller that wakes the owner fences first.
        self.drain_side.lane_use.store(lane_use as u8, Ordering::Relaxed);
    }
}

// The counts of a partition: items that producers attempted and put, and that drain threads took
// and completed.

/// The items of a partition that wait for their call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// At least this many items were put before the first that waits.
    pub(crate) first: u64,
    /// The items put so far.
    pub(crate) pushed: u64,
    /// When the oldest item that no call has had was put, or an earlier time; `None` if unknown.
    pub(crate) put: Option<Instant>,
}

impl<T> Partition<T> {
    /// Counts a put that has to wait behind others before its first attempt.
    pub(crate) fn begin_delayed(&self) {
        let _gate = self.gate.lock();
        self.count_slow(Attempt::New, 1, 0);
    }

    /// Counts puts that do not succeed immediately, or delayed puts that have now succeeded. Called
    /// under the gate.
    pub(super) fn count_slow(&self, attempt: Attempt, delayed: usize, put: usize) {
        self.slow.count(attempt, delayed, put);
    }

    /// Returns the attempts so far, including those that wait, so that a balancer sees the demand.
    fn attempts_of(&self, gate: &Gate<T>) -> u64 {
        self.slow.attempts(gate.pushed())
    }

    /// Counts `items` attempts that gave up.
    pub(crate) fn refuse(&self, items: usize) {
        let _gate = self.gate.lock();
        self.slow.refuse(items);
    }

    /// Returns the position that a flush waits for: the number of items put so far.
    pub(crate) fn pushed_under_gate(&self) -> u64 {
        self.gate.lock().pushed()
    }

    /// Returns the items that wait for their call, if any, not counting those that linger.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        let lanes = self.lanes.lock();
        let pushed = self.gate.lock().pushed();
        let (taken, held, lingers) = (self.taken(), lanes.first_held(), lanes.has_lingering());
        drop(lanes);
        let queued = (pushed > taken && !lingers).then_some(taken);
        let first = held.into_iter().chain(queued).min()?;
        // Lingering items may be older than the first that waits.
        let put = if lingers { None } else { self.oldest_put() };
        Some(Waiting { first, pushed, put })
    }

    /// Returns a consistent snapshot of the counts: under the two locks no item enters, is taken or
    /// is settled.
    pub(crate) fn counts(&self) -> PartitionCounts {
        let lanes = self.lanes.lock();
        let gate = self.gate.lock();
        PartitionCounts {
            attempts: self.attempts_of(&gate),
            pushed: gate.pushed(),
            refused: self.slow.refused(),
            taken: self.taken(),
            settled: lanes.settled(),
            held: lanes.held() as u64,
            calls: lanes.calls(),
            backs_off: lanes.back_off(),
        }
    }
}

// The counts of puts that do not succeed immediately.

/// Whether a put counts as a new attempt, or continues one that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    New,
    Again,
}

/// The counts of puts that do not succeed immediately. Accessed under the partition's gate.
#[derive(Debug, Default)]
pub(super) struct SlowCounts {
    refused: AtomicU64,
    /// Puts that did not succeed immediately.
    delayed: AtomicU64,
    /// Delayed puts that succeeded in the end.
    delayed_pushed: AtomicU64,
}

impl SlowCounts {
    /// Counts `delayed` items of a new put that does not succeed immediately, or `put` items of a
    /// delayed put that have now succeeded.
    pub(super) fn count(&self, attempt: Attempt, delayed: usize, put: usize) {
        match attempt {
            Attempt::New => add(&self.delayed, delayed),
            Attempt::Again => add(&self.delayed_pushed, put),
        }
    }

    pub(super) fn refuse(&self, items: usize) {
        add(&self.refused, items);
    }

    pub(super) fn refused(&self) -> u64 {
        // Relaxed: under the gate.
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the attempts so far, given the number of items put.
    pub(super) fn attempts(&self, pushed: u64) -> u64 {
        // Relaxed: under the gate.
        pushed - self.delayed_pushed.load(Ordering::Relaxed) + self.delayed.load(Ordering::Relaxed)
    }
}

/// Adds under the gate, which makes a read-modify-write unnecessary.
fn add(count: &AtomicU64, items: usize) {
    // Relaxed: written and read under the gate.
    count.store(count.load(Ordering::Relaxed) + items as u64, Ordering::Relaxed);
}

// The state behind the gate: the open segment, the bound, the access, and the plan for the next
// puts.

/// The stalled types of a partition; see `room.rs`.
pub(super) type StalledTypes = FxHashSet<TypeKey>;

/// Who may still put items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// All threads.
    Open,
    /// Drain threads only, so that handlers can finish the items of their queues.
    DrainThreads,
    /// No thread.
    Closed,
}

/// The state that a put reads and writes. Up to `linger` it shares one cache line with the lock.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Gate<T> {
    pub(super) open: Vec<T>,
    /// Items put before the first item of the open segment.
    pub(super) before_open: u64,
    /// The last value of `released` that was read. While the partition has room by this value, and
    /// an open segment, a put need not read the cache line that the thread inside writes.
    pub(super) released_seen: u64,
    /// When the first item of the open segment was put, if the segment has items.
    pub(super) put_at: PutTime,
    /// Segments in the channel, including those that the thread inside has received since it last
    /// held the gate.
    pub(super) sealed: u16,
    /// Fast path: while the open segment is shorter than this, a put needs no check and no wake-up.
    /// 0 while the segment is empty.
    pub(super) plain_until: u16,
    pub(super) access: Access,
    /// Whether a type is stalled here, so that each put checks its type.
    pub(super) has_stalled: bool,
    /// Whether items may linger here.
    pub(super) lingers: bool,
    /// In another cache line.
    pub(super) linger: Linger,
}

impl<T> Gate<T> {
    pub(super) fn new() -> Self {
        Self {
            open: Vec::new(),
            before_open: 0,
            released_seen: 0,
            put_at: PutTime::default(),
            sealed: 0,
            plain_until: 0,
            access: Access::Open,
            has_stalled: false,
            lingers: false,
            linger: Linger::default(),
        }
    }

    /// Items put so far.
    pub(super) fn pushed(&self) -> u64 {
        self.before_open + self.open.len() as u64
    }

    /// Returns an upper bound of the queued and held items, except for jobs that failed since
    /// `released` was read.
    pub(super) fn queued(&self) -> usize {
        usize::try_from(self.pushed() - self.released_seen).unwrap_or(usize::MAX)
    }

    /// Plans after a put up to which length of the open segment further puts take the fast path.
    /// The first and last items of a segment of `segment_size`, and the item that reaches
    /// `pressure_level`, take the slow path. A thread that takes the open segment or changes the
    /// access withdraws the plan.
    pub(super) fn plan(&mut self, pressure_level: usize, segment_size: usize) {
        let ahead = usize::try_from(self.before_open - self.released_seen).unwrap_or(usize::MAX);
        let before = (pressure_level - 1).saturating_sub(ahead);
        let none = self.access != Access::Open || self.has_stalled || self.open.is_empty();
        self.plain_until = 0;
        if !none {
            self.plain_until = u16::try_from(before.min(segment_size - 1)).unwrap_or(u16::MAX);
        }
    }

    /// Limits the plan to this length of the open segment.
    fn plan_at_most(&mut self, length: usize) {
        self.plain_until = self.plain_until.min(u16::try_from(length).unwrap_or(u16::MAX));
    }

    pub(super) fn withdraw_plan(&mut self) {
        self.plain_until = 0;
    }
}

// Linger: items that wait until their batch is full, or until the oldest of them has waited for
// [`max_delay`](crate::config::Config::max_delay).
//
// Taken items wait in their lane. In a partition of one type, the rest of the batch need not be
// taken item by item, so *notifications are suppressed*: puts set no ready bit and wake no thread,
// until one fills the batch. So a batch takes two wake-ups, one by its first item and one when it
// is full or due.
//
// ```text
//            a turn leaves a lane that lingers, and nothing queued
//   (notifying) ───────────────────────────────────────────────────▶ suppressed up to a position
//     ▲                                                                     │
//     └── the next take, the put at that position, or a second type ────────┘
// ```
//
// | field, under the gate | written by | read by |
// |---|---|---|
// | `lingers` | registration of handlers, once | producers, thread inside |
// | `linger.notify_at` | thread inside, registration of types | producers |
// | `linger.batch_end` | thread inside | producers |
// | `linger.is_wanted` | producers, thread inside | thread inside |

/// Whether a put notifies the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notify {
    /// As for any put.
    AsUsual,
    /// Not at all: the owner need not know of the item.
    Suppressed,
    /// Always: the put fills the batch.
    BatchIsFull,
}

/// The gate's state for items that may linger.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// Puts before this position notify no thread; 0 if all notify.
    notify_at: u64,
    /// The position where the lingering batch will be full; 0 if there is none.
    batch_end: u64,
    /// Whether a producer found no room, so that nothing lingers in the next turn.
    is_wanted: bool,
}

impl<T> Gate<T> {
    /// Returns how a put of `put` items notifies, where items may linger.
    #[cold]
    fn note_put(&self, put: usize) -> Notify {
        let (notify_at, pushed) = (self.linger.notify_at, self.pushed());
        let was_suppressed = pushed - (put as u64) < notify_at;
        match (was_suppressed && pushed >= notify_at, was_suppressed) {
            (true, _) => Notify::BatchIsFull,
            (_, true) => Notify::Suppressed,
            _ => Notify::AsUsual,
        }
    }

    /// Limits the plan so that the put that fills the batch takes the slow path.
    #[cold]
    fn plan_suppression(&mut self) {
        let notify_at = self.linger.notify_at;
        if notify_at > self.pushed() {
            let before_last = notify_at.saturating_sub(self.before_open + 1);
            self.plan_at_most(usize::try_from(before_last).unwrap_or(usize::MAX));
        }
    }

    /// Whether the open segment ends with the last item of the lingering batch: the next item is
    /// the oldest of another batch, and needs its own time.
    fn ends_batch(&self) -> bool {
        !self.open.is_empty() && self.pushed() == self.linger.batch_end
    }

    /// Returns how many items the lingering batch lacks, or 0 if there is none.
    pub(super) fn lacks(&self) -> usize {
        let lacks = self.linger.batch_end.saturating_sub(self.pushed());
        usize::try_from(lacks).unwrap_or(usize::MAX)
    }

    /// Makes puts notify as usual from now on.
    #[inline]
    pub(super) fn end_suppression(&mut self) {
        if self.lingers {
            (self.linger.notify_at, self.linger.batch_end) = (0, 0);
        }
    }
}

impl<T> Partition<T> {
    /// Allows items to linger here from now on.
    pub(crate) fn let_linger(&self) {
        let mut gate = self.gate.lock();
        gate.lingers = true;
        gate.withdraw_plan();
    }

    // ---- producers, under the gate

    /// Ends lingering in the next turn, because a put found no room.
    #[cold]
    pub(super) fn want_room(&self, gate: &mut Gate<T>) {
        gate.linger.is_wanted = true;
        self.ready.set();
    }

    /// Begins a flush. Returns the position up to which items must be settled.
    pub(crate) fn begin_flush(&self) -> u64 {
        let gate = self.gate.lock();
        if gate.lingers {
            // A turn that sees the flush lets nothing linger.
            self.ready.set();
        }
        gate.pushed()
    }

    // ---- the thread inside

    /// Returns whether a producer has found no room since the last call of this method.
    pub(crate) fn take_wanted(&self) -> bool {
        std::mem::take(&mut self.gate.lock().linger.is_wanted)
    }

    /// Suppresses notifications while the only lane lingers: puts notify when it has the `lacking`
    /// items, or when the partition is full. `counted` of the taken items count against the bound.
    /// Does nothing if items are already queued, for which there is another turn, or if the
    /// partition no longer has one type.
    pub(crate) fn suppress_notifications(
        &self,
        lacking: usize,
        counted: usize,
        has_one_type: impl Fn() -> bool,
    ) {
        let mut gate = self.gate.lock();
        let pushed = gate.pushed();
        if pushed != self.taken() || !has_one_type() {
            return;
        }
        let room = self.buffer_size.saturating_sub(counted);
        gate.linger.notify_at = pushed + lacking.min(room) as u64;
        gate.linger.batch_end = gate.linger.notify_at;
        gate.withdraw_plan();
    }

    /// Ends suppression, so that the next put notifies. Called after [`mix`](Self::mix), before a
    /// second type is routed here.
    pub(crate) fn end_suppression(&self) {
        let mut gate = self.gate.lock();
        if gate.lingers {
            let pushed = gate.pushed();
            // Items put without notification keep the partition non-empty: no later put would be
            // the first.
            let next = if pushed > self.taken() { pushed + 1 } else { 0 };
            gate.linger.notify_at = next;
            gate.withdraw_plan();
        }
    }
}

// Put times: the times at which items were put.
//
// Reading a clock takes longer than putting an item, so only the first item of a segment gets a
// time, and those behind it count as equally old. The time is in the gate while the segment is
// open, travels with it, and is kept with the run of items in their lane, so that no thread waits
// for another to learn it.
//
// For the channel, statistics only see the put time of the oldest segment, or of the one before it:
//
// | field | written by | read by |
// |---|---|---|
// | `gate.put_at` | producers, under the gate | producers, thread inside (gate); statistics |
// | `oldest_sealed_ns` | thread inside; producers, where the channel is empty | statistics |

impl<T> Gate<T> {
    /// Notes the time before a put, if it is the first of a segment.
    #[inline]
    pub(super) fn note_time(&mut self) {
        if self.open.is_empty() && (self.lingers || measures()) {
            self.put_at = PutTime::now();
        }
    }
}

impl<T> Partition<T> {
    /// Notes the put time of a segment that is about to enter an empty channel. Called under the
    /// gate.
    fn note_oldest_sealed(&self, gate: &Gate<T>, put_at: PutTime) {
        if !self.has_sealed(gate) {
            self.store_oldest_sealed(put_at);
        }
    }

    pub(super) fn store_oldest_sealed(&self, put_at: PutTime) {
        if measures() {
            // Relaxed: read under the lock of the lanes and under the gate.
            self.drain_side.oldest_sealed_ns.store(put_at.nanos(), Ordering::Relaxed);
        }
    }

    /// Whether segments are in the channel. A producer may count segments that the thread inside
    /// has just received.
    fn has_sealed(&self, gate: &Gate<T>) -> bool {
        // Relaxed: used for statistics only, except under the lock of the lanes, where it changes.
        gate.sealed > self.drain_side.received.load(Ordering::Relaxed)
    }

    /// Returns when the oldest item that no call has had yet was put, or `None` if no item waits.
    /// For an item in the channel, this may be too early by the time that one segment took to fill.
    pub(crate) fn oldest_put(&self) -> Option<Instant> {
        let lanes = self.lanes.lock();
        let gate = self.gate.lock();
        let queued = if self.has_sealed(&gate) {
            // Relaxed: as in `store_oldest_sealed`.
            Some(PutTime::of_nanos(self.drain_side.oldest_sealed_ns.load(Ordering::Relaxed)))
        } else {
            (!gate.open.is_empty()).then_some(gate.put_at)
        };
        drop(gate);
        queued.into_iter().chain(lanes.oldest_untried()).min().map(Instant::from)
    }
}
