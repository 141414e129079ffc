//! The state that a queue keeps between runs of its balancer.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `meter` | the run in progress | the same |
//! | `figures` | the run in progress | statistics |
//! | `*_log` | runs | the same |
//! | `running` | control thread, helper threads | the same |

use crate::config::DrainBalancer;
use crate::control::balance::meter::Meter;
use crate::observe::Throttle;
use crate::sync::{Instant, Mutex};

/// Totals over all runs so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BalanceFigures {
    pub(crate) rebalances: u64,
    pub(crate) moves: u64,
    /// The largest thread load over the smallest, in the interval before the last run.
    pub(crate) load_ratio: f64,
}

/// The balancing of one queue.
#[derive(Debug)]
pub(crate) struct Balancing {
    pub(crate) balancer: DrainBalancer,
    /// Locked for a whole run: two concurrent runs would each plan from part of an interval.
    pub(super) meter: Mutex<Meter>,
    pub(super) figures: Mutex<BalanceFigures>,
    pub(super) oversized_log: Throttle<usize>,
    pub(super) refused_log: Throttle<()>,
    pub(super) hung_log: Throttle<()>,
    running: Mutex<Running>,
}

/// The run of a custom balancer on a helper thread.
#[derive(Debug, Default)]
struct Running {
    since: Option<Instant>,
    /// Another run was due meanwhile.
    again: bool,
}

impl Balancing {
    pub(crate) fn new(balancer: DrainBalancer) -> Self {
        Self {
            balancer,
            meter: Mutex::new(Meter::new()),
            figures: Mutex::new(BalanceFigures { rebalances: 0, moves: 0, load_ratio: 1.0 }),
            oversized_log: Throttle::new(),
            refused_log: Throttle::new(),
            hung_log: Throttle::new(),
            running: Mutex::default(),
        }
    }

    /// Before a run on a helper thread. Returns since when there is one already.
    pub(super) fn begin_run(&self) -> Option<Instant> {
        let mut running = self.running.lock();
        let since = running.since;
        running.again = since.is_some();
        running.since.get_or_insert_with(Instant::now);
        since
    }

    /// Returns whether another run was due meanwhile.
    pub(super) fn end_run(&self) -> bool {
        std::mem::take(&mut *self.running.lock()).again
    }

    pub(crate) fn figures(&self) -> BalanceFigures {
        *self.figures.lock()
    }
}
