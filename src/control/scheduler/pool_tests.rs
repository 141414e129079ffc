//! The pool with real threads and real time: who runs when, rests, compensation, ends.

use std::sync::mpsc;

use super::support::{FOR_EVER, Latch, PATIENCE, end, live, start, task, wait_for_end};
use super::{After, Limit, Pool, TaskHandle};
use crate::sync::{Arc, AtomicUsize, Deadline, Duration, Mutex, Ordering};

/// Polls, for what no latch can tell.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let patience = Deadline::after(PATIENCE);
    while !done() {
        assert!(patience.time_left().is_some(), "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// All workers wait for work.
fn wait_until_idle(pool: &Pool) {
    wait_until("idle workers", || {
        let (workers, waiting) = pool.workers();
        workers == waiting
    });
}

/// A task that tells each step's number, from 1 on, and goes on as `after` says.
fn told(
    pool: &Arc<Pool>,
    after: impl Fn(usize) -> After + Send + Sync + 'static,
) -> (TaskHandle, mpsc::Receiver<usize>) {
    let (tell, told) = mpsc::channel();
    let steps = AtomicUsize::new(0);
    let handle = pool.add(task(move || {
        let step = steps.fetch_add(1, Ordering::Relaxed) + 1;
        let after = after(step);
        tell.send(step).unwrap();
        after
    }));
    (handle, told)
}

fn expect_step(told: &mpsc::Receiver<usize>, step: usize) {
    assert_eq!(told.recv_timeout(PATIENCE), Ok(step));
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
            let (_, told) = told(&pool, move |step| {
                turns.lock().push(name);
                if step < 4 { After::Again } else { After::Done }
            });
            told
        })
        .collect();
    both_added.open();
    for told in &done {
        (1..=4).for_each(|step| expect_step(told, step));
    }
    assert_eq!(turns.lock().concat(), "abababab");
    end(&pool);
}

#[test]
fn a_long_step_does_not_hold_up_other_tasks_while_a_worker_is_free() {
    let pool = start(2);
    let release = Arc::new(Latch::default());
    let held = release.clone();
    let (_, long) = told(&pool, move |_| {
        held.wait();
        After::Done
    });
    let (_, short) = told(&pool, |step| if step < 100 { After::Again } else { After::Done });
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
    let (handle, told) = told(&pool, move |_| {
        enters.open();
        waits.wait();
        FOR_EVER
    });
    inside.wait();
    // Twice, to see that it means the same.
    handle.notify();
    handle.notify();
    notified.open();
    expect_step(&told, 1);
    expect_step(&told, 2);
    wait_until_idle(&pool);
    assert!(told.try_recv().is_err());
    end(&pool);
}

#[test]
fn a_rest_ends_by_its_timer() {
    let pool = start(1);
    let (_, told) = told(&pool, |step| {
        if step < 4 { After::Sleep(Duration::from_millis(step as u64)) } else { After::Done }
    });
    (1..=4).for_each(|step| expect_step(&told, step));
    end(&pool);
}

#[test]
fn a_timer_fires_although_other_tasks_are_always_ready() {
    let pool = start(1);
    let stop = Arc::new(Latch::default());
    let (busy, ends) = (stop.clone(), stop.clone());
    let (_, busy) = told(&pool, move |_| if busy.is_open() { After::Done } else { After::Again });
    let (_, rests) = told(&pool, move |step| {
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

/// The worker that waits for the first timer may be the one that takes the next task. Which one
/// that is depends on the order in which the two went to wait, so both orders are tried.
#[test]
fn a_timer_fires_although_the_worker_that_kept_it_got_a_long_step() {
    // For the long step to come first, also on a busy machine.
    const LONG_ENOUGH: Duration = Duration::from_millis(300);
    for warm_up in 0..4 {
        let pool = start(2);
        let fired = Arc::new(Latch::default());
        let opens = fired.clone();
        let (_, rests) = told(&pool, move |step| {
            if step == 1 {
                return After::Sleep(LONG_ENOUGH);
            }
            opens.open();
            After::Done
        });
        expect_step(&rests, 1);
        for _ in 0..warm_up {
            wait_until_idle(&pool);
            expect_step(&told(&pool, |_| After::Done).1, 1);
        }
        wait_until_idle(&pool);
        let (_, long) = told(&pool, move |_| {
            fired.wait();
            After::Done
        });
        expect_step(&long, 1);
        expect_step(&rests, 2);
        end(&pool);
    }
}

#[test]
fn a_notification_ends_a_rest() {
    let pool = start(1);
    let (handle, told) = told(&pool, |step| if step == 1 { FOR_EVER } else { After::Done });
    expect_step(&told, 1);
    wait_until_idle(&pool);
    handle.notify();
    expect_step(&told, 2);
    end(&pool);
}

#[test]
fn a_blocked_worker_is_replaced_up_to_twice_the_size_and_the_surplus_leaves() {
    let pool = start(2);
    for _ in 0..2 {
        let release = Arc::new(Latch::default());
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (tell, told) = mpsc::channel();
                let (blocking, held) = (pool.clone(), release.clone());
                pool.add(task(move || {
                    let compensation = blocking.begin_blocking(Limit::Twice);
                    tell.send(compensation.is_some()).unwrap();
                    if compensation.is_some() {
                        held.wait();
                    }
                    After::Done
                }));
                told.recv_timeout(PATIENCE).unwrap()
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
fn a_closed_pool_ends_when_nothing_is_queued_and_gives_up_what_rests() {
    let pool = start(2);
    let [inside, release] = [(); 2].map(|()| Arc::new(Latch::default()));
    let (_, rests) = told(&pool, |_| FOR_EVER);
    expect_step(&rests, 1);
    wait_until_idle(&pool);
    let (enters, held) = (inside.clone(), release.clone());
    let (_, told_steps) = told(&pool, move |step| {
        enters.open();
        held.wait();
        if step == 1 { After::Again } else { FOR_EVER }
    });
    inside.wait();
    pool.close();
    pool.close();
    assert_eq!(rests.try_recv(), Err(mpsc::TryRecvError::Disconnected), "the resting task is held");
    let (late, refused) = told(&pool, |_| After::Done);
    late.notify();
    assert_eq!(refused.try_recv(), Err(mpsc::TryRecvError::Disconnected), "the late task is held");
    assert!(!pool.wait_ended(Some(Duration::ZERO)));
    release.open();
    expect_step(&told_steps, 1);
    expect_step(&told_steps, 2);
    wait_for_end(&pool);
    assert!(pool.wait_ended(None));
    assert_eq!(
        told_steps.try_recv(),
        Err(mpsc::TryRecvError::Disconnected),
        "the task outlives its pool"
    );
}

#[test]
fn workers_are_counted_out_after_their_host_has_let_them_go() {
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
    // The workers hold the pool, and nothing of it was left with one of them.
    assert_eq!(Arc::strong_count(&pool), 1);
}

#[test]
fn a_host_that_does_not_let_workers_work_leaves_a_pool_that_ends() {
    let pool = Pool::start("test", 2, Arc::new(|_| ())).unwrap();
    end(&pool);
    assert_eq!(pool.workers(), (0, 0));
}

#[test]
fn a_task_that_panics_is_done_and_its_worker_goes_on() {
    let pool = start(1);
    let (handle, panics) = told(&pool, |_| panic!("the test wants it"));
    // Its sender is gone, so the task is.
    assert_eq!(panics.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
    handle.notify();
    let (_, next) = told(&pool, |_| After::Done);
    expect_step(&next, 1);
    end(&pool);
}

#[test]
fn a_worker_knows_its_pool() {
    let [pool, other] = [(); 2].map(|()| Pool::start("test", 1, live()).unwrap());
    let (tell, told) = mpsc::channel();
    let pools = [pool.clone(), other.clone()];
    pool.add(task(move || {
        tell.send(pools.each_ref().map(|pool| pool.runs_current_thread())).unwrap();
        After::Done
    }));
    assert_eq!(told.recv_timeout(PATIENCE), Ok([true, false]));
    assert!(!pool.runs_current_thread());
    end(&pool);
    end(&other);
}
