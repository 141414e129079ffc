//! The facade's `BatchQueueConfig` as the core's `Config`.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use super::balancer::{BalancerSettings, PyAssign};
use super::policies::{PartitionPolicy, ThreadPolicy};
use crate::python::exceptions::ConfigError;
use crate::python::handler::CommonCallbacks;
use crate::{BufferStrategy, Config, RetryPolicy, Selector};

pub(crate) fn millis(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value / 1e3).map_err(|_| {
        ConfigError::new_err(format!("{name} is {value}; give milliseconds from 0 up"))
    })
}

fn at_least_one(name: &str, value: i64) -> PyResult<usize> {
    match usize::try_from(value) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(ConfigError::new_err(format!("{name} is {value}; give at least 1 item"))),
    }
}

fn spare_threads(value: i64) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| {
        ConfigError::new_err(format!("spare_threads is {value}; give 0 or more threads"))
    })
}

/// The attributes of the facade's `BatchQueueConfig` that the core needs.
#[derive(FromPyObject)]
pub(crate) struct Settings<'py> {
    threads: Option<PyRef<'py, ThreadPolicy>>,
    pub(crate) shared_scheduler: Option<(String, PyRef<'py, ThreadPolicy>)>,
    partitions: PyRef<'py, PartitionPolicy>,
    buffer_size: i64,
    strategy: Named,
    min_idle_ms: f64,
    max_idle_ms: f64,
    max_batch_items: i64,
    max_delay_ms: Option<f64>,
    error_handler: Option<Py<PyAny>>,
    retry: Option<RetrySettings>,
    balancer: Option<BalancerSettings>,
    rebalance_interval_ms: f64,
    takeover_after_ms: f64,
    spare_threads: Option<i64>,
    warn_after: Option<f64>,
    pub(crate) inline: bool,
    pub(crate) shutdown_timeout: Option<f64>,
}

/// The facade's `RetryPolicy`.
#[derive(FromPyObject)]
pub(crate) struct RetrySettings {
    attempts: Option<u32>,
    backoff_ms: f64,
    factor: f64,
    max_backoff_ms: f64,
    retry_on: Py<PyAny>,
    jitter: f64,
    bisect: bool,
}

impl RetrySettings {
    /// The policy, and the exceptions that it is about, as a tuple.
    pub(crate) fn into_core(self) -> PyResult<(RetryPolicy, Py<PyAny>)> {
        let policy = RetryPolicy {
            attempts: self.attempts,
            backoff: millis("backoff_ms", self.backoff_ms)?,
            factor: self.factor,
            max_backoff: millis("max_backoff_ms", self.max_backoff_ms)?,
            jitter: self.jitter,
            bisect: self.bisect,
        };
        Ok((policy, self.retry_on))
    }
}

/// A member of a Python enum, by name.
#[derive(FromPyObject)]
struct Named {
    name: String,
}

/// The settings as the core and the bindings use them.
pub(crate) struct CoreSettings {
    pub(crate) settings: Config,
    pub(crate) common: CommonCallbacks,
    /// The custom balancer in the settings, for the garbage collector.
    pub(crate) assign: Option<Arc<PyAssign>>,
}

impl Settings<'_> {
    pub(crate) fn into_core(self, selector: Selector) -> PyResult<CoreSettings> {
        let (balancer, assign) = match self.balancer.map(BalancerSettings::core).transpose()? {
            Some((balancer, assign)) => (Some(balancer), assign),
            None => (None, None),
        };
        let (retry, retry_on) = self.retry.map(RetrySettings::into_core).transpose()?.unzip();
        let settings = Config {
            threads: self.threads.as_ref().map_or(Config::default().threads, |policy| policy.0),
            partitions: self.partitions.0,
            selector,
            buffer_size: at_least_one("buffer_size", self.buffer_size)?,
            strategy: match self.strategy.name.as_str() {
                "IF_POSSIBLE" => BufferStrategy::IfPossible,
                _ => BufferStrategy::Blocking,
            },
            min_idle: millis("min_idle_ms", self.min_idle_ms)?,
            max_idle: millis("max_idle_ms", self.max_idle_ms)?,
            max_batch_items: at_least_one("max_batch_items", self.max_batch_items)?,
            max_delay: self.max_delay_ms.map(|delay| millis("max_delay_ms", delay)).transpose()?,
            retry,
            balancer,
            rebalance_interval: millis("rebalance_interval_ms", self.rebalance_interval_ms)?,
            takeover_after: millis("takeover_after_ms", self.takeover_after_ms)?,
            spare_threads: self.spare_threads.map(spare_threads).transpose()?,
            warn_after: self
                .warn_after
                .map(|after| millis("warn_after", after * 1e3))
                .transpose()?,
        };
        let common = CommonCallbacks { error_handler: self.error_handler, retry_on };
        Ok(CoreSettings { settings, common, assign })
    }
}
