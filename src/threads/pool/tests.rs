//! The pool with real threads and real time: scheduling, sleeps, compensation, shutdown.

use std::sync::mpsc;

use crate::sync::{Arc, AtomicUsize, Deadline, Duration, Mutex, Ordering};
use crate::testing::threads::{FOR_EVER, Latch, PATIENCE, end, live, start, task, wait_for_end};
use crate::threads::pool::{After, Limit, Pool, TaskHandle};

/// Polls until `done`, where a latch is not possible.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let patience = Deadline::after(PATIENCE);
    while !done() {
        assert!(patience.time_left().is_some(), "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

/// Waits until all workers wait for work.
fn wait_until_idle(pool: &Pool) {
    wait_until("idle workers", || {
        let (workers, waiting) = pool.workers();
        workers == waiting
    });
}

/// Adds a task that sends the number of each step, from 1 on, and continues as `after` returns.
fn add_reporting(
    pool: &Arc<Pool>,
    after: impl Fn(usize) -> After + Send + Sync + 'static,
) -> (TaskHandle, mpsc::Receiver<usize>) {
    let (report, reports) = mpsc::channel();
    let steps = AtomicUsize::new(0);
    let handle = pool.add(task(move || {
        let step = steps.fetch_add(1, Ordering::Relaxed) + 1;
        let after = after(step);
        report.send(step).unwrap();
        after
    }));
    (handle, reports)
}

fn expect_step(reports: &mpsc::Receiver<usize>, step: usize) {
    assert_eq!(reports.recv_timeout(PATIENCE), Ok(step));
}

#[test]
fn tasks_with_more_to_do_take_turns() {
    let pool = start(1);
    let both_added = Arc::new(Latch::default());
    let turns = Arc::new(Mutex::new(Vec::new()));
    let held = both_added.clone();
    pool.add(task(move || {
        held.wait();
        After::Done
    }));
    let done: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let turns = turns.clone();
            let (_, reports) = add_reporting(&pool, move |step| {
                turns.lock().push(name);
                if step < 4 { After::Again } else { After::Done }
            });
            reports
        })
        .collect();
    both_added.open();
    for reports in &done {
        (1..=4).for_each(|step| expect_step(reports, step));
    }
    assert_eq!(turns.lock().concat(), "abababab");
    end(&pool);
}

#[test]
fn a_long_step_does_not_block_other_tasks_while_a_worker_is_free() {
    let pool = start(2);
    let release = Arc::new(Latch::default());
    let held = release.clone();
    let (_, long) = add_reporting(&pool, move |_| {
        held.wait();
        After::Done
    });
    let (_, short) =
        add_reporting(&pool, |step| if step < 100 { After::Again } else { After::Done });
    (1..=100).for_each(|step| expect_step(&short, step));
    assert!(long.try_recv().is_err());
    release.open();
    expect_step(&long, 1);
    end(&pool);
}

#[test]
fn a_notification_during_a_step_is_followed_by_another_step() {
    let pool = start(2);
    let [inside, notified] = [(); 2].map(|()| Arc::new(Latch::default()));
    let (enters, waits) = (inside.clone(), notified.clone());
    let (handle, reports) = add_reporting(&pool, move |_| {
        enters.open();
        waits.wait();
        FOR_EVER
    });
    inside.wait();
    // Twice: the second notification must add nothing.
    handle.notify();
    handle.notify();
    notified.open();
    expect_step(&reports, 1);
    expect_step(&reports, 2);
    wait_until_idle(&pool);
    assert!(reports.try_recv().is_err());
    end(&pool);
}

#[test]
fn a_sleep_ends_by_its_timer() {
    let pool = start(1);
    let (_, reports) = add_reporting(&pool, |step| {
        if step < 4 { After::Sleep(Duration::from_millis(step as u64)) } else { After::Done }
    });
    (1..=4).for_each(|step| expect_step(&reports, step));
    end(&pool);
}

#[test]
fn a_timer_fires_even_if_other_tasks_are_always_ready() {
    let pool = start(1);
    let stop = Arc::new(Latch::default());
    let (busy, ends) = (stop.clone(), stop.clone());
    let (_, busy) =
        add_reporting(&pool, move |_| if busy.is_open() { After::Done } else { After::Again });
    let (_, rests) = add_reporting(&pool, move |step| {
        if step == 1 {
            return After::Sleep(Duration::from_millis(1));
        }
        ends.open();
        After::Done
    });
    expect_step(&rests, 1);
    expect_step(&rests, 2);
    end(&pool);
    assert!(busy.iter().count() > 1);
}

/// The worker that waits for the first timer may be the one that takes the next task. That depends
/// on the order in which the two began to wait, so both orders are tried.
#[test]
fn a_timer_fires_even_if_its_keeper_takes_a_long_step() {
    // Long enough for the long step to begin first, even on a busy machine.
    const LONG_ENOUGH: Duration = Duration::from_millis(300);
    for warm_up in 0..4 {
        let pool = start(2);
        let fired = Arc::new(Latch::default());
        let opens = fired.clone();
        let (_, rests) = add_reporting(&pool, move |step| {
            if step == 1 {
                return After::Sleep(LONG_ENOUGH);
            }
            opens.open();
            After::Done
        });
        expect_step(&rests, 1);
        for _ in 0..warm_up {
            wait_until_idle(&pool);
            expect_step(&add_reporting(&pool, |_| After::Done).1, 1);
        }
        wait_until_idle(&pool);
        let (_, long) = add_reporting(&pool, move |_| {
            fired.wait();
            After::Done
        });
        expect_step(&long, 1);
        expect_step(&rests, 2);
        end(&pool);
    }
}

#[test]
fn a_notification_ends_a_sleep() {
    let pool = start(1);
    let (handle, reports) =
        add_reporting(&pool, |step| if step == 1 { FOR_EVER } else { After::Done });
    expect_step(&reports, 1);
    wait_until_idle(&pool);
    handle.notify();
    expect_step(&reports, 2);
    end(&pool);
}

#[test]
fn a_blocked_worker_is_replaced_up_to_twice_the_size_and_the_surplus_leaves() {
    let pool = start(2);
    for _ in 0..2 {
        let release = Arc::new(Latch::default());
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (report, reports) = mpsc::channel();
                let (blocking, held) = (pool.clone(), release.clone());
                pool.add(task(move || {
                    let compensation = blocking.begin_blocking(Limit::Twice);
                    report.send(compensation.is_some()).unwrap();
                    if compensation.is_some() {
                        held.wait();
                    }
                    After::Done
                }));
                reports.recv_timeout(PATIENCE).unwrap()
            })
            .collect();
        assert_eq!(tasks, [true, true, false, false]);
        assert_eq!(pool.workers().0, 4);
        release.open();
        wait_until("the surplus to leave", || pool.workers() == (2, 2));
    }
    end(&pool);
}

#[test]
fn a_closed_pool_ends_when_nothing_is_queued_and_gives_up_sleeping_tasks() {
    let pool = start(2);
    let [inside, release] = [(); 2].map(|()| Arc::new(Latch::default()));
    let (_, rests) = add_reporting(&pool, |_| FOR_EVER);
    expect_step(&rests, 1);
    wait_until_idle(&pool);
    let (enters, held) = (inside.clone(), release.clone());
    let (_, blocked_reports) = add_reporting(&pool, move |step| {
        enters.open();
        held.wait();
        if step == 1 { After::Again } else { FOR_EVER }
    });
    inside.wait();
    pool.close();
    pool.close();
    assert_eq!(
        rests.try_recv(),
        Err(mpsc::TryRecvError::Disconnected),
        "the sleeping task is still held"
    );
    let (late, refused) = add_reporting(&pool, |_| After::Done);
    late.notify();
    assert_eq!(
        refused.try_recv(),
        Err(mpsc::TryRecvError::Disconnected),
        "the refused task is still held"
    );
    assert!(!pool.wait_ended(Some(Duration::ZERO)));
    release.open();
    expect_step(&blocked_reports, 1);
    expect_step(&blocked_reports, 2);
    wait_for_end(&pool);
    assert!(pool.wait_ended(None));
    assert_eq!(
        blocked_reports.try_recv(),
        Err(mpsc::TryRecvError::Disconnected),
        "the task outlives its pool"
    );
}

#[test]
fn workers_are_counted_out_after_they_have_left_their_host() {
    let left = Arc::new(AtomicUsize::new(0));
    let leaves = left.clone();
    let pool = Pool::start(
        "test",
        3,
        Arc::new(move |body| {
            body();
            std::thread::yield_now();
            leaves.fetch_add(1, Ordering::SeqCst);
        }),
    )
    .unwrap();
    end(&pool);
    assert_eq!(left.load(Ordering::SeqCst), 3);
    // No worker still holds a reference to the pool.
    assert_eq!(Arc::strong_count(&pool), 1);
}

#[test]
fn a_pool_ends_even_if_its_host_runs_no_worker() {
    let pool = Pool::start("test", 2, Arc::new(|_| ())).unwrap();
    end(&pool);
    assert_eq!(pool.workers(), (0, 0));
}

#[test]
fn a_task_that_panics_is_done_and_its_worker_continues() {
    let pool = start(1);
    let (handle, panics) = add_reporting(&pool, |_| panic!("intended by the test"));
    // The sender is dropped, so the task is too.
    assert_eq!(panics.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    handle.notify();
    let (_, next) = add_reporting(&pool, |_| After::Done);
    expect_step(&next, 1);
    end(&pool);
}

#[test]
fn a_worker_knows_its_pool() {
    let [pool, other] = [(); 2].map(|()| Pool::start("test", 1, live()).unwrap());
    let (report, reports) = mpsc::channel();
    let pools = [pool.clone(), other.clone()];
    pool.add(task(move || {
        report.send(pools.each_ref().map(|pool| pool.runs_current_thread())).unwrap();
        After::Done
    }));
    assert_eq!(reports.recv_timeout(PATIENCE), Ok([true, false]));
    assert!(!pool.runs_current_thread());
    end(&pool);
    end(&other);
}
