//! Dead letters: items that failed for good, on their way to the handler that keeps them.
//!
//! A handler of dead letters is called like any other: under its lock, by one thread at a time.
//! Until then the letters are in its box, which holds as many items as a partition. The thread
//! whose call failed puts them there, and serves the box when it has nothing in flight, unless
//! another thread does so earlier. The lane that they came from is not held up unless the box is
//! full.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `BoxState`, under its lock | threads that call; threads that serve the box | the same |
//! | `list` | the same, under the lock of a box | threads that serve |
//! | `waiting` | the same | drain threads |
//! | `waits` | jobs in lanes | retirements |

use std::fmt;

use rustc_hash::FxHashSet;

use crate::flow::batch::DeadLetters;
use crate::flow::handler::HandlerRef;
use crate::flow::handler::lock::JobPlace;
use crate::observe::CallTime;
use crate::sync::{Arc, AtomicUsize, Duration, Mutex, Ordering, QuickMutex};

/// The expected duration of the first call.
const FIRST_CALL: Duration = Duration::from_millis(100);

/// The dead letters that wait for one handler.
pub(crate) struct DeadLetterBox<T> {
    pub(crate) handler: HandlerRef<T>,
    pub(crate) name: Arc<str>,
    most_items: usize,
    /// Each job that waits for room has a clone.
    waits: Arc<()>,
    state: QuickMutex<BoxState<T>>,
}

impl<T> fmt::Debug for DeadLetterBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeadLetterBox").field(&self.name).finish()
    }
}

struct BoxState<T> {
    letters: Vec<DeadLetters<T>>,
    /// The number of items, by weight.
    items: usize,
    /// Whether the box is in the list of those with letters.
    is_listed: bool,
    /// Lanes whose letters found no room.
    refused: FxHashSet<JobPlace>,
    /// All items posted so far, and those of them that are settled, by weight.
    posted: u64,
    settled: u64,
    calls: CallTime,
}

impl<T> DeadLetterBox<T> {
    pub(crate) fn new(handler: HandlerRef<T>, most_items: usize) -> Arc<Self> {
        let state = BoxState {
            letters: Vec::new(),
            items: 0,
            is_listed: false,
            refused: FxHashSet::default(),
            posted: 0,
            settled: 0,
            calls: CallTime::default(),
        };
        let name = handler.handler.name().into();
        let waits = Arc::default();
        Arc::new(Self { handler, name, most_items, waits, state: QuickMutex::new(state) })
    }

    /// Returns the address that takes the place of a handler lock's in posted lanes.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Takes out letters with up to `most` items, or one letter with more. Also returns the lanes
    /// that may try again.
    pub(crate) fn take(&self, most: usize) -> (Vec<DeadLetters<T>>, FxHashSet<JobPlace>) {
        let mut state = self.state.lock();
        let mut items = 0;
        let fits = |letters: &&DeadLetters<T>| {
            items += letters.items.len();
            items <= most
        };
        let count = state.letters.iter().take_while(fits).count().max(1);
        let count = count.min(state.letters.len());
        let letters: Vec<_> = state.letters.drain(..count).collect();
        state.items -= letters.iter().map(|letters| letters.items.len()).sum::<usize>();
        (letters, std::mem::take(&mut state.refused))
    }

    /// Returns a mark for a job that waits for room, held until it no longer does.
    pub(crate) fn wait_mark(&self) -> Arc<()> {
        self.waits.clone()
    }

    /// Whether there are no letters, and no job waits for room.
    pub(crate) fn is_empty(&self) -> bool {
        Arc::strong_count(&self.waits) == 1 && self.state.lock().letters.is_empty()
    }

    /// Returns the items posted so far.
    pub(crate) fn posted(&self) -> u64 {
        self.state.lock().posted
    }

    /// Returns the items settled so far, in the order in which they were posted.
    pub(crate) fn settled(&self) -> u64 {
        self.state.lock().settled
    }

    /// Counts the items settled by a call, and its duration.
    pub(crate) fn settle(&self, items: usize, took: Duration) {
        let mut state = self.state.lock();
        state.settled += items as u64;
        state.calls.add(took);
    }

    /// Returns the expected duration of the next call.
    pub(crate) fn expected(&self) -> Duration {
        let calls = self.state.lock().calls;
        if calls.total.is_zero() { FIRST_CALL } else { calls.expected() }
    }
}

/// The boxes of a queue that have letters.
pub(crate) struct DeadLetterBoxes<T> {
    list: Mutex<Vec<Arc<DeadLetterBox<T>>>>,
    /// The length of `list`.
    waiting: AtomicUsize,
    /// The box for types that do not have their own handler of dead letters.
    pub(crate) of_queue: Option<Arc<DeadLetterBox<T>>>,
}

impl<T> DeadLetterBoxes<T> {
    pub(crate) fn new(of_queue: Option<Arc<DeadLetterBox<T>>>) -> Self {
        Self { of_queue, list: Mutex::new(Vec::new()), waiting: AtomicUsize::new(0) }
    }

    /// Puts letters from a lane into a box. Returns them if the box has no room; the lane is
    /// recalled when it may have.
    pub(crate) fn post(
        &self,
        to: &Arc<DeadLetterBox<T>>,
        letters: DeadLetters<T>,
        from: JobPlace,
    ) -> Result<(), DeadLetters<T>> {
        let mut state = to.state.lock();
        let items = letters.items.len();
        if state.items > 0 && state.items + items > to.most_items {
            state.refused.insert(from);
            return Err(letters);
        }
        state.items += items;
        state.letters.push(letters);
        state.posted += items as u64;
        if !std::mem::replace(&mut state.is_listed, true) {
            self.change(|list| list.push(to.clone()));
        }
        Ok(())
    }

    /// Removes a box from the list if it is empty. Returns `false` if it has letters.
    pub(crate) fn unlist(&self, empty: &Arc<DeadLetterBox<T>>) -> bool {
        let mut state = empty.state.lock();
        if !state.letters.is_empty() {
            return false;
        }
        if std::mem::take(&mut state.is_listed) {
            self.change(|list| list.retain(|other| !Arc::ptr_eq(other, empty)));
        }
        true
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<DeadLetterBox<T>>>)) {
        let mut list = self.list.lock();
        change(&mut list);
        // Relaxed: ordered by the caller's fence.
        self.waiting.store(list.len(), Ordering::Relaxed);
    }

    /// Whether a box has letters. The caller has fenced.
    #[inline]
    pub(crate) fn are_waiting(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of items that wait in boxes, by weight.
    pub(crate) fn waiting_items(&self) -> u64 {
        self.with_letters().iter().map(|letter_box| letter_box.state.lock().items as u64).sum()
    }

    pub(crate) fn with_letters(&self) -> Vec<Arc<DeadLetterBox<T>>> {
        self.list.lock().clone()
    }
}
