//! Slow calls: handlers that take long do not fill every drain thread while others are quick.
//!
//! A handler instance whose last call took over [`SLOW_CALL`] is *slow*. A thread calls it only
//! with a permit, and the last thread that is not held up gets none while quick calls have ended
//! within [`QUICK_WORK`]. A job that gets none stays in its lane, with a ticket here: first come,
//! first served, so that no slow type keeps another out.
//!
//! If all other threads are lost in calls that do not end, a job that has waited for [`PATIENCE`]
//! gets a spare thread, or else is called on the last thread once in a while: no slow type is out
//! for ever, and one that was slow only once is quick again after that call.
//!
//! A lane that is posted here has a ticket: both change under the lock of the lanes.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `state` | threads that submit or end a slow call, supervisor, under its lock | the same |
//! | `waiting` | the same, under that lock | threads that end a call |

use std::collections::VecDeque;

use crate::flow::desk::JobPlace;
use crate::sync::{AtomicUsize, Duration, Instant, Mutex, Ordering};

/// A handler whose last call took longer is slow.
pub(crate) const SLOW_CALL: Duration = Duration::from_millis(100);

/// A queue without a quick call for this long has no quick work to protect.
pub(super) const QUICK_WORK: Duration = Duration::from_secs(10);

/// After this time a job may be called on the last thread; and after such a call that thread serves
/// quick work for as long.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State {
    /// The threads that may call slow handlers at the moment.
    permits: Vec<bool>,
    tickets: VecDeque<Ticket>,
    /// The thread that got its permit although it was the last.
    exception: Option<usize>,
    /// When there may be the next exception.
    next_exception: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Ticket {
    place: JobPlace,
    since: Instant,
}

/// What a decision depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene<F> {
    /// Whether a thread cannot serve quick work at the moment.
    pub(super) is_held_up: F,
    /// Whether there is quick work.
    pub(super) is_protected: bool,
    /// Whether all threads but one are lost in calls that do not end.
    pub(super) is_one_left: bool,
    /// The first spare thread.
    pub(super) spares: usize,
    pub(super) now: Instant,
}

#[derive(Debug)]
pub(crate) struct SlowCalls {
    state: Mutex<State>,
    /// How many tickets there are.
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

    /// Where jobs with a ticket are posted: no desk has this address.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether jobs wait here.
    pub(crate) fn has_tickets(&self) -> bool {
        // Relaxed: a hint. The supervisor finds what this misses.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Gives the thread a permit, or the job a ticket. Under the lock of its lanes.
    pub(super) fn admit<H: Fn(usize) -> bool>(
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

    /// The thread has left its slow handler. Returns the job that waits longest: it is to be
    /// submitted again.
    pub(super) fn end(&self, thread: usize, now: Instant) -> Option<JobPlace> {
        let mut state = self.state.lock();
        state.permits[thread] = false;
        if state.exception == Some(thread) {
            state.exception = None;
            state.next_exception = Some(now + PATIENCE);
        }
        state.tickets.front().map(|ticket| ticket.place)
    }

    /// Whether the job that waits longest has waited for long.
    pub(super) fn has_waited(&self, now: Instant) -> bool {
        self.has_tickets() && self.state.lock().has_waited(now)
    }

    /// The job that waits longest, if a thread could call its handler.
    pub(super) fn next(&self, scene: &Scene<impl Fn(usize) -> bool>) -> Option<JobPlace> {
        let state = self.state.lock();
        let first = state.tickets.front()?.place;
        let could = |thread: usize| {
            !state.permits[thread]
                && !(scene.is_held_up)(thread)
                && (state.may_call(thread, scene) || state.may_make_exception(scene))
        };
        (0..state.permits.len()).any(could).then_some(first)
    }

    /// Drops the first ticket, whose job is not here any more. Under the lock of its lanes. Returns
    /// the job behind it.
    pub(super) fn drop_first(&self, place: JobPlace) -> Option<JobPlace> {
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
    /// Whether a thread may call a slow handler: another one is left for quick work, or there is
    /// none. A spare thread does the latter only in place of threads that are lost.
    fn may_call(&self, thread: usize, scene: &Scene<impl Fn(usize) -> bool>) -> bool {
        let may_fill = thread < scene.spares || scene.is_one_left;
        self.leaves_one_free(thread, scene) || (!scene.is_protected && may_fill)
    }

    /// Whether a thread is left for quick work if this one calls a slow handler.
    fn leaves_one_free(&self, thread: usize, scene: &Scene<impl Fn(usize) -> bool>) -> bool {
        let is_free =
            |other: usize| other != thread && !self.permits[other] && !(scene.is_held_up)(other);
        (0..self.permits.len()).any(is_free)
    }

    fn has_waited(&self, now: Instant) -> bool {
        self.tickets.front().is_some_and(|first| now.duration_since(first.since) >= PATIENCE)
    }

    /// Whether the first job has waited so long that even the last thread calls its handler.
    fn may_make_exception(&self, scene: &Scene<impl Fn(usize) -> bool>) -> bool {
        scene.is_one_left
            && self.exception.is_none()
            && self.has_waited(scene.now)
            && self.next_exception.is_none_or(|next| scene.now >= next)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
