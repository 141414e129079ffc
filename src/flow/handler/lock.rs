//! Handler locks: the right to enter a handler instance, and the queue of jobs that wait for it.
//!
//! Threads wait at a handler lock only for the last call of a handler (`on_close`). A job whose
//! handler lock is held leaves a ticket there and stays in its lane; the thread that holds the
//! handler lock serves the job after its own call. A ticket is only a hint: the job may since have
//! gone elsewhere.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `is_slow` | the thread inside, after a call | threads that submit |
//! | all of `LockState` | threads that submit, release or check, under the mutex | the same |

use std::collections::VecDeque;

use crate::sync::{
    Arc, AtomicBool, Condvar, Deadline, Duration, Mutex, Ordering, QuickMutex, Weak, wait_for,
};

/// How long a handler lock that one queue released stays reserved for another.
const RESERVED_FOR: Duration = Duration::from_millis(10);

/// The lane of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct JobPlace {
    pub(crate) partition: usize,
    pub(crate) lane: usize,
}

/// A queue that has tickets, or watches, at handler locks.
pub(crate) trait Recall: Send + Sync {
    /// Submits a job again that was posted at the handler lock with this address. With `None`, the
    /// threads of the queue check again what they wait for.
    fn recall(self: Arc<Self>, posted: Option<(JobPlace, usize)>);
}

/// The purpose of a call that enters a handler lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A batch of the registered handlers with this address.
    Batch(usize),
    /// `on_idle` or `on_close`.
    SideCall,
    /// Between two calls.
    Between,
}

/// The right to enter a handler instance. Only the thread that holds it is inside.
#[derive(Debug)]
pub struct HandlerLock {
    state: QuickMutex<LockState>,
    /// Whether the last call of the instance took long.
    is_slow: AtomicBool,
}

impl Default for HandlerLock {
    fn default() -> Self {
        Self { state: QuickMutex::new(LockState::default()), is_slow: AtomicBool::new(false) }
    }
}

#[derive(Default)]
struct LockState {
    /// The purpose of the thread that holds the handler lock.
    held: Option<Purpose>,
    tickets: VecDeque<Ticket>,
    /// The queue whose job is next, and the end of the reservation.
    reserved: Option<(usize, Deadline)>,
    /// Queues to notify of the next release.
    watchers: Vec<Weak<dyn Recall>>,
}

impl std::fmt::Debug for LockState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockState")
            .field("held", &self.held)
            .field("tickets", &self.tickets.len())
            .finish_non_exhaustive()
    }
}

enum Ticket {
    Job { queue: Weak<dyn Recall>, place: JobPlace },
    Thread(Arc<Admission>),
}

/// Notifies a waiting thread that it now holds the handler lock.
#[derive(Default)]
struct Admission {
    is_in: Mutex<bool>,
    changed: Condvar,
}

/// The outcome of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// The caller holds the handler lock.
    Entered,
    /// The job has a ticket, because another thread holds the handler lock, or another queue has it
    /// reserved until the deadline.
    Posted(Option<Deadline>),
}

/// The next step of a thread after a call.
pub(crate) enum Next {
    /// The handler lock is free, or held by another thread.
    Nothing,
    /// The thread still holds the handler lock, for this job of its queue.
    Serve(JobPlace),
    /// The handler lock is free: these jobs are submitted again.
    Recall(Vec<(Weak<dyn Recall>, JobPlace)>),
}

impl LockState {
    fn is_reserved_for_other(&self, queue: usize) -> bool {
        self.reserved.is_some_and(|(owner, until)| owner != queue && until.time_left().is_some())
    }

    /// Passes the handler lock on, or frees it with no tickets left.
    fn next(&mut self, queue: usize, may_serve: bool) -> Next {
        if let Some(Ticket::Job { queue: owner, place }) = self.tickets.front()
            && may_serve
            && address(owner) == queue
        {
            let place = *place;
            self.tickets.pop_front();
            self.held = Some(Purpose::Between);
            return Next::Serve(place);
        }
        let waits = |ticket: &Ticket| matches!(ticket, Ticket::Thread(_));
        let waiting = self.tickets.iter().position(waits).and_then(|at| self.tickets.remove(at));
        if let Some(Ticket::Thread(admission)) = waiting {
            self.held = Some(Purpose::SideCall);
            *admission.is_in.lock() = true;
            admission.changed.notify_all();
            return Next::Nothing;
        }
        self.held = None;
        if self.tickets.is_empty() {
            return Next::Nothing;
        }
        let jobs = self.tickets.drain(..).filter_map(|ticket| match ticket {
            Ticket::Job { queue, place } => Some((queue, place)),
            Ticket::Thread(_) => None,
        });
        let jobs: Vec<_> = jobs.collect();
        let other = jobs.iter().map(|(owner, _)| address(owner)).find(|&owner| owner != queue);
        self.reserved = other.map(|owner| (owner, Deadline::after(RESERVED_FOR)));
        Next::Recall(jobs)
    }
}

/// Returns the address of a queue, which identifies it.
pub(crate) fn address(queue: &Weak<dyn Recall>) -> usize {
    queue.as_ptr().cast::<()>() as usize
}

impl HandlerLock {
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether the last call of the instance took long.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        // Relaxed: a hint, ordered by nothing.
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Notes after a call whether it took long.
    #[inline]
    pub(crate) fn note_slow(&self, is_slow: bool) {
        if self.is_slow() != is_slow {
            // Relaxed: as in `is_slow`.
            self.is_slow.store(is_slow, Ordering::Relaxed);
        }
    }

    /// Enters for a job, or leaves a ticket.
    #[inline]
    pub(crate) fn submit(
        &self,
        purpose: Purpose,
        place: JobPlace,
        queue: impl FnOnce() -> Weak<dyn Recall>,
        queue_address: usize,
    ) -> Submitted {
        let mut state = self.state.lock();
        if state.held.is_some() {
            state.tickets.push_back(Ticket::Job { queue: queue(), place });
            return Submitted::Posted(None);
        }
        if let Some((reserved_for, until)) = state.reserved {
            if reserved_for != queue_address && until.time_left().is_some() {
                state.tickets.push_back(Ticket::Job { queue: queue(), place });
                return Submitted::Posted(Some(until));
            }
            state.reserved = None;
        }
        state.held = Some(purpose);
        Submitted::Entered
    }

    /// Continues with another call under the handler lock, which the thread holds.
    pub(crate) fn continue_with(&self, purpose: Purpose) {
        self.state.lock().held = Some(purpose);
    }

    /// Enters for a side call of a queue, unless a thread holds the handler lock or it is reserved
    /// for another queue.
    pub(crate) fn try_enter(&self, queue: usize) -> bool {
        let mut state = self.state.lock();
        let is_reserved = state.is_reserved_for_other(queue);
        if state.held.is_none() && !is_reserved {
            state.reserved = None;
            state.held = Some(Purpose::SideCall);
            return true;
        }
        false
    }

    /// Enters for a side call. Waits for the thread inside.
    pub(crate) fn enter(&self) {
        let admission = {
            let mut state = self.state.lock();
            if state.held.is_none() {
                state.reserved = None;
                state.held = Some(Purpose::SideCall);
                return;
            }
            let admission = Arc::new(Admission::default());
            state.tickets.push_back(Ticket::Thread(admission.clone()));
            admission
        };
        let mut is_in = admission.is_in.lock();
        while !*is_in {
            is_in = wait_for(&admission.changed, is_in, None);
        }
    }

    /// Releases the handler lock after a call. `queue` is the address of the caller's queue, whose
    /// jobs the caller may serve.
    #[inline]
    pub(crate) fn release(&self, queue: usize, may_serve: bool) -> Next {
        let mut state = self.state.lock();
        let watchers = std::mem::take(&mut state.watchers);
        let next = state.next(queue, may_serve && watchers.is_empty());
        if let (None, Some(watcher)) = (state.held, watchers.first()) {
            // The watching queue waits for a free handler lock.
            state.reserved = Some((address(watcher), Deadline::after(RESERVED_FOR)));
        }
        drop(state);
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            watcher.recall(None);
        }
        next
    }

    /// Whether a thread is inside at this moment.
    pub(crate) fn is_held(&self) -> bool {
        self.state.lock().held.is_some()
    }

    /// Whether no thread is inside. Otherwise the queue of `watcher` is notified of the next
    /// release.
    pub(crate) fn is_free(&self, watcher: &Weak<dyn Recall>) -> bool {
        self.is_idle(Purpose::SideCall, true, false, watcher)
    }

    /// Whether no thread is inside for `purpose` or a side call, or for anything if the handler
    /// `closes`, and no call is `outstanding`. Otherwise the queue of `watcher` is notified of the
    /// next release.
    pub(crate) fn is_idle(
        &self,
        purpose: Purpose,
        closes: bool,
        outstanding: bool,
        watcher: &Weak<dyn Recall>,
    ) -> bool {
        let mut state = self.state.lock();
        let is_idle = !outstanding
            && match state.held {
                None => true,
                Some(held) => !closes && held != purpose && held != Purpose::SideCall,
            };
        if !is_idle && !state.watchers.iter().any(|known| address(known) == address(watcher)) {
            state.watchers.push(watcher.clone());
        }
        is_idle
    }
}
