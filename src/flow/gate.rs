//! What the gate of a partition guards: the open segment, the bound, the access, and the plan of
//! the next puts.

use crate::rules::{Rule, rule_off};

/// Who may still put items in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// Everybody.
    Open,
    /// Drain threads only: they finish what their own queues hold.
    DrainThreads,
    /// Nobody.
    Closed,
}

/// What a put reads and writes, in one cache line together with the lock.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Gate<T> {
    pub(super) open: Vec<T>,
    /// Items put in before the first of the open segment.
    pub(super) before_open: u64,
    /// `taken` at the last look: never more than it is now. While the partition has room by this,
    /// and an open segment, a put need not look at the line that the thread inside writes.
    pub(super) taken_seen: u64,
    pub(super) buffer_size: u32,
    pub(super) segment_size: u16,
    /// While the open segment is shorter than this, a put has nothing to look at and nothing to
    /// tell. 0 while it is empty.
    pub(super) plain_until: u16,
    /// Segments in the channel, less those that the thread inside received since it last held the
    /// gate.
    pub(super) sealed: u32,
    pub(super) access: Access,
}

impl<T> Gate<T> {
    pub(super) fn new(buffer_size: usize, segment_size: usize) -> Self {
        Self {
            open: Vec::new(),
            before_open: 0,
            taken_seen: 0,
            buffer_size: u32::try_from(buffer_size).unwrap_or(u32::MAX),
            segment_size: u16::try_from(segment_size).unwrap_or(u16::MAX),
            plain_until: 0,
            sealed: 0,
            access: Access::Open,
        }
    }

    /// Items put in so far.
    pub(super) fn pushed(&self) -> u64 {
        self.before_open + self.open.len() as u64
    }

    /// Queued items: never fewer than there are.
    pub(super) fn queued(&self) -> usize {
        usize::try_from(self.pushed() - self.taken_seen).unwrap_or(usize::MAX)
    }

    /// Half of the bound, at which a put signals pressure.
    pub(super) fn half(&self) -> usize {
        (self.buffer_size as usize).div_ceil(2)
    }

    /// After a put: how far the next ones are plain. The first item of a segment, its last one and
    /// the half of the bound are looked at when they come; whoever takes the open segment or
    /// changes the access takes the plan back.
    pub(super) fn plan(&mut self) {
        let ahead = usize::try_from(self.before_open - self.taken_seen).unwrap_or(usize::MAX);
        let below_half = (self.half() - 1).saturating_sub(ahead);
        let plain = below_half.min(usize::from(self.segment_size) - 1);
        let none = self.access != Access::Open || self.open.is_empty();
        self.plain_until = if none { 0 } else { u16::try_from(plain).unwrap_or(0) };
    }

    pub(super) fn withdraw_plan(&mut self) {
        if !rule_off(Rule::WithdrawPlan) {
            self.plain_until = 0;
        }
    }
}
