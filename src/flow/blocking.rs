//! Waits of threads that others depend on: threads inside a handler, and drain threads.
//!
//! On a shared pool another worker replaces the waiting one, because what it waits for may need a
//! worker.

use crate::flow::handler::HandlerRef;
use crate::flow::handler::lock::{HandlerLock, JobPlace};
use crate::flow::handler::slow_calls::{QUICK_WORK, SLOW_CALL, Scene};
use crate::flow::state::Flow;
use crate::item::Item;
use crate::sync::{Arc, Instant};
use crate::threads::context::{drained_queue, held_lock};
use crate::threads::pool::{Compensation, Limit};
use crate::threads::slots::ThreadSlot;

/// The shared pool has reached its limit of blocked workers.
#[derive(Debug)]
pub(crate) struct NoWorkerLeft;

impl<T: Item> Flow<T> {
    /// Whether the calling thread is a drain thread of this queue.
    fn on_own_drain_thread(self: &Arc<Self>) -> bool {
        drained_queue() == Some(Arc::as_ptr(self) as usize)
    }

    /// Whether the calling thread would wait for itself if it waited for room here: it drains this
    /// queue, or is inside a handler that this queue needs.
    pub(crate) fn would_wait_for_itself(self: &Arc<Self>) -> bool {
        held_lock().is_some_and(|lock| self.calls_at(lock)) || self.on_own_drain_thread()
    }

    /// Prepares the calling thread to wait for this queue to drain. If it is a worker of the pool
    /// that drains the queue, another worker replaces it meanwhile. Returns an error if none is
    /// available: the thread must not wait then.
    pub(crate) fn compensate(&self) -> Result<Option<Compensation>, NoWorkerLeft> {
        match &self.pool {
            Some(pool) if pool.runs_current_thread() => {
                pool.begin_blocking(Limit::Twice).map(Some).ok_or(NoWorkerLeft)
            }
            _ => Ok(None),
        }
    }

    /// Enters a handler lock for `on_close`. If a thread of another queue is inside, waits outside
    /// the host, which that thread may need in order to leave; on a shared pool another worker
    /// replaces this one meanwhile. Called inside the host.
    pub(crate) fn enter_in_turn(&self, lock: &HandlerLock) {
        if lock.try_enter(self.address()) {
            return;
        }
        let mut wait = || {
            let _compensation = self.compensate_without_limit();
            lock.enter();
        };
        self.host.leave(&mut wait);
    }

    /// Compensates for the calling thread during a call of a handler that works elsewhere, for
    /// which the thread only waits.
    pub(crate) fn compensate_for(&self, handler: &HandlerRef<T>) -> Option<Compensation> {
        if handler.handler.works_elsewhere() { self.compensate_without_limit() } else { None }
    }

    /// Starts another worker on a shared pool, for a wait that at most one thread per queue is in.
    fn compensate_without_limit(&self) -> Option<Compensation> {
        let on_pool = self.pool.as_ref().filter(|pool| pool.runs_current_thread());
        on_pool.and_then(|pool| pool.begin_blocking(Limit::None))
    }
}

// Permits for slow calls: applies the decisions of `slow_calls.rs` to the threads and lanes of a
// queue.

impl<T: Item> Flow<T> {
    /// Whether a thread may call a slow handler for a job; if not, the job gets a ticket. Called
    /// under the lock of the job's lanes.
    pub(crate) fn admit_slow(&self, thread: usize, place: JobPlace) -> bool {
        self.slow_calls.admit(thread, place, || self.slow_scene())
    }

    /// Returns the permit of a thread that has left its slow handler, or did not use the permit.
    pub(crate) fn end_slow(&self, thread: usize) {
        let next = self.slow_calls.end(thread, Instant::now());
        self.recall_slow(next);
    }

    /// Recalls the first job that waits for a slow call, if a thread can make the call.
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

    /// Whether a slow job needs a spare thread: all threads but one are lost, and that one has
    /// quick work.
    pub(crate) fn needs_spare_for_slow(&self) -> bool {
        self.threads.is_one_left()
            && self.slow_calls.has_waited(Instant::now())
            && self.has_quick_work()
    }

    fn recall_slow(&self, mut next: Option<JobPlace>) {
        while let Some(place) = next {
            let partition = self.route.partition(place.partition);
            let (slow_calls, lane) = (&self.slow_calls, place.lane);
            // Under one hold of the lock: between two, the lane could get another ticket.
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
    /// nothing new arrives, so quick work is over once no quick call has ended for a moment.
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
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::control::state::Control;
    use crate::flow::handler::NoHost;
    use crate::flow::partition::lane::Since;
    use crate::flow::route::type_handlers::Consumption;
    use crate::queue::BatchQueue;
    use crate::sync::{Arc, Duration};
    use crate::testing::loom::{Number, ONE, Seen, TWO, config, model, model_by_turns};
    use crate::threads::park::sleeper;
    use crate::threads::slots::{Reach, Spares, ThreadSlots};

    // Slow calls under loom.

    /// Two threads, each with its own slow type: one of them waits until the other's call has
    /// ended.
    #[test]
    fn loom_two_slow_handlers_beside_quick_work() {
        model_by_turns(6, 1, || {
            let seen = Arc::new(Seen::default());
            let queue = BatchQueue::builder("q", config(2)).start().unwrap();
            // No drain thread has noted it: loom has no clock.
            queue.flow.threads[0].note_quick_call(Duration::ZERO);
            for key in [ONE, TWO] {
                let handler = seen.handler();
                handler.lock.note_slow(true);
                queue.add_handler(key, handler).unwrap();
            }
            queue.produce(Number(ONE, 1)).unwrap();
            queue.produce(Number(TWO, 2)).unwrap();
            seen.wait_for(2);
            queue.shutdown(None);
            // Two concurrent calls would have failed.
            assert_eq!(queue.stats().failed, 0);
        });
    }

    /// A ticket is stale because its lane was called without a permit. While the end of a slow call
    /// drops it, the lane's next job gets a ticket: a posted lane always has one.
    #[test]
    fn loom_stale_ticket_while_its_lane_is_posted_again() {
        model(2, || {
            // The threads of this queue do not run.
            let (_sleepers, wakers): (Vec<_>, Vec<_>) = (0..2).map(|_| sleeper()).unzip();
            let slots = ThreadSlots::new(wakers, Spares::new(2, Vec::new()));
            let (by_handler, host) = (Consumption::ByHandler, Arc::new(NoHost));
            let control: Arc<Control<Number>> = Arc::new(Control::new(
                "q".to_owned(),
                config(2),
                by_handler,
                None,
                host,
                slots,
                None,
            ));
            control.flow.threads[0].note_quick_call(Duration::ZERO);
            let partition = control.flow.route.partition(0);
            let lane = partition.change_lanes(|lanes| {
                let lane = lanes.lane_of(ONE, Since::start());
                lanes.add_segment(lane, vec![Number(ONE, 1)], 1);
                lanes.add_segment(lane, vec![Number(ONE, 2)], 1);
                lanes.next_ready();
                drop(lanes.take_job(0, lane, 1, 0));
                lane
            });
            let place = JobPlace { partition: 0, lane };
            assert!(control.flow.admit_slow(0, JobPlace { partition: 1, lane: 0 }));
            assert!(!control.flow.admit_slow(1, place));
            // Thread 1 stays the only one that could call, so the next job of the lane is refused,
            // too.
            control.flow.threads[0].set_reach(Reach::Away);
            let ended = {
                let control = control.clone();
                thread::spawn(move || control.flow.end_slow(0))
            };
            partition.change_lanes(|lanes| {
                lanes.end(lane, 1);
                lanes.next_ready();
                if !control.flow.admit_slow(1, place) {
                    lanes.post(lane, control.flow.slow_calls.address(), None);
                }
            });
            ended.join().unwrap();
            let address = control.flow.slow_calls.address();
            partition.change_lanes(|lanes| {
                assert!(!lanes.is_posted(lane, address) || control.flow.slow_calls.has_tickets());
            });
        });
    }
}
