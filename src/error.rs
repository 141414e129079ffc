//! Errors. A failed call that took an item returns it. Messages state the value, the limit and the
//! remedy.

use std::fmt;

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub(crate) String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The reason why an item was not put in, with the item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProduceError<T, E = std::convert::Infallible> {
    /// The partition is full and the strategy is
    /// [`BufferStrategy::IfPossible`](crate::config::BufferStrategy::IfPossible).
    Full(T),
    /// The queue is shut down.
    Closed(T),
    /// The partition stayed full until the deadline, or kept its room for other types.
    TimedOut {
        /// The item that was not put in.
        item: T,
        /// The full partition.
        partition: usize,
        /// The capacity of the partition, in items.
        buffer_size: usize,
        /// Whether the partition kept its room for other types, because the handler of this type is
        /// slow, fails or hangs.
        is_stalled: bool,
    },
    /// The wait of a handler would never end: for room that only its own thread can make, or for
    /// another handler that waits for it.
    Reentrant {
        /// The item that was not put in.
        item: T,
        /// The full partition.
        partition: usize,
        /// The number of items in the partition, which is its capacity.
        buffer_size: usize,
        /// The handlers that wait for each other, if others are involved.
        circle: Option<String>,
    },
    /// The producer's [`Pause`](crate::threads::waits::Pause) ended the wait.
    Interrupted(T, E),
}

impl<T, E> ProduceError<T, E> {
    /// Returns the item that was not put in.
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item)
            | Self::Closed(item)
            | Self::Interrupted(item, _)
            | Self::TimedOut { item, .. }
            | Self::Reentrant { item, .. } => item,
        }
    }

    /// Returns the item, and the reason why it was not put in.
    #[cfg(feature = "python")]
    pub(crate) fn into_parts(self) -> (T, ProduceError<(), E>) {
        match self {
            Self::Full(item) => (item, ProduceError::Full(())),
            Self::Closed(item) => (item, ProduceError::Closed(())),
            Self::Interrupted(item, cause) => (item, ProduceError::Interrupted((), cause)),
            Self::TimedOut { item, partition, buffer_size, is_stalled } => {
                (item, ProduceError::TimedOut { item: (), partition, buffer_size, is_stalled })
            }
            Self::Reentrant { item, partition, buffer_size, circle } => {
                (item, ProduceError::Reentrant { item: (), partition, buffer_size, circle })
            }
        }
    }
}

impl<T, E: fmt::Display> fmt::Display for ProduceError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str(
                "the partition is full: raise buffer_size, or use BufferStrategy.BLOCKING to wait \
                 for room",
            ),
            Self::Closed(_) => f.write_str("the queue is shut down and takes no more items"),
            Self::TimedOut { partition, is_stalled: true, .. } => write!(
                f,
                "partition {partition} kept its room for other types until the timeout, because \
                 the handler of this one is slow, fails or hangs: give its type a separate \
                 partition, or use BufferStrategy.IF_POSSIBLE"
            ),
            Self::TimedOut { partition, buffer_size, .. } => write!(
                f,
                "partition {partition} stayed full ({buffer_size}/{buffer_size}) until the \
                 timeout: raise buffer_size or the timeout, or use BufferStrategy.IF_POSSIBLE"
            ),
            Self::Reentrant { partition, buffer_size, circle: Some(circle), .. } => write!(
                f,
                "partition {partition} is full ({buffer_size}/{buffer_size}) and the wait would \
                 never end: {circle}; raise buffer_size, use BufferStrategy.IF_POSSIBLE, or give a \
                 timeout"
            ),
            Self::Reentrant { partition, buffer_size, .. } => write!(
                f,
                "partition {partition} is full ({buffer_size}/{buffer_size}) and this handler runs \
                 on the drain thread that would have to empty it: raise buffer_size, use \
                 BufferStrategy.IF_POSSIBLE, or produce into another queue"
            ),
            Self::Interrupted(_, cause) => write!(f, "the wait for space was interrupted: {cause}"),
        }
    }
}

impl<T: fmt::Debug, E: fmt::Debug + fmt::Display> std::error::Error for ProduceError<T, E> {}

/// The queue is shut down, but the call needs a running one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue is shut down")
    }
}

impl std::error::Error for Closed {}

/// The reason why a flush did not wait, or gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlushError<E = std::convert::Infallible> {
    /// Called from a drain thread, which would wait for itself.
    FromDrainThread,
    /// The caller's [`Pause`](crate::threads::waits::Pause) ended the wait.
    Interrupted(E),
}

/// The reason why a handler was not added, or its predecessor not waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddHandlerError<E = std::convert::Infallible> {
    /// The queue is shut down.
    Closed(Closed),
    /// The queue's settings do not allow it.
    Config(ConfigError),
    /// The caller's [`Pause`](crate::threads::waits::Pause) ended the wait for the replaced
    /// handler. The new one is in place.
    Interrupted(E),
}

impl<E: fmt::Display> fmt::Display for AddHandlerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(closed) => closed.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::Interrupted(cause) => {
                write!(f, "the wait for the replaced handler was interrupted: {cause}")
            }
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for AddHandlerError<E> {}
