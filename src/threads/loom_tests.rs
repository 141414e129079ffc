//! The pool under loom: real workers and tasks, in every interleaving up to a bound.
//!
//! Run with `make loom`. Each test names its race. Timers never fire in the model (see `sync`), so
//! a lost notification is a deadlock, which loom reports. Most of these models are small enough for
//! every interleaving. Every step of the pool is a critical section of one lock, so a race between
//! two parties needs one or two preemptions: one to get between two sections, one to return. The
//! larger models are bounded: enough for that, and as far as a test still ends within a few
//! seconds.

use loom::cell::UnsafeCell;
use loom::thread;

use crate::sync::{Arc, Mutex};
use crate::testing::loom::{model, model_by_turns, model_unbounded};
use crate::testing::threads::{FOR_EVER, Latch, end, start, task};
use crate::threads::pool::{After, Limit, Pool, PoolTask, TaskHandle};

/// A task that reads its inbox, sleeps, and is done when it has seen all messages. loom reports an
/// error if two workers are in `inside` concurrently.
struct Reader {
    inside: UnsafeCell<()>,
    inbox: Mutex<usize>,
    missing: Mutex<usize>,
    all_seen: Latch,
}

// SAFETY: test code; the cell exists so that loom reports what would be a data race.
unsafe impl Sync for Reader {}

impl Reader {
    fn expecting(messages: usize) -> Arc<Self> {
        Arc::new(Self {
            inside: UnsafeCell::new(()),
            inbox: Mutex::new(0),
            missing: Mutex::new(messages),
            all_seen: Latch::default(),
        })
    }

    fn send(&self, to: &TaskHandle) {
        *self.inbox.lock() += 1;
        to.notify();
    }
}

impl PoolTask for Reader {
    fn step(&self) -> After {
        self.inside.with_mut(|_| {
            let seen = std::mem::take(&mut *self.inbox.lock());
            let mut missing = self.missing.lock();
            *missing -= seen;
            if *missing > 0 {
                return FOR_EVER;
            }
            self.all_seen.open();
            After::Done
        })
    }
}

/// From `Running` to `RunningNotified`, and from `Idle` to `Queued`: a message that arrives while
/// the step ends is seen.
///
/// No bound: two threads.
#[test]
fn loom_notify_while_a_step_goes_to_sleep() {
    model_unbounded(|| {
        let pool = start(1);
        let reader = Reader::expecting(1);
        let handle = pool.add(reader.clone());
        reader.send(&handle);
        reader.all_seen.wait();
        end(&pool);
    });
}

/// Two notifications and two workers: the task runs on one of them at a time, and sees both
/// messages.
///
/// Bound 2, in 1 s: four threads; with 3 it takes 45 s.
#[test]
fn loom_two_notifies_while_a_step_runs() {
    model(2, || {
        let pool = start(2);
        let reader = Reader::expecting(2);
        let handle = pool.add(reader.clone());
        let other = {
            let (reader, handle) = (reader.clone(), handle.clone());
            thread::spawn(move || reader.send(&handle))
        };
        reader.send(&handle);
        reader.all_seen.wait();
        other.join().unwrap();
        end(&pool);
    });
}

/// Each added task wakes a worker: two tasks added while two workers begin to wait both get a
/// worker, even if the first cannot end without the second.
///
/// Bound 3, in 3 s: three threads; with 4 it takes a minute.
#[test]
fn loom_two_tasks_while_two_workers_go_to_wait() {
    model_by_turns(0, 3, || {
        let pool = start(2);
        let second_ran = Arc::new(Latch::default());
        let waits = second_ran.clone();
        pool.add(task(move || {
            waits.wait();
            After::Done
        }));
        let opens = second_ran.clone();
        pool.add(task(move || {
            opens.open();
            After::Done
        }));
        second_ran.wait();
        end(&pool);
    });
}

/// Close against add: the workers end, and the task is dropped, whether or not it has run.
///
/// No bound: three threads of a few steps each.
#[test]
fn loom_close_while_a_task_is_added() {
    model_unbounded(|| {
        let pool = start(1);
        let task = task(|| After::Done);
        let held = Arc::downgrade(&task);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || drop(pool.add(task)))
        };
        end(&pool);
        other.join().unwrap();
        assert!(held.upgrade().is_none(), "a task outlives its pool");
    });
}

/// Close against notify: the workers end, and a sleeping task is dropped, whenever the notification
/// arrives.
///
/// No bound, as above.
#[test]
fn loom_close_while_a_task_is_notified() {
    model_unbounded(|| {
        let pool = start(1);
        let task = task(|| FOR_EVER);
        let held = Arc::downgrade(&task);
        let handle = pool.add(task);
        let other = thread::spawn(move || handle.notify());
        end(&pool);
        other.join().unwrap();
        assert!(held.upgrade().is_none(), "a task outlives its pool");
    });
}

/// Done against notify: a task that is done never runs again.
///
/// No bound, as above.
#[test]
fn loom_notify_while_a_task_says_done() {
    model_unbounded(|| {
        let pool = start(1);
        let steps = Arc::new(Mutex::new(0));
        let counted = steps.clone();
        let handle = pool.add(task(move || {
            *counted.lock() += 1;
            After::Done
        }));
        let other = thread::spawn(move || handle.notify());
        end(&pool);
        other.join().unwrap();
        assert_eq!(*steps.lock(), 1);
    });
}

/// A worker waits for another task of the pool: another worker replaces it, and one of them leaves
/// afterwards, even if the next task is added just then or the pool closes.
///
/// Bound 3, in 4 s: three threads of many steps; with 4 it takes half a minute.
#[test]
fn loom_a_worker_blocks_until_another_task_has_run() {
    model_by_turns(3, 3, || {
        let pool = start(1);
        let [second, third] = [(); 2].map(|()| Arc::new(Latch::default()));
        let (blocking, waits): (Arc<Pool>, _) = (pool.clone(), second.clone());
        pool.add(task(move || {
            let compensation = blocking.begin_blocking(Limit::Twice);
            assert!(compensation.is_some());
            waits.wait();
            After::Done
        }));
        for latch in [&second, &third] {
            let opens = latch.clone();
            pool.add(task(move || {
                opens.open();
                After::Done
            }));
            latch.wait();
        }
        end(&pool);
    });
}
