//! Permits for slow calls: what `slow_calls.rs` decides, for the threads and lanes of a queue.

use crate::control::slow_calls::{QUICK_WORK, SLOW_CALL, Scene};
use crate::control::thread_slots::ThreadSlot;
use crate::flow::desk::JobPlace;
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::Instant;

impl<T: Item> Flow<T> {
    /// Whether a thread may call a slow handler for a job; if not, the job gets a ticket. Under the
    /// lock of its lanes.
    pub(crate) fn admit_slow(&self, thread: usize, place: JobPlace) -> bool {
        self.slow_calls.admit(thread, place, || self.slow_scene())
    }

    /// The thread has left its slow handler, or got a permit that it did not use.
    pub(crate) fn end_slow(&self, thread: usize) {
        let next = self.slow_calls.end(thread, Instant::now());
        self.recall_slow(next);
    }

    /// Submits the next job again that waits for a slow call, if a thread can make it.
    pub(crate) fn revise_slow(&self) {
        if self.slow_calls.has_tickets() {
            self.recall_slow(self.slow_calls.next(&self.slow_scene()));
        }
    }

    fn slow_scene(&self) -> Scene<impl Fn(usize) -> bool> {
        let is_held_up =
            |thread: usize| !self.threads[thread].is_running() || self.threads[thread].is_away();
        Scene {
            is_held_up,
            is_protected: self.has_quick_work(),
            is_one_left: self.threads.is_one_left(),
            spares: self.threads.len(),
            now: Instant::now(),
        }
    }

    /// Whether a slow job needs a spare thread: all others but one are lost, and that one has quick
    /// work.
    pub(super) fn needs_spare_for_slow(&self) -> bool {
        self.threads.is_one_left()
            && self.slow_calls.has_waited(Instant::now())
            && self.has_quick_work()
    }

    fn recall_slow(&self, mut next: Option<JobPlace>) {
        while let Some(place) = next {
            let partition = self.route.partition(place.partition);
            let (slow_calls, lane) = (&self.slow_calls, place.lane);
            // In one hold of the lock: the lane may get another ticket when it is free.
            let (is_recalled, behind) = partition.change_lanes(|lanes| {
                let is_recalled = lanes.recall(lane, slow_calls.address());
                let is_here = is_recalled || lanes.is_ready(lane);
                (is_recalled, if is_here { None } else { slow_calls.drop_first(place) })
            });
            if is_recalled {
                self.call_owner(partition, None);
            }
            next = behind;
        }
    }

    /// Whether a handler has returned quickly within the last seconds. While the queue closes,
    /// nothing new comes: what is quick then is over when no call has ended for a moment.
    pub(crate) fn has_quick_work(&self) -> bool {
        let now = self.started.elapsed();
        let limit = if self.ending.is_closing() { 2 * SLOW_CALL } else { QUICK_WORK };
        self.threads
            .iter()
            .filter_map(ThreadSlot::last_quick_call)
            .any(|at| now.saturating_sub(at) < limit)
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
