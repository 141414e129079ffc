//! The state behind a partition's gate: the open segment, the bound, the access, and the plan for
//! the next puts.

use rustc_hash::FxHashSet;

use crate::flow::partition::linger::Linger;
use crate::flow::partition::segment::PutTime;
use crate::item::TypeKey;

/// The choked types of a partition: see `room.rs`.
pub(super) type ChokedTypes = FxHashSet<TypeKey>;

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

/// What a put reads and writes, up to `linger` in one cache line with the lock.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Gate<T> {
    pub(super) open: Vec<T>,
    /// Items put before the first item of the open segment.
    pub(super) before_open: u64,
    /// The last value of `released` that was read. While the partition has room by this value, and
    /// an open segment, a put need not read the cache line that the thread inside writes.
    pub(super) released_seen: u64,
    /// When the first item of the open segment was put, if there is one.
    pub(super) put_at: PutTime,
    /// Segments in the channel, including those that the thread inside has received since it last
    /// held the gate.
    pub(super) sealed: u16,
    /// Fast path: while the open segment is shorter than this, a put needs no check and no wake-up.
    /// 0 while the segment is empty.
    pub(super) plain_until: u16,
    pub(super) access: Access,
    /// Whether a type is choked here: each put checks its type then.
    pub(super) has_choked: bool,
    /// Whether items may wait here for their batch to become full; see `linger.rs`.
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
            has_choked: false,
            lingers: false,
            linger: Linger::default(),
        }
    }

    /// Items put so far.
    pub(super) fn pushed(&self) -> u64 {
        self.before_open + self.open.len() as u64
    }

    /// Items that are queued or held, or more: an upper bound, but for jobs that failed since.
    pub(super) fn queued(&self) -> usize {
        usize::try_from(self.pushed() - self.released_seen).unwrap_or(usize::MAX)
    }

    /// Called after a put: plans up to which length of the open segment further puts take the fast
    /// path. The first and the last item of a segment of `segment_size` and the one that means
    /// pressure take the slow path. A thread that takes the open segment or changes the access
    /// withdraws the plan.
    pub(super) fn plan(&mut self, pressure_level: usize, segment_size: usize) {
        let ahead = usize::try_from(self.before_open - self.released_seen).unwrap_or(usize::MAX);
        let before = (pressure_level - 1).saturating_sub(ahead);
        let none = self.access != Access::Open || self.has_choked || self.open.is_empty();
        self.plain_until = 0;
        if !none {
            self.plain_until = u16::try_from(before.min(segment_size - 1)).unwrap_or(u16::MAX);
        }
    }

    /// Further puts take the fast path only up to this length of the open segment.
    pub(super) fn plan_at_most(&mut self, length: usize) {
        self.plain_until = self.plain_until.min(u16::try_from(length).unwrap_or(u16::MAX));
    }

    pub(super) fn withdraw_plan(&mut self) {
        self.plain_until = 0;
    }
}
