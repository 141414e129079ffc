//! Spare drain threads: started by the supervisor while all others are held up, and dismissed when
//! they have had nothing to do for a while.
//!
//! A spare thread is a drain thread like the others, but that no balancer plans for it, and that it
//! owns partitions only until their threads are reachable again.
//!
//! ```text
//!   idle ──start (supervisor)──▶ running ──dismiss (supervisor)──▶ leaving ──(itself)──▶ idle
//!                                   └─────────────── the queue ends ──────────────▶ ended
//! ```
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `sleepers` | spare threads that start and leave | the same |
//! | `is_running`, in the slot of each | supervisor (set), the thread (clear) | all threads |

use crate::control::scheduler::Sleeper;
use crate::sync::Mutex;

#[derive(Debug)]
pub(crate) struct Spares {
    /// The number of the first: those of the other drain threads come before it.
    first: usize,
    /// For each, its side of its sleep, unless it runs.
    sleepers: Mutex<Vec<Option<Sleeper>>>,
    most: usize,
}

impl Spares {
    pub(crate) fn new(first: usize, sleepers: Vec<Sleeper>) -> Self {
        let most = sleepers.len();
        Self { first, sleepers: Mutex::new(sleepers.into_iter().map(Some).collect()), most }
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The numbers of all.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.most
    }

    /// Called by the spare thread that starts.
    pub(crate) fn take(&self, thread: usize) -> Sleeper {
        match self.sleepers.lock()[thread - self.first].take() {
            Some(sleeper) => sleeper,
            None => unreachable!("a spare thread is started after it has left"),
        }
    }

    /// Called by the spare thread that leaves, as the last thing that it does with the queue.
    pub(crate) fn give_back(&self, thread: usize, sleeper: Sleeper) {
        self.sleepers.lock()[thread - self.first] = Some(sleeper);
    }
}
