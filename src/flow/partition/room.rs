//! The room of a partition: its bound, the items that count against it, and how producers wait for
//! it.
//!
//! Queued items count, and so do those that the lanes hold. A type whose handler is slow, backs off
//! or hangs would fill a partition that it shares and block the other types there. So it is
//! *stalled*: a put that finds the partition full searches for lanes whose job has waited for
//! [`STALLED_AFTER`](crate::flow::partition::lane::STALLED_AFTER). The items of these lanes no
//! longer count, which makes room for the other types; puts of a stalled type find no room until
//! its lane holds nothing.
//!
//! ```text
//!              the partition is full, and the lane's job has waited for long
//!   (counted) ──────────────────────────────────────────────────────────────▶ stalled
//!       ▲                                                                       │
//!       └── its last item is in flight, discarded, or settled without a handler ──┘
//! ```
//!
//! So a stalled type adds at most one more buffer. A lane changes state under the lock of the
//! lanes; producers see it under the gate.

use crate::flow::partition::lanes::Lanes;
use crate::flow::partition::space::Listener;
use crate::flow::partition::{Access, Gate, Partition, Stop};
use crate::item::TypeKey;
use crate::sync::{Arc, Duration, Instant, Ordering};

impl<T> Partition<T> {
    /// Checks whether a put may proceed: first the access, then the type, then the bound.
    #[inline]
    pub(crate) fn check(
        &self,
        gate: &mut Gate<T>,
        key: impl FnOnce() -> TypeKey,
        inside_pool: bool,
    ) -> Result<(), Stop> {
        let limit = if inside_pool { Access::DrainThreads } else { Access::Open };
        if gate.access > limit {
            return Err(Stop::Closed);
        }
        if gate.has_stalled && self.is_stalled(key()) {
            return Err(Stop::Stalled);
        }
        if gate.queued() >= self.buffer_size {
            self.refresh_released(gate);
            if gate.queued() >= self.buffer_size {
                if gate.lingers {
                    self.want_room(gate);
                }
                return Err(Stop::Full);
            }
        }
        Ok(())
    }

    pub(crate) fn is_stalled(&self, key: TypeKey) -> bool {
        self.stalled.lock().contains(&key)
    }

    /// Waits until there is room for `weight` items of a type, the access changes, or `limit` has
    /// passed. May return early.
    pub(crate) fn wait_for_room(
        &self,
        key: TypeKey,
        weight: usize,
        limit: Option<Duration>,
        inside_pool: bool,
    ) {
        self.space.wait(limit, || {
            let mut gate = self.gate.lock();
            match self.check(&mut gate, || key, inside_pool) {
                Err(Stop::Closed) => false,
                Err(Stop::Stalled) => true,
                _ => {
                    self.refresh_released(&mut gate);
                    gate.queued() + weight > self.buffer_size
                }
            }
        });
    }

    /// Notifies `listener` of room from now on; see
    /// [`Space::listen`](crate::flow::partition::space::Space::listen).
    pub(crate) fn listen(&self, listener: Arc<dyn Listener>) {
        self.space.listen(listener, self.index);
    }

    /// Stops notifying `listener`.
    pub(crate) fn stop_listening(&self, listener: &Arc<dyn Listener>) {
        self.space.stop_listening(listener);
    }

    /// Returns the number of items of a type that there is room for. Once the partition is closed
    /// this is the full bound, so that waiting producers check again.
    pub(crate) fn room(&self, key: TypeKey) -> usize {
        let mut gate = self.gate.lock();
        if gate.access == Access::Closed {
            return self.buffer_size;
        }
        if gate.has_stalled && self.is_stalled(key) {
            return 0;
        }
        self.refresh_released(&mut gate);
        self.buffer_size.saturating_sub(gate.queued())
    }

    /// Whether the partition is so full that a producer waits or soon will.
    pub(crate) fn is_pressed(&self) -> bool {
        let mut gate = self.gate.lock();
        self.refresh_released(&mut gate);
        gate.queued() >= self.pressure_level(&gate)
    }

    pub(crate) fn refresh_released(&self, gate: &mut Gate<T>) {
        // Acquire: pairs with the Release in `store_released`. A stale value makes the partition
        // look fuller; or emptier, by a job that has failed since and is held until its next try.
        gate.released_seen = self.drain_side.released.load(Ordering::Acquire);
    }

    /// Makes room after a change of the lanes, under their lock: items that were taken and are not
    /// held no longer count. Producers are notified if the room `may_be_awaited`. It may be
    /// wherever a lane is no longer stalled, because that lane held something before.
    #[inline]
    pub(crate) fn make_room(&self, lanes: &mut Lanes<T>, may_be_awaited: bool) {
        self.store_released(lanes.counted());
        if lanes.has_recovered() {
            self.publish_recovered(lanes);
        }
        if may_be_awaited {
            self.space.notify_waiting();
        }
    }

    /// Stores `released`, under the lock of the lanes.
    #[inline]
    fn store_released(&self, counted: usize) {
        // Relaxed load: written under the lock of the lanes. Release: pairs with the Acquire in
        // `refresh_released`.
        let released = self.drain_side.taken.load(Ordering::Relaxed) - counted as u64;
        self.drain_side.released.store(released, Ordering::Release);
    }

    // ---- stalled types

    /// Whether a search for stalled types is due at `now`; the next one is `pause` later. Both
    /// are relative to the queue's start.
    pub(crate) fn begin_search(&self, now: Duration, pause: Duration) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: if two threads search, both find the same.
        let is_due = nanos(now) >= self.next_stall_check_ns.load(Ordering::Relaxed);
        if is_due {
            self.next_stall_check_ns.store(nanos(now + pause), Ordering::Relaxed);
        }
        is_due
    }

    /// Marks the types whose jobs have waited too long as stalled. Returns whether any was not
    /// stalled before.
    pub(crate) fn mark_stalled(&self, now: Instant) -> bool {
        let mut lanes = self.lanes.lock();
        let mut stalled = Vec::new();
        lanes.mark_stalled(now, |key| stalled.push(key));
        if stalled.is_empty() {
            return false;
        }
        let mut gate = self.gate.lock();
        self.stalled.lock().extend(stalled);
        gate.has_stalled = true;
        gate.withdraw_plan();
        drop(gate);
        self.store_released(lanes.counted());
        drop(lanes);
        // Others may wait for the same room.
        self.space.notify_waiting();
        true
    }

    #[cold]
    fn publish_recovered(&self, lanes: &mut Lanes<T>) {
        let mut gate = self.gate.lock();
        let mut stalled = self.stalled.lock();
        for key in lanes.take_recovered() {
            stalled.remove(&key);
        }
        gate.has_stalled = !stalled.is_empty();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use crate::flow::partition::lane::Since;
    use crate::flow::partition::ready::ReadySet;
    use crate::flow::partition::{Partition, Stop};
    use crate::flow::segments::SegmentPool;
    use crate::sync::{Arc, Instant};
    use crate::testing::loom::{Number, ONE, TWO, model};

    /// A producer of a stalled type goes to wait while a drain thread takes the last item that its
    /// lane held: the producer is notified.
    #[test]
    fn loom_stall_ends_while_a_producer_goes_to_wait() {
        model(3, || {
            let (ready, pool) = (ReadySet::new().add(0), Arc::new(SegmentPool::new(1)));
            let partition = Arc::new(Partition::new(0, ready, 1, 1, pool));
            let lane = {
                let mut lanes = partition.lanes.lock();
                let lane = lanes.lane_of(ONE, Since::start());
                lanes.next_ready();
                lanes.add_segment(lane, vec![Number(ONE, 1)], 1);
                lane
            };
            assert!(partition.mark_stalled(Instant::now()));
            assert!(partition.put(Number(TWO, 1), || false).is_ok(), "others have the room");
            let (_, stop) = partition.put(Number(ONE, 2), || false).unwrap_err();
            assert_eq!(stop, Stop::Stalled);
            let inside = {
                let partition = partition.clone();
                thread::spawn(move || {
                    let mut lanes = partition.lanes.lock();
                    let job = lanes.take_job(0, lane, 1, 0);
                    partition.make_room(&mut lanes, true);
                    drop(lanes);
                    job.items
                })
            };
            while partition.put_again(Number(ONE, 2), false) == Err((Number(ONE, 2), Stop::Stalled))
            {
                partition.wait_for_room(ONE, 0, None, false);
            }
            assert_eq!(inside.join().unwrap(), 1);
        });
    }
}
