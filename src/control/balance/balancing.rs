//! The state that a queue keeps between runs of its balancer.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `meter` | the run in progress | the same |
//! | `figures` | the run in progress | statistics |
//! | `*_log` | runs | the same |

use crate::config::DrainBalancer;
use crate::control::balance::meter::Meter;
use crate::observe::Throttle;
use crate::rules::{Rule, rule_off};
use crate::sync::Mutex;

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
}

impl Balancing {
    pub(crate) fn new(balancer: DrainBalancer) -> Self {
        Self {
            balancer,
            meter: Mutex::new(Meter::default()),
            figures: Mutex::new(BalanceFigures { rebalances: 0, moves: 0, load_ratio: 1.0 }),
            oversized_log: Throttle::new(),
            refused_log: Throttle::new(),
        }
    }

    pub(crate) fn figures(&self) -> BalanceFigures {
        if rule_off(Rule::StatsNeverWait) {
            drop(self.meter.lock());
        }
        *self.figures.lock()
    }
}
