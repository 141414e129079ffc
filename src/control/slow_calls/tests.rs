//! Permits and tickets.

use super::*;

const SPARES: usize = 10;

fn place(partition: usize) -> JobPlace {
    JobPlace { partition, lane: 0 }
}

fn scene<F: Fn(usize) -> bool>(is_held_up: F, is_protected: bool, now: Instant) -> Scene<F> {
    let is_one_left = is_held_up(0);
    Scene { is_held_up, is_protected, is_one_left, spares: SPARES, now }
}

#[test]
fn slow_calls_are_made_in_the_order_in_which_their_jobs_came() {
    let (calls, now) = (SlowCalls::new(2), Instant::now());
    let admit = |thread, number| calls.admit(thread, place(number), || scene(|_| false, true, now));
    assert!(admit(0, 0));
    assert!(!admit(1, 1));
    assert!(!admit(1, 2));
    assert_eq!(calls.end(0, now), Some(place(1)));
    // The thread has more of the first type, and is quicker than the owner of the second.
    assert!(!admit(0, 0));
    assert!(!admit(1, 2));
    assert!(admit(1, 1));
    assert_eq!(calls.end(1, now), Some(place(2)));
}

#[test]
fn without_quick_work_slow_calls_may_fill_every_thread_but_spare_ones() {
    let (calls, now) = (SlowCalls::new(SPARES + 1), Instant::now());
    let others = |thread: usize| thread > 1 && thread < SPARES;
    let admit = |thread, number, is_protected| {
        calls.admit(thread, place(number), || scene(others, is_protected, now))
    };
    assert!(admit(0, 0, true));
    assert!(admit(1, 1, true), "the spare thread is free");
    assert!(!admit(SPARES, 2, true));
    assert!(!admit(SPARES, 2, false));
    assert_eq!(calls.end(0, now), Some(place(2)));
    assert!(admit(0, 2, false));
}

#[test]
fn a_thread_that_is_held_up_is_not_the_free_one() {
    let (calls, now) = (SlowCalls::new(3), Instant::now());
    let third = |thread| thread == 2;
    assert!(calls.admit(0, place(0), || scene(third, true, now)));
    assert!(!calls.admit(1, place(1), || scene(third, true, now)));
    assert_eq!(calls.next(&scene(third, true, now)), None);
    assert_eq!(calls.next(&scene(|_| false, true, now)), Some(place(1)));
}

/// All other threads are lost: slow work alone does not wait for exceptions.
#[test]
fn a_spare_thread_makes_slow_calls_in_place_of_lost_threads() {
    let (calls, now) = (SlowCalls::new(SPARES + 1), Instant::now());
    let others = |thread: usize| thread < SPARES;
    let admit = |is_protected| calls.admit(SPARES, place(0), || scene(others, is_protected, now));
    assert!(!admit(true));
    assert_eq!(calls.next(&scene(others, false, now)), Some(place(0)));
    assert!(admit(false));
}

#[test]
fn beside_hung_threads_the_last_one_makes_a_slow_call_once_in_a_while() {
    let (calls, start) = (SlowCalls::new(2), Instant::now());
    let first = |thread| thread == 0;
    let admit = |number, now| calls.admit(1, place(number), || scene(first, true, now));
    assert!(!admit(0, start));
    assert!(!admit(1, start));
    assert_eq!(calls.next(&scene(first, true, start)), None);
    let later = start + PATIENCE;
    assert_eq!(calls.next(&scene(first, true, later)), Some(place(0)));
    assert!(admit(0, later));
    assert_eq!(calls.end(1, later), Some(place(1)));
    // Quick work has its turn.
    assert!(!admit(1, later));
    assert!(admit(1, later + PATIENCE));
}
