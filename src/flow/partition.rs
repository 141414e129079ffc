//! One partition: a crossbeam channel of sealed segments, and one open segment behind a lock.
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
//! | `choked`, `gate.has_choked` | the same; producers that find it full | producers |
//! | `gate.lingers`, `gate.linger` | see `partition/linger.rs` | the same |
//! | `gate.put_at`, `oldest_sealed_ns` | see `partition/put_time.rs` | the same |
//! | `lane_use` | threads that change the lanes | drain threads before they sleep, who assigns |
//! | `weighed` | producers, thread inside (under the gate) | the same |
//! | `finished` | thread inside | the thread inside after it |
//! | `last_call_slow` | threads that call; registration | supervisor |
//! | `host_free` | registration of handlers | thread inside |
//! | `mixed` | registration of types; producers, before they put an unrouted type | thread inside |
//! | `largest_batch` | registration of handlers | thread inside |
//! | `revoked_at_ns` | control side, before it revokes | thread inside |
//!
//! `pushed - taken` items are queued. What is taken and not settled is in the lanes: held there, or
//! in the hand of a thread. `pushed - released` items, those queued and those held, count against
//! the bound; `partition/room.rs` has it.

pub(crate) mod counts;
pub(crate) mod gate;
mod linger;
mod put;
pub(crate) mod put_time;
pub(crate) mod ready;
mod room;
pub(super) mod run;
pub(crate) mod segment;
pub(crate) mod segment_pool;
pub(crate) mod slow_counts;
pub(crate) mod space;
pub(crate) mod take;
#[cfg(all(test, not(loom)))]
mod tests;
mod weighted;

use crate::control::scheduler::Signal;
use crate::flow::desk::lanes::{LaneUse, Lanes};
use crate::flow::partition::gate::{Access, ChokedTypes, Gate};
use crate::flow::partition::linger::Quiet;
use crate::flow::partition::ready::ReadyBit;
use crate::flow::partition::segment::Segment;
use crate::flow::partition::segment_pool::SegmentPool;
use crate::flow::partition::slow_counts::SlowCounts;
use crate::flow::partition::space::Space;
use crate::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Duration, OnceLock, Ordering,
    QuickMutex, SegmentChannel,
};

/// Why a put stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Full,
    /// The item's type is choked here: see `partition/room.rs`.
    Choked,
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
    /// Created with the first full segment: most partitions of a queue
    /// with many types never fill one.
    sealed: OnceLock<SegmentChannel<Segment<T>>>,
    ready: ReadyBit,
    space: Space,
    /// Locked behind the gate.
    choked: QuickMutex<ChokedTypes>,
    /// When a put that finds the partition full may next search for lanes to choke, relative to the
    /// queue's start.
    choke_after_ns: AtomicU64,
    slow: SlowCounts,
    segment_pool: Arc<SegmentPool<T>>,
    /// How many items were put before the open segment, by weight: see `weighted.rs`.
    weighed: AtomicU64,
    /// Whether the known handlers of its types need no host: their thread then takes from here
    /// outside the host.
    host_free: AtomicBool,
    last_call_slow: AtomicBool,
    /// Whether it may hold items of more than one type, with the selector `ByType`.
    mixed: AtomicBool,
    /// The largest limit of a batch that one of its types has had, if that is above the queue's.
    largest_batch: AtomicUsize,
}

/// What the thread inside writes, in a separate cache line.
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
    /// `put_time.rs`.
    oldest_sealed_ns: AtomicU64,
    revoked_at_ns: AtomicU64,
}

impl<T> Partition<T> {
    /// Whether items of more than one type may be here. Called for taken items. Relaxed: the gate
    /// or the channel that delivered an item delivered its mark, too.
    pub(crate) fn is_mixed(&self) -> bool {
        self.mixed.load(Ordering::Relaxed)
    }

    /// Marks that items of further types may arrive from now on. A producer that calls this may
    /// hold gates.
    pub(crate) fn mix(&self) {
        if !self.is_mixed() {
            self.mixed.store(true, Ordering::Relaxed);
        }
    }

    /// How many items a call of one of its types may get, if that is more than the queue's limit;
    /// otherwise 0. Not in loom, where no type has a limit.
    pub(crate) fn largest_batch(&self) -> usize {
        // Relaxed: a turn that sees the old limit takes less.
        if cfg!(loom) { 0 } else { self.largest_batch.load(Ordering::Relaxed) }
    }

    /// One of its types has a handler that takes so many items in a call.
    pub(crate) fn note_batch_limit(&self, items: usize) {
        // Relaxed: as in `largest_batch`.
        self.largest_batch.fetch_max(items, Ordering::Relaxed);
    }

    /// Relaxed: a thread that sees the old mark does the same work elsewhere.
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

    /// After a call.
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
        // A put touches one cache line of the partition, where items do not linger: the lock and
        // what it guards. loom's locks are larger.
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
            choked: QuickMutex::new(ChokedTypes::default()),
            choke_after_ns: AtomicU64::new(0),
            slow: SlowCounts::default(),
            segment_pool,
            weighed: AtomicU64::new(weighted::NONE),
            host_free: AtomicBool::new(false),
            last_call_slow: AtomicBool::new(false),
            mixed: AtomicBool::new(false),
            largest_batch: AtomicUsize::new(0),
        }
    }

    // ---- queued items

    /// Whether nothing is queued, exactly.
    fn is_empty(&self, gate: &mut Gate<T>) -> bool {
        // The two are in one cache line, and a put that finds nothing queued makes a plan.
        self.refresh_released(gate);
        gate.pushed() == self.taken()
    }

    /// Whether something is queued. A partition may be ready without: see `take.rs`.
    pub(crate) fn has_queued(&self) -> bool {
        !self.is_empty(&mut self.gate.lock())
    }

    /// The items taken so far.
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

    /// Called after a put, so that the open segment is never full, and ends where a batch does that
    /// waits for that.
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
        // Sealed segments are full, but for one that ends where a batch does, and count against the
        // bound until `taken` is stored, so the channel never holds more than `buffer_size /
        // segment_size` of them, and that one.
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

    /// Called under the gate after `put` items were put: sets the ready bit on the transition from
    /// empty to non-empty.
    #[inline]
    fn announce(&self, gate: &mut Gate<T>, was_empty: bool, put: usize) -> Signal {
        if put == 0 {
            return Signal::Nothing;
        }
        let quiet = if gate.lingers { gate.note_put(put) } else { Quiet::Not };
        if was_empty && quiet == Quiet::Not || quiet == Quiet::Over {
            self.ready.set();
        }
        let level = self.pressure_level(gate);
        if gate.queued() >= level {
            // A stale value may make it look fuller than it is.
            self.refresh_released(gate);
        }
        gate.plan(level, self.segment_size);
        if gate.lingers {
            gate.plan_quiet();
        }
        let queued = gate.queued();
        if quiet == Quiet::On {
            Signal::Nothing
        } else if queued >= level && queued < level + put {
            Signal::Pressure
        } else if was_empty || quiet == Quiet::Over {
            // A full batch may wait for a rest, which ends when an item is due.
            Signal::FirstItem
        } else {
            Signal::Nothing
        }
    }

    /// How many queued items mean pressure, which a put signals: half of the bound. Where items
    /// linger, seven eighths: a thread leaves such partitions behind at different levels, so that
    /// at half of the bound each would end a rest on its own, for one batch.
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

    /// The position in the partition's order up to which all items are settled.
    pub(crate) fn completed(&self) -> u64 {
        let lanes = self.lanes.lock();
        lanes.completed(self.taken())
    }

    /// Whether something is taken and not settled.
    pub(crate) fn has_lanes(&self) -> bool {
        self.lane_use() != LaneUse::Empty
    }

    /// Whether all that is taken and not settled is in calls, and the owner has noted it.
    pub(crate) fn waits_for_calls(&self) -> bool {
        self.lane_use() == LaneUse::NotedCalls
    }

    /// Whether the lanes have something for the owner, now or at a later time.
    pub(crate) fn waits_for_owner(&self) -> bool {
        matches!(self.lane_use(), LaneUse::Owner | LaneUse::Timer)
    }

    /// Whether they have nothing for it before a deadline, for which it has a timer.
    pub(crate) fn waits_for_timer(&self) -> bool {
        self.lane_use() == LaneUse::Timer
    }

    fn lane_use(&self) -> LaneUse {
        // Relaxed: ordered by the caller's fence.
        LaneUse::of(self.drain_side.lane_use.load(Ordering::Relaxed))
    }

    /// Changes the lanes under their lock, and notes what they wait for. No item is dropped there.
    #[inline]
    pub(crate) fn change_lanes<R>(&self, change: impl FnOnce(&mut Lanes<T>) -> R) -> R {
        let mut lanes = self.lanes.lock();
        let result = change(&mut lanes);
        self.note_lanes(lanes.lane_use());
        result
    }

    /// Under the lock of the lanes, after a change.
    #[inline]
    pub(crate) fn note_lanes(&self, lane_use: LaneUse) {
        // Relaxed: a caller that wakes the owner fences first.
        self.drain_side.lane_use.store(lane_use as u8, Ordering::Relaxed);
    }
}
