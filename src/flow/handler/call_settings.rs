//! The settings of the calls of one type's handlers: its own, or else the queue's.

use crate::config::{Config, LONGEST, MAX_BUFFER_SIZE, RetryPolicy, check_delay, within};
use crate::error::ConfigError;
use crate::item::HandledType;
use crate::sync::Duration;

/// How the handlers of one type are called.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CallSettings {
    /// The most items that one call gets.
    pub(crate) max_batch_items: usize,
    /// How long an item may wait for its batch to become full; `None`: not at all.
    pub(crate) max_delay: Option<Duration>,
    pub(crate) retry: Option<RetryPolicy>,
}

impl CallSettings {
    pub(crate) fn of_queue(config: &Config) -> Self {
        let Config { max_batch_items, max_delay, retry, .. } = *config;
        let max_delay = max_delay.filter(|delay| !delay.is_zero());
        Self { max_batch_items, max_delay, retry }
    }

    /// # Errors
    /// A setting of the type is out of range, or does not go with the others.
    pub(crate) fn of_type(config: &Config, item_type: &HandledType) -> Result<Self, ConfigError> {
        let name = &item_type.name;
        let max_batch_items = item_type.max_batch_items.unwrap_or(config.max_batch_items);
        within(&format!("{name}: max_batch_items"), max_batch_items, MAX_BUFFER_SIZE)?;
        let max_delay = item_type.max_delay.or(config.max_delay).filter(|delay| !delay.is_zero());
        check_delay(&format!("{name}: "), max_delay, max_batch_items)?;
        item_type.retry.as_ref().map_or(Ok(()), RetryPolicy::validate)?;
        Ok(Self {
            max_batch_items,
            max_delay: max_delay.map(|delay| delay.min(LONGEST)),
            retry: item_type.retry.map(RetryPolicy::with_bounded_times).or(config.retry),
        })
    }
}
