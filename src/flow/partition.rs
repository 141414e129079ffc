//! One partition: a crossbeam channel of sealed segments, and one open segment behind a lock.
//!
//! The lock, called the gate, guards the open segment together with the bound, the closed mark and the counts, so that
//! a put decides and acts in one step. Full segments leave it through the channel: the thread inside receives them
//! without the lock, and the price of the channel is paid per segment and not per item.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `gate.*` | producers, closer, thread inside (under the lock) | the same |
//! | `pushed` | whoever holds the gate, by a plain store of `gate.pushed` | thread inside |
//! | `attempts` | whoever holds the gate, by a plain store | the meter of the balancer, statistics |
//! | `waiting` | producers that wait, under the gate | thread inside |
//! | `taken`, `completed` | thread inside, by plain stores | producers (under the gate), flush, statistics |
//! | `finished` | thread inside | the thread inside after it |
//! | `revoked_at_ns` | control side, before it revokes | thread inside |
//!
//! All counts only grow. Queued are `pushed - taken` items, in flight `taken - completed`.

use crate::faults::{self, Fault};
use crate::flow::ready::ReadyBit;
use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Duration, Mutex, Ordering, SegmentChannel, fence, wait_for,
};

/// Room that an emptied open segment keeps, so that the next puts need not allocate: 4 KiB for 16-byte items.
const KEPT_CAPACITY: usize = 256;

/// Slots of the channel of the largest buffers, 24 bytes and a stamp each.
const MOST_SEGMENTS: usize = 8_192;

/// Items per sealed segment: small enough for the bound and the batch limit, large enough that even a huge buffer has
/// a channel of a few hundred slots.
pub(crate) fn segment_size(buffer_size: usize, max_batch_items: usize) -> usize {
    let for_buffer = (buffer_size / 128).next_power_of_two().clamp(256, 4096);
    // The floor wins over a small batch limit: the channel of a huge buffer stays at a few thousand slots.
    for_buffer.min(buffer_size.div_ceil(4)).min(max_batch_items).max(buffer_size / MOST_SEGMENTS)
}

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

#[derive(Debug)]
struct Gate<T> {
    open: Vec<T>,
    access: Access,
    pushed: u64,
    refused: u64,
}

/// What a put made true, for whoever must wake the drain thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    /// The drain thread knows already.
    Nothing,
    /// The partition was empty: wake a sleeper, let a resting thread rest.
    FirstItem,
    /// The partition is half full or full: end a rest, too.
    Pressure,
}

/// Whether a put counts as a new attempt, or goes on with one that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    New,
    Again,
}

/// Why a put stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Full,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Partition<T> {
    pub(crate) index: usize,
    pub(crate) buffer_size: usize,
    segment_size: usize,
    gate: Mutex<Gate<T>>,
    not_full: Condvar,
    sealed: SegmentChannel<Vec<T>>,
    ready: ReadyBit,
    pushed: AtomicU64,
    attempts: AtomicU64,
    waiting: AtomicUsize,
    taken: AtomicU64,
    completed: AtomicU64,
    finished: AtomicBool,
    revoked_at_ns: AtomicU64,
}

impl<T> Partition<T> {
    pub(crate) fn new(index: usize, ready: ReadyBit, buffer_size: usize, segment_size: usize) -> Self {
        Self {
            index,
            buffer_size,
            segment_size,
            gate: Mutex::new(Gate { open: Vec::new(), access: Access::Open, pushed: 0, refused: 0 }),
            not_full: Condvar::new(),
            // Sealed segments are full ones and count against the bound until `taken` is stored, so that more than
            // `buffer_size / segment_size` are never in the channel.
            sealed: SegmentChannel::bounded(buffer_size / segment_size + 2),
            ready,
            pushed: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            revoked_at_ns: AtomicU64::new(0),
        }
    }

    // ---- producers -------------------------------------------------------------------------------------------

    /// Puts one item in. What does not fit comes back in `item`.
    pub(crate) fn put(&self, item: &mut Option<T>, attempt: Attempt, inside_pool: bool) -> Result<Signal, Stop> {
        let mut gate = self.gate.lock();
        if attempt == Attempt::New {
            self.count_attempts(1);
        }
        Self::check_access(&gate, inside_pool)?;
        let queued = self.queued(&gate);
        if queued >= self.buffer_size && !faults::off(Fault::Bound) {
            return Err(Stop::Full);
        }
        if let Some(item) = item.take() {
            self.append(&mut gate, item);
        }
        Ok(self.announce(queued, 1))
    }

    /// Puts the first `run` of `items` in, as many as fit, under one lock. What does not fit stays in `items`.
    pub(crate) fn put_run(
        &self,
        items: &mut std::vec::IntoIter<T>,
        run: usize,
        attempt: Attempt,
        inside_pool: bool,
    ) -> (usize, Signal, Option<Stop>) {
        let mut gate = self.gate.lock();
        let (put, signal, stop) = if let Err(stop) = Self::check_access(&gate, inside_pool) {
            (0, Signal::Nothing, Some(stop))
        } else {
            let queued = self.queued(&gate);
            let room = if faults::off(Fault::Bound) { run } else { self.buffer_size - queued.min(self.buffer_size) };
            let put = run.min(room);
            for item in items.take(put) {
                self.append(&mut gate, item);
            }
            let signal = if put > 0 { self.announce(queued, put) } else { Signal::Nothing };
            (put, signal, (put < run).then_some(Stop::Full))
        };
        // The item that stopped the run was tried; what stands behind it was not.
        let tried = put + usize::from(stop.is_some());
        self.count_attempts(tried - usize::from(attempt == Attempt::Again));
        (put, signal, stop)
    }

    /// Under the gate, when a put begins: so a balancer sees the demand, also of what will wait.
    fn count_attempts(&self, items: usize) {
        // Relaxed: written under the gate only, and a reading needs no order.
        self.attempts.store(self.attempts.load(Ordering::Relaxed) + items as u64, Ordering::Relaxed);
    }

    /// Puts begun so far.
    pub(crate) fn attempts(&self) -> u64 {
        // Relaxed: a count that only grows.
        self.attempts.load(Ordering::Relaxed)
    }

    /// Counts `items` attempts that gave up.
    pub(crate) fn refuse(&self, items: u64) {
        if !faults::off(Fault::CountRefused) {
            self.gate.lock().refused += items;
        }
    }

    /// Waits until there is space, the access changes, or `limit` has passed; may return early.
    pub(crate) fn wait_for_space(&self, limit: Option<Duration>, inside_pool: bool) {
        let gate = self.gate.lock();
        // Relaxed: under the gate; the fence below orders it against the look at `taken`.
        self.waiting.store(self.waiting.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `tell_waiting`. Either this thread sees the new `taken`, or that one sees it
        // waiting and takes the gate to tell it.
        fence(Ordering::SeqCst);
        let full = self.queued(&gate) >= self.buffer_size && Self::check_access(&gate, inside_pool).is_ok();
        let gate = if full { wait_for(&self.not_full, gate, limit) } else { gate };
        self.waiting.store(self.waiting.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        drop(gate);
    }

    fn check_access(gate: &Gate<T>, inside_pool: bool) -> Result<(), Stop> {
        let limit = if inside_pool { Access::DrainThreads } else { Access::Open };
        if gate.access > limit && !faults::off(Fault::ClosedFlag) { Err(Stop::Closed) } else { Ok(()) }
    }

    /// Queued items as the gate's holder sees them: never fewer than there are.
    fn queued(&self, gate: &Gate<T>) -> usize {
        // Acquire: pairs with the Release in `store_taken`. An old value only makes the partition look fuller.
        let taken = self.taken.load(Ordering::Acquire);
        usize::try_from(gate.pushed - taken).unwrap_or(usize::MAX)
    }

    fn append(&self, gate: &mut Gate<T>, item: T) {
        gate.open.push(item);
        gate.pushed += 1;
        // Relaxed: a hint for `is_half_full`; who must know exactly reads it under the gate.
        self.pushed.store(gate.pushed, Ordering::Relaxed);
        if gate.open.len() >= self.segment_size {
            let full = std::mem::replace(&mut gate.open, Vec::with_capacity(self.segment_size));
            if let Err(segment) = self.sealed.try_send(full) {
                // The bound makes this unreachable; without the bound (a switched-off rule) nothing may be lost.
                gate.open = segment;
            }
        }
    }

    /// Under the gate, after `put` items joined `queued`: sets the ready bit on the step from empty to non-empty.
    fn announce(&self, queued: usize, put: usize) -> Signal {
        if queued == 0 {
            self.ready.set();
        }
        let half = self.buffer_size.div_ceil(2);
        if queued < half && queued + put >= half {
            Signal::Pressure
        } else if queued == 0 {
            Signal::FirstItem
        } else {
            Signal::Nothing
        }
    }

    // ---- the thread inside -----------------------------------------------------------------------------------

    /// Takes what is queued, up to `budget` items rounded up to a segment, and returns how many.
    pub(crate) fn take(&self, budget: usize, segments: &mut Vec<Vec<T>>) -> usize {
        self.ready.clear();
        // SeqCst: pairs with the fence after a put. A put that this take does not see finds the bit cleared and sets it.
        fence(Ordering::SeqCst);
        let mut taken = 0;
        while taken < budget {
            let (segment, last) = match self.sealed.try_recv() {
                Some(sealed) => {
                    self.store_taken(sealed.len());
                    (sealed, false)
                }
                None => self.take_under_gate(),
            };
            taken += segment.len();
            if !segment.is_empty() {
                self.tell_waiting();
                segments.push(segment);
            }
            if last {
                return taken;
            }
        }
        // Unconditionally: a look at `pushed` could miss a put that has read `taken` already and set no bit.
        if !faults::off(Fault::BudgetBit) {
            self.ready.set();
        }
        taken
    }

    /// No sealed segment was seen: looks once more under the gate, then takes the open one, which is the last.
    fn take_under_gate(&self) -> (Vec<T>, bool) {
        let mut gate = self.gate.lock();
        if !faults::off(Fault::SecondLook)
            && let Some(sealed) = self.sealed.try_recv()
        {
            self.store_taken(sealed.len());
            return (sealed, false);
        }
        if gate.open.is_empty() {
            return (Vec::new(), true);
        }
        let kept = KEPT_CAPACITY.min(self.segment_size);
        let open = std::mem::replace(&mut gate.open, Vec::with_capacity(kept));
        // Before the gate opens: a put that then still saw the old `taken` would find the partition not empty, and set
        // no bit.
        if faults::off(Fault::TakenLate) {
            drop(gate);
        }
        self.store_taken(open.len());
        (open, true)
    }

    fn store_taken(&self, items: usize) {
        // Relaxed load: only this thread writes it. Release: pairs with the Acquire in `queued`.
        self.taken.store(self.taken.load(Ordering::Relaxed) + items as u64, Ordering::Release);
    }

    fn tell_waiting(&self) {
        // SeqCst: pairs with the fence in `wait_for_space`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.waiting.load(Ordering::Relaxed) > 0 && !faults::off(Fault::TellWaiting) {
            // Under the gate, so that no producer is between its look at `taken` and its wait.
            let _gate = self.gate.lock();
            self.not_full.notify_all();
        }
    }

    /// Whether a producer waits or soon will: the partition is half full.
    pub(crate) fn is_half_full(&self) -> bool {
        // Relaxed `pushed`: the caller has fenced; a producer that put before its own fence is seen.
        let queued = self.pushed.load(Ordering::Relaxed) - self.taken.load(Ordering::Relaxed);
        queued >= self.buffer_size.div_ceil(2) as u64
    }

    /// At the quiescent point: everything taken so far is handled.
    pub(crate) fn complete(&self) {
        // Relaxed load: only this thread writes `taken`. Release: pairs with the Acquire in `completed`.
        self.completed.store(self.taken.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Whether the partition is closed and empty for good, decided under the gate. Says so once.
    pub(crate) fn finish(&self) -> bool {
        // Relaxed: only threads inside write it, and the owner word orders one after the other.
        if self.finished.load(Ordering::Relaxed) {
            return false;
        }
        let gate = self.gate.lock();
        let empty = self.queued(&gate) == 0 || faults::off(Fault::LastLook);
        let done = gate.access == Access::Closed && empty;
        if done {
            self.finished.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Whether [`finish`](Self::finish) has said so.
    pub(crate) fn is_finished(&self) -> bool {
        // Relaxed: asked by the thread inside, which wrote it or got the partition from the one that did.
        self.finished.load(Ordering::Relaxed)
    }

    // ---- control and statistics ------------------------------------------------------------------------------

    /// Whether the ready bit is set. The caller has fenced.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.is_set()
    }

    /// Before the owner word says so: when the partition was revoked, since the queue's start.
    pub(crate) fn note_revoked(&self, at: Duration) {
        // Relaxed: published by the exchange of the owner word.
        self.revoked_at_ns.store(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn revoked_at(&self) -> Duration {
        // Relaxed: the caller has read the owner word.
        Duration::from_nanos(self.revoked_at_ns.load(Ordering::Relaxed))
    }

    /// Narrows who may put, and tells the producers that wait.
    pub(crate) fn restrict(&self, access: Access) {
        let mut gate = self.gate.lock();
        gate.access = gate.access.max(access);
        if !faults::off(Fault::TellClosed) {
            self.not_full.notify_all();
        }
    }

    /// The position that a flush waits for: items put in so far.
    pub(crate) fn pushed_under_gate(&self) -> u64 {
        self.gate.lock().pushed
    }

    /// Items handled, as a position in the partition's order.
    pub(crate) fn completed(&self) -> u64 {
        // Acquire: pairs with the Release in `complete`; what the handlers wrote is visible.
        self.completed.load(Ordering::Acquire)
    }

    /// The counts of one moment: under the gate nothing comes in, and a reading of `taken` between two equal readings of
    /// `completed` belongs to it. A drain thread that is too fast for that for long makes in flight look larger.
    pub(crate) fn counts(&self) -> PartitionCounts {
        const TRIES: usize = 16;
        let gate = self.gate.lock();
        let mut completed = self.completed();
        let mut taken = self.taken.load(Ordering::Acquire);
        for _ in 0..TRIES {
            let again = self.completed();
            if again == completed {
                break;
            }
            completed = again;
            taken = self.taken.load(Ordering::Acquire);
        }
        PartitionCounts { attempts: self.attempts(), pushed: gate.pushed, refused: gate.refused, taken, completed }
    }
}

/// The counts of one partition at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PartitionCounts {
    pub(crate) attempts: u64,
    pub(crate) pushed: u64,
    pub(crate) refused: u64,
    pub(crate) taken: u64,
    pub(crate) completed: u64,
}
