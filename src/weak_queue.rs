//! A reference to a queue that keeps nothing alive.

use crate::flow::pause::Pause;
use crate::item::Item;
use crate::shared::Control;
use crate::sync::{Arc, Instant, Weak};

/// A reference to a queue that may be gone.
#[derive(Debug)]
pub struct WeakQueue<T: Item>(Weak<Control<T>>);

impl<T: Item> WeakQueue<T> {
    pub(crate) fn of(control: &Arc<Control<T>>) -> Self {
        Self(Arc::downgrade(control))
    }

    /// Whether neither the queue nor any of its drain threads exists any more.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// [`BatchQueue::close_to_outside`], if the queue still exists.
    pub fn close_to_outside(&self, deadline: Option<Instant>) {
        if let Some(control) = self.0.upgrade() {
            control.close_to_outside(deadline);
        }
    }

    /// Whether all that the queue has accepted is handled.
    #[cfg(feature = "python")]
    pub(crate) fn is_all_handled(&self) -> bool {
        self.0.upgrade().is_none_or(|control| control.is_all_handled())
    }

    /// The same as [`shutdown_with`](Self::shutdown_with), but does not wait for the log.
    #[cfg(feature = "python")]
    pub(crate) fn end_with<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        self.0.upgrade().map_or(Ok(()), |control| control.end(deadline, pause).map(drop))
    }

    /// Waits until the lines of the queue are in the log.
    #[cfg(feature = "python")]
    pub(crate) fn wait_logged<P: Pause>(
        &self,
        latest: Instant,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        self.0.upgrade().map_or(Ok(()), |control| control.log_helper.wait_written(latest, pause))
    }

    /// [`BatchQueue::shutdown_with`], if the queue still exists.
    ///
    /// # Errors
    /// `pause` ended the wait.
    pub fn shutdown_with<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<u64, P::Interrupt> {
        self.0.upgrade().map_or(Ok(0), |control| control.shutdown(deadline, pause))
    }
}
