//! A lock that is released by a plain store, for critical sections of a few statements or one run
//! of items.
//!
//! The mutex of `std` is released by an exchange, because it must learn whether a thread sleeps on
//! it. On x86, an exchange waits until all earlier stores have left the core. In a put, that is the
//! store into the segment, whose cache line another core had: more than half the time of a put.
//! After a plain store, the thread continues to its next lock without waiting for them.
//!
//! In return, a release notifies no thread, and the lock is not fair: among many producers of one
//! full partition, some progress faster than others. A thread that finds the lock taken yields a
//! few times, since the holder was probably preempted, and then tries again after each [`NAP`],
//! which the system may stretch to twice its length; this also gives a holder of lower priority
//! time to continue. Longer waits use a [`Condvar`](crate::sync::locks::Condvar).

use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::sync::Duration;

pub(crate) type QuickGuard<'a, V> = SpinMutexGuard<'a, V>;

/// The attempts at a contended lock, each after a yield, before the thread naps.
const YIELDS: usize = 64;

const NAP: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(crate) struct QuickMutex<V>(SpinMutex<V>);

impl<V: Default> Default for QuickMutex<V> {
    fn default() -> Self {
        Self::new(V::default())
    }
}

impl<V> QuickMutex<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(SpinMutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> QuickGuard<'_, V> {
        self.0.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<QuickGuard<'_, V>> {
        self.0.try_lock()
    }

    #[cold]
    fn lock_contended(&self) -> QuickGuard<'_, V> {
        let mut looks = 0;
        loop {
            if looks < YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
            looks += 1;
            // A load first: an attempt would take the cache line from the holder.
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn one_thread_at_a_time_is_inside() {
        const TIMES: u64 = 20_000;
        let count = QuickMutex::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        let mut held = count.lock();
                        // Two steps, so that a second thread inside would lose an increment.
                        let seen = *held;
                        std::hint::black_box(&held);
                        *held = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 4 * TIMES);
    }

    #[test]
    fn a_waiter_enters_after_a_holder_that_sleeps() {
        let order = QuickMutex::new(Vec::new());
        let (comes, came) = channel();
        thread::scope(|scope| {
            let mut held = order.lock();
            scope.spawn(|| {
                comes.send(()).unwrap();
                order.lock().push("second");
            });
            came.recv().unwrap();
            // Long enough for the other thread to nap.
            thread::sleep(NAP * 100);
            held.push("first");
        });
        assert_eq!(*order.lock(), ["first", "second"]);
    }

    #[test]
    fn a_panic_inside_releases_the_lock() {
        let lock = QuickMutex::new(1);
        let ended = thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _held = lock.lock();
                    panic!("inside");
                })
                .join()
        });
        assert!(ended.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}
