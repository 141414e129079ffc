//! What the supervisor knows of one queue from one visit to the next.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `arming` | see `agenda.rs` | drain threads |
//! | `seen` | supervisor; a drain thread that arms | the same |
//! | `taken_over` | supervisor | statistics |

use rustc_hash::FxHashMap;

use crate::config::Config;
use crate::control::agenda::Arming;
use crate::control::thread_slots::ThreadSlots;
use crate::observe::Throttle;
use crate::sync::{AtomicU64, Duration, Mutex, Ordering};

/// After this time without a turn there are no more visits; and a thread that was away gets its
/// partitions back when it has been reachable for as long.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// What the supervisor knows of one queue.
#[derive(Debug)]
pub(crate) struct Supervision {
    pub(super) is_on: bool,
    /// How often the queue is visited while it has turns.
    pub(super) tick: Duration,
    pub(crate) arming: Arming,
    pub(super) seen: Mutex<Seen>,
    /// Partitions that other threads took over.
    taken_over: AtomicU64,
    pub(super) log: Throttle<(usize, String)>,
}

impl Supervision {
    pub(crate) fn new(config: &Config, threads: &ThreadSlots) -> Self {
        // loom has no clock, and so no ticks.
        let is_on = threads.most() > 1 && !cfg!(loom);
        let seen = |thread| SeenThread { is_running: thread < threads.len(), ..Default::default() };
        let threads: Vec<_> = (0..threads.most()).map(seen).collect();
        let tick = config.takeover_after;
        Self {
            is_on,
            tick,
            arming: Arming::new(is_on),
            seen: Mutex::new(Seen { threads, ..Seen::default() }),
            taken_over: AtomicU64::new(0),
            log: Throttle::new(),
        }
    }

    /// The number of ticks in a time, rounded up.
    pub(super) fn ticks(&self, time: Duration) -> u32 {
        let ticks = time.as_nanos().div_ceil(self.tick.as_nanos().max(1));
        u32::try_from(ticks).unwrap_or(u32::MAX).max(2)
    }

    pub(super) fn count_taken_over(&self) {
        // Relaxed: as in `taken_over`.
        self.taken_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn taken_over(&self) -> u64 {
        // Relaxed: a figure, ordered by nothing.
        self.taken_over.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) threads: Vec<SeenThread>,
    pub(super) quiet_ticks: u32,
    /// By partition: the thread that it was taken over from, and the one that has it.
    pub(super) loans: FxHashMap<usize, Loan>,
}

#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(super) struct SeenThread {
    pub(super) turns: u64,
    pub(super) cycles: u64,
    pub(super) is_running: bool,
    /// Whether it neither rested nor slept.
    pub(super) is_awake: bool,
    /// Whether its call is long: it may not return soon.
    pub(super) is_long: bool,
    pub(super) is_away: bool,
    /// For how many ticks a spare thread has had no partition.
    pub(super) surplus_ticks: u32,
    /// For how many ticks the thread has not been away.
    pub(super) here_ticks: u32,
    /// Partitions that it lost since it went away.
    pub(super) lost: usize,
}

/// A partition that was taken over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loan {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Seen {
    pub(super) fn is_away(&self, thread: usize) -> bool {
        self.threads[thread].is_away
    }

    pub(super) fn is_here(&self, thread: usize) -> bool {
        self.threads[thread].is_running && !self.threads[thread].is_away
    }

    pub(super) fn is_any_away(&self) -> bool {
        self.threads.iter().any(|thread| thread.is_away)
    }

    /// Whether all threads are in long calls.
    pub(super) fn are_all_long(&self) -> bool {
        !self.threads.iter().any(|thread| thread.is_running && !thread.is_long)
    }
}
