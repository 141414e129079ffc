//! Flushes: threads that wait until what was accepted has been handled.

use crate::control::log_helper::patience;
use crate::error::FlushError;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::pause::{Pause, slice};
use crate::item::Item;
use crate::shared::Control;
use crate::sync::{Arc, Instant, OnceLock};
use crate::thread_context::on_drain_thread;

impl<T: Item> Control<T> {
    /// Whether all that was accepted has been handled. What lingers does so no longer, if a flush
    /// waits.
    #[cfg_attr(not(feature = "python"), allow(dead_code))] // for the bindings
    pub(crate) fn is_all_handled(&self) -> bool {
        // Each partition is asked, so that none lingers.
        let open =
            self.flow.route.partitions().filter(|it| it.begin_flush() > it.completed()).count();
        let is_settled = |it: Arc<DeadLetterBox<T>>| it.settled() >= it.posted();
        open == 0 && self.flow.dead_letters.with_letters().into_iter().all(is_settled)
    }

    /// See `BatchQueue::flush`.
    pub(crate) fn flush<P: Pause>(
        &self,
        deadline: Option<Instant>,
        pause: &mut P,
    ) -> Result<bool, FlushError<P::Interrupt>> {
        if on_drain_thread() {
            return Err(FlushError::FromDrainThread);
        }
        let _flushing = self.flow.flushes.begin();
        // Read under each gate: an item whose produce returned before this call is counted.
        let goals: Vec<_> = self
            .flow
            .route
            .partitions()
            .map(|partition| (partition, partition.begin_flush()))
            .collect();
        let settled = || goals.iter().all(|(partition, goal)| partition.completed() >= *goal);
        // Then the letters of these items are in boxes, which are served in order.
        let letters = OnceLock::new();
        let reached = || {
            let goal = |letter_box: Arc<DeadLetterBox<T>>| (letter_box.posted(), letter_box);
            let goals = || -> Vec<_> {
                self.flow.dead_letters.with_letters().into_iter().map(goal).collect()
            };
            settled() && letters.get_or_init(goals).iter().all(|(goal, it)| it.settled() >= *goal)
        };
        let expired = || self.flow.ending.is_expired();
        self.flow.threads.wake_all();
        loop {
            if reached() || expired() {
                // After an expiry the positions advance over what was abandoned, so the count
                // decides.
                let is_settled = self.state.lock().abandoned == 0;
                self.log_helper
                    .wait_written(patience(deadline), pause)
                    .map_err(FlushError::Interrupted)?;
                return Ok(is_settled);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            let wait = pause.pause(&mut |limit| {
                self.flow.flushes.wait(|| reached() || expired(), slice(limit, deadline));
            });
            if let Err(cause) = wait {
                return Err(FlushError::Interrupted(cause));
            }
        }
    }
}
