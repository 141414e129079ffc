//! What the supervisor knows of one queue from one visit to the next, and how visits are asked for.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `arming` | drain threads (raise), supervisor (clear) | drain threads |
//! | `seen` | supervisor; a drain thread that arms | the same |
//! | `taken_over` | supervisor | statistics |

use rustc_hash::FxHashMap;

use crate::config::Config;
use crate::control::thread_slots::ThreadSlots;
use crate::observe::Throttle;
use crate::sync::{AtomicU8, AtomicU64, Duration, Mutex, Ordering, fence};

/// After this time without a turn there are no more visits; and a thread that was away gets its
/// partitions back when it has been reachable for as long.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// What the supervisor knows of one queue.
#[derive(Debug)]
pub(crate) struct Supervision {
    pub(super) is_on: bool,
    /// How often the queue is visited while it has turns.
    pub(super) tick: Duration,
    pub(super) arming: Arming,
    pub(super) seen: Mutex<Seen>,
    /// Partitions that other threads took over.
    taken_over: AtomicU64,
    pub(super) log: Throttle<(usize, String)>,
}

/// Which visits to a queue are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Visits {
    None,
    /// The next one is a second away.
    Rare,
    /// One each tick.
    Ticks,
}

#[derive(Debug)]
pub(super) struct Arming(AtomicU8);

impl Arming {
    /// Whether there are such visits, or more. The caller has stored what it begins, and fenced.
    #[inline]
    pub(super) fn has(&self, visits: Visits) -> bool {
        // Relaxed: ordered by the caller's fence, which pairs with the one in `clear`.
        self.0.load(Ordering::Relaxed) >= visits as u8
    }

    /// Returns whether the caller has to ask for them.
    pub(super) fn raise(&self, visits: Visits) -> bool {
        // Relaxed: it only decides which thread asks.
        self.0.fetch_max(visits as u8, Ordering::Relaxed) < visits as u8
    }

    /// The caller then checks whether a thread has begun something meanwhile.
    pub(super) fn clear(&self) {
        self.0.store(Visits::None as u8, Ordering::Relaxed);
        // SeqCst: pairs with the fence of a thread that enters a partition: either it sees that
        // there are no more visits, or its turn is seen by the caller.
        fence(Ordering::SeqCst);
    }
}

impl Supervision {
    pub(crate) fn new(config: &Config, threads: &ThreadSlots) -> Self {
        // loom has no clock, and so no ticks.
        let is_on = threads.most() > 1 && !cfg!(loom);
        let seen = |thread| SeenThread { is_running: thread < threads.len(), ..Default::default() };
        let threads: Vec<_> = (0..threads.most()).map(seen).collect();
        let tick = config.takeover_after;
        // A queue that needs no visits never asks for them.
        let first = if is_on { Visits::None } else { Visits::Ticks };
        Self {
            is_on,
            tick,
            arming: Arming(AtomicU8::new(first as u8)),
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_does_not_wait_for_the_look_that_a_side_call_has_asked_for() {
        let arming = Arming(AtomicU8::new(Visits::None as u8));
        assert!(arming.raise(Visits::Rare));
        assert!(arming.has(Visits::Rare) && !arming.has(Visits::Ticks));
        assert!(arming.raise(Visits::Ticks));
        assert!(!arming.raise(Visits::Rare) && !arming.raise(Visits::Ticks));
        arming.clear();
        assert!(!arming.has(Visits::Rare));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;
    use crate::testing::loom::model;

    /// A turn begins while the visits end: it asks for more, or they continue.
    #[test]
    fn loom_turn_while_the_visits_end() {
        model(2, || {
            let shared = Arc::new((Arming(AtomicU8::new(Visits::Ticks as u8)), AtomicU64::new(0)));
            let drain = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (arming, turns) = &*shared;
                    turns.store(1, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    !arming.has(Visits::Ticks) && arming.raise(Visits::Ticks)
                })
            };
            let (arming, turns) = &*shared;
            arming.clear();
            let is_idle = turns.load(Ordering::Relaxed) == 0;
            let continues = !is_idle && arming.raise(Visits::Ticks);
            assert!(drain.join().unwrap() || continues);
        });
    }
}
