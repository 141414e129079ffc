//! Slow calls: keeps slow handlers from occupying every drain thread while others are quick.
//!
//! A handler instance whose last call took over [`SLOW_CALL`] is *slow*. A thread calls it only
//! with a permit, and the last thread that is not held up gets none if a quick call has ended
//! within [`QUICK_WORK`]. A job without a permit stays in its lane, with a ticket here: first come,
//! first served, so that no slow type starves another.
//!
//! If all other threads are lost in calls that do not end, a job that has waited for [`PATIENCE`]
//! gets a spare thread, or else a call on the last thread once in a while. So no slow type waits
//! forever, and one that was slow only once is quick again after that call.
//!
//! A lane that is posted here has a ticket; both change under the lock of the lanes.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `state` | threads that submit or end a slow call, supervisor, under its lock | the same |
//! | `waiting` | the same, under that lock | threads that end a call |

use std::collections::VecDeque;

use crate::flow::handler::lock::JobPlace;
use crate::sync::{AtomicUsize, Duration, Instant, Mutex, Ordering};

/// A handler whose last call took longer is slow.
pub(crate) const SLOW_CALL: Duration = Duration::from_millis(100);

/// A queue that has had no quick call for this long has no quick work to protect.
pub(crate) const QUICK_WORK: Duration = Duration::from_secs(10);

/// How long a job waits before it may be called on the last thread, and how long that thread then
/// serves quick work.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State {
    /// The threads that may call slow handlers at the moment.
    permits: Vec<bool>,
    tickets: VecDeque<Ticket>,
    /// The thread that has a permit although it was the last one left.
    exception: Option<usize>,
    /// When the next exception is allowed.
    next_exception: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Ticket {
    place: JobPlace,
    since: Instant,
}

/// The circumstances that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene<F> {
    /// Whether a thread cannot serve quick work at the moment.
    pub(crate) is_held_up: F,
    /// Whether there is quick work.
    pub(crate) is_protected: bool,
    /// Whether all threads but one are lost in calls that do not end.
    pub(crate) is_one_left: bool,
    /// The index of the first spare thread.
    pub(crate) spares: usize,
    pub(crate) now: Instant,
}

#[derive(Debug)]
pub(crate) struct SlowCalls {
    state: Mutex<State>,
    /// The number of tickets.
    waiting: AtomicUsize,
}

impl SlowCalls {
    pub(crate) fn new(threads: usize) -> Self {
        let state = State {
            permits: vec![false; threads],
            tickets: VecDeque::new(),
            exception: None,
            next_exception: None,
        };
        Self { state: Mutex::new(state), waiting: AtomicUsize::new(0) }
    }

    /// Returns the address at which jobs with a ticket are posted; no handler lock has it.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether jobs wait here.
    pub(crate) fn has_tickets(&self) -> bool {
        // Relaxed: a hint. The supervisor finds what this misses.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Gives the thread a permit, or the job a ticket. Called under the lock of the job's lanes.
    pub(crate) fn admit<H: Fn(usize) -> bool>(
        &self,
        thread: usize,
        place: JobPlace,
        scene: impl FnOnce() -> Scene<H>,
    ) -> bool {
        let mut state = self.state.lock();
        if state.permits[thread] {
            return true;
        }
        let scene = scene();
        let first = state.tickets.front().map(|ticket| ticket.place);
        let is_next = first.is_none_or(|first| first == place);
        let is_regular = state.may_call(thread, &scene);
        if is_next && (is_regular || state.may_make_exception(&scene)) {
            state.permits[thread] = true;
            if !is_regular {
                state.exception = Some(thread);
            }
            if first == Some(place) {
                state.tickets.pop_front();
            }
        } else if first != Some(place) {
            state.tickets.push_back(Ticket { place, since: scene.now });
        }
        self.note_waiting(&state);
        state.permits[thread]
    }

    /// Takes back the permit of a thread that has left its slow handler. Returns the job that has
    /// waited longest, which is to be submitted again.
    pub(crate) fn end(&self, thread: usize, now: Instant) -> Option<JobPlace> {
        let mut state = self.state.lock();
        state.permits[thread] = false;
        if state.exception == Some(thread) {
            state.exception = None;
            state.next_exception = Some(now + PATIENCE);
        }
        state.tickets.front().map(|ticket| ticket.place)
    }

    /// Whether the first job has waited for [`PATIENCE`].
    pub(crate) fn has_waited(&self, now: Instant) -> bool {
        self.has_tickets() && self.state.lock().has_waited(now)
    }

    /// Returns the job that has waited longest, if a thread could call its handler.
    pub(crate) fn next(&self, scene: &Scene<impl Fn(usize) -> bool>) -> Option<JobPlace> {
        let state = self.state.lock();
        let first = state.tickets.front()?.place;
        let could = |thread: usize| {
            !state.permits[thread]
                && !(scene.is_held_up)(thread)
                && (state.may_call(thread, scene) || state.may_make_exception(scene))
        };
        (0..state.permits.len()).any(could).then_some(first)
    }

    /// Drops the first ticket, whose job is no longer here. Returns the job behind it. Called under
    /// the lock of the job's lanes.
    pub(crate) fn drop_first(&self, place: JobPlace) -> Option<JobPlace> {
        let mut state = self.state.lock();
        if state.tickets.front().is_some_and(|ticket| ticket.place == place) {
            state.tickets.pop_front();
        }
        self.note_waiting(&state);
        state.tickets.front().map(|ticket| ticket.place)
    }

    fn note_waiting(&self, state: &State) {
        // Relaxed: as in `has_tickets`.
        self.waiting.store(state.tickets.len(), Ordering::Relaxed);
    }
}

impl State {
    /// Whether a thread may call a slow handler: another thread is left for quick work, or there is
    /// no quick work. In the latter case, a spare thread may only replace lost threads.
    fn may_call(&self, thread: usize, scene: &Scene<impl Fn(usize) -> bool>) -> bool {
        let may_fill = thread < scene.spares || scene.is_one_left;
        self.leaves_one_free(thread, scene) || (!scene.is_protected && may_fill)
    }

    /// Whether another thread is left for quick work if this one calls a slow handler.
    fn leaves_one_free(&self, thread: usize, scene: &Scene<impl Fn(usize) -> bool>) -> bool {
        let is_free =
            |other: usize| other != thread && !self.permits[other] && !(scene.is_held_up)(other);
        (0..self.permits.len()).any(is_free)
    }

    fn has_waited(&self, now: Instant) -> bool {
        self.tickets.front().is_some_and(|first| now.duration_since(first.since) >= PATIENCE)
    }

    /// Whether the first job has waited so long that even the last thread may call its handler.
    fn may_make_exception(&self, scene: &Scene<impl Fn(usize) -> bool>) -> bool {
        scene.is_one_left
            && self.exception.is_none()
            && self.has_waited(scene.now)
            && self.next_exception.is_none_or(|next| scene.now >= next)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Permits and tickets.

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
        let admit =
            |thread, number| calls.admit(thread, place(number), || scene(|_| false, true, now));
        assert!(admit(0, 0));
        assert!(!admit(1, 1));
        assert!(!admit(1, 2));
        assert_eq!(calls.end(0, now), Some(place(1)));
        // The thread has more items of the first type, and is quicker than the owner of the second.
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

    /// All other threads are lost: without quick work, slow calls do not wait for exceptions.
    #[test]
    fn a_spare_thread_makes_slow_calls_in_place_of_lost_threads() {
        let (calls, now) = (SlowCalls::new(SPARES + 1), Instant::now());
        let others = |thread: usize| thread < SPARES;
        let admit =
            |is_protected| calls.admit(SPARES, place(0), || scene(others, is_protected, now));
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
}
