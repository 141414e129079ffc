//! The choice of a queue's balancer. How each of them plans is in `control/balance`.

use std::fmt;

use crate::error::ConfigError;
use crate::sync::Arc;

/// The default skip ratio.
pub(crate) const SKIP_RATIO: f64 = 1.15;

/// A custom assignment, for [`DrainBalancer::custom`].
pub trait Assign: Send + Sync {
    /// Returns the wanted thread of each partition, or `None` to leave all where they are.
    ///
    /// `load` and `owner` have one entry per partition; threads are 0 to `threads − 1`. Called on
    /// the control thread, or on the thread that requested a run; never on a drain thread.
    ///
    /// # Errors
    /// A reason, which is logged; nothing moves then.
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
/// while the largest thread load is below `skip_ratio` times the smallest, and none if moving would
/// not bring the two much closer.
#[derive(Clone)]
pub enum DrainBalancer {
    /// A partition is weighted by the time that its handlers were busy in the interval. Suitable
    /// everywhere, above all when some items cost more than others.
    LoadWeighted {
        /// The ratio of the largest thread load to the smallest below which nothing moves.
        skip_ratio: f64,
    },
    /// A partition is weighted by the items that its producers tried to enqueue; of those that were
    /// refused, at most as many as were accepted. Suitable when all items cost about the same.
    ThroughputWeighted {
        /// The ratio of the largest thread load to the smallest below which nothing moves.
        skip_ratio: f64,
    },
    /// Partitions are weighted as with `ThroughputWeighted`, and your code assigns them.
    Custom(Arc<dyn Assign>),
}

impl DrainBalancer {
    /// Balances by busy time; skips below a ratio of 1.15.
    pub fn load_weighted() -> Self {
        Self::LoadWeighted { skip_ratio: SKIP_RATIO }
    }

    /// Balances by throughput; skips below a ratio of 1.15.
    pub fn throughput_weighted() -> Self {
        Self::ThroughputWeighted { skip_ratio: SKIP_RATIO }
    }

    /// Balances by a custom assignment, which is validated before anything moves.
    pub fn custom(assign: Arc<dyn Assign>) -> Self {
        Self::Custom(assign)
    }

    /// The same balancer with another skip ratio; at 1 it never skips.
    ///
    /// # Errors
    /// `skip_ratio` is not a finite number of at least 1, or the balancer is custom.
    pub fn with_skip_ratio(self, skip_ratio: f64) -> Result<Self, ConfigError> {
        if !(skip_ratio.is_finite() && skip_ratio >= 1.0) {
            return Err(ConfigError(format!(
                "DrainBalancer: skip_ratio is {skip_ratio}; give a finite number of at least 1, \
                 for instance {SKIP_RATIO}"
            )));
        }
        match self {
            Self::ThroughputWeighted { .. } => Ok(Self::ThroughputWeighted { skip_ratio }),
            Self::LoadWeighted { .. } => Ok(Self::LoadWeighted { skip_ratio }),
            Self::Custom(_) => Err(ConfigError(format!(
                "DrainBalancer.custom has no skip_ratio (given: {skip_ratio}); return None from \
                 assign to skip"
            ))),
        }
    }

    /// Whether partitions are weighted by the time that their handlers were busy.
    pub fn is_load_weighted(&self) -> bool {
        matches!(self, Self::LoadWeighted { .. })
    }

    /// Whether the assignment is custom.
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
            Self::LoadWeighted { skip_ratio } => {
                write!(f, "LoadWeighted {{ skip_ratio: {skip_ratio} }}")
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
            | (Self::LoadWeighted { skip_ratio: a }, Self::LoadWeighted { skip_ratio: b }) => {
                a == b
            }
            (Self::Custom(a), Self::Custom(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}
