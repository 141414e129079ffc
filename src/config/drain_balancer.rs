//! Which balancer a queue is asked to have. What each of them plans is in `control/balance`.

use std::fmt;

use crate::error::ConfigError;
use crate::sync::Arc;

/// Threads this close, largest to smallest, are balanced enough.
pub(crate) const SKIP_RATIO: f64 = 1.15;

/// An assignment of your own, for [`DrainBalancer::custom`].
pub trait Assign: Send + Sync {
    /// The wanted thread of each partition, or `None` to leave all where they are.
    ///
    /// `load` and `owner` have one entry per partition; threads are 0 to `threads − 1`. Called on
    /// the control thread, or on the thread that asked for a run; never on a drain thread.
    ///
    /// # Errors
    /// A reason, for the log; nothing moves then.
    fn assign(
        &self,
        load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String>;
}

/// How partitions are spread over drain threads.
///
/// The two weighted balancers give every thread about the same load and move few partitions: none
/// while the largest thread load is below `skip_ratio` times the smallest, and none when moving
/// would not bring the two much closer.
#[derive(Clone)]
pub enum DrainBalancer {
    /// A partition weighs what its producers tried to put into it: right when all items cost about
    /// the same.
    ThroughputWeighted {
        /// Largest thread load over smallest, below which nothing moves.
        skip_ratio: f64,
    },
    /// A partition weighs the time its handlers need for that: right when some types cost more than
    /// others.
    CostWeighted {
        /// Largest thread load over smallest, below which nothing moves.
        skip_ratio: f64,
    },
    /// A partition weighs as with `ThroughputWeighted`, and you say where it goes.
    Custom(Arc<dyn Assign>),
}

impl DrainBalancer {
    /// By throughput; skips below a ratio of 1.15.
    pub fn throughput_weighted() -> Self {
        Self::ThroughputWeighted { skip_ratio: SKIP_RATIO }
    }

    /// By cost; skips below a ratio of 1.15.
    pub fn cost_weighted() -> Self {
        Self::CostWeighted { skip_ratio: SKIP_RATIO }
    }

    /// By your own assignment. What it returns is checked before anything moves.
    pub fn custom(assign: Arc<dyn Assign>) -> Self {
        Self::Custom(assign)
    }

    /// The same balancer with another skip ratio; at 1 it never skips.
    ///
    /// # Errors
    /// `skip_ratio` is not a finite number of at least 1, or the balancer is a custom one.
    pub fn with_skip_ratio(self, skip_ratio: f64) -> Result<Self, ConfigError> {
        if !(skip_ratio.is_finite() && skip_ratio >= 1.0) {
            return Err(ConfigError(format!(
                "DrainBalancer: skip_ratio is {skip_ratio}; give a finite number of at least 1, \
                 for instance {SKIP_RATIO}"
            )));
        }
        match self {
            Self::ThroughputWeighted { .. } => Ok(Self::ThroughputWeighted { skip_ratio }),
            Self::CostWeighted { .. } => Ok(Self::CostWeighted { skip_ratio }),
            Self::Custom(_) => Err(ConfigError(format!(
                "DrainBalancer.custom has no skip_ratio (given: {skip_ratio}); return None from \
                 assign to skip"
            ))),
        }
    }

    /// Whether partitions weigh the time that their handlers need.
    pub fn is_cost_weighted(&self) -> bool {
        matches!(self, Self::CostWeighted { .. })
    }

    /// Whether the assignment is the user's own.
    pub fn is_custom(&self) -> bool {
        matches!(self, Self::Custom(_))
    }
}

impl fmt::Debug for DrainBalancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThroughputWeighted { skip_ratio } => {
                write!(f, "ThroughputWeighted {{ skip_ratio: {skip_ratio} }}")
            }
            Self::CostWeighted { skip_ratio } => {
                write!(f, "CostWeighted {{ skip_ratio: {skip_ratio} }}")
            }
            Self::Custom(_) => f.write_str("Custom(..)"),
        }
    }
}

impl PartialEq for DrainBalancer {
    /// Custom balancers are equal when they are the same object.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::ThroughputWeighted { skip_ratio: a },
                Self::ThroughputWeighted { skip_ratio: b },
            )
            | (Self::CostWeighted { skip_ratio: a }, Self::CostWeighted { skip_ratio: b }) => {
                a == b
            }
            (Self::Custom(a), Self::Custom(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}
