//! The handler instances with `on_idle`, in order of registration.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `list` | registration, removal, under the control lock | drain threads after an empty cycle |
//! | `count` | the same, under the lock of the list | the same |

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::flow::handler::HandlerRef;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// A handler instance with `on_idle`.
pub(crate) struct IdleHandler<T> {
    pub(crate) handler: HandlerRef<T>,
    /// The owner of this partition calls it.
    pub(crate) home: usize,
}

impl<T> Clone for IdleHandler<T> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), home: self.home }
    }
}

/// By number, and the numbers by the address of the instance.
struct List<T> {
    handlers: BTreeMap<u64, IdleHandler<T>>,
    numbers: FxHashMap<usize, u64>,
    added: u64,
}

pub(super) struct IdleHandlers<T> {
    list: Mutex<List<T>>,
    count: AtomicUsize,
}

impl<T> IdleHandlers<T> {
    pub(super) fn new() -> Self {
        let list = List { handlers: BTreeMap::new(), numbers: FxHashMap::default(), added: 0 };
        Self { list: Mutex::new(list), count: AtomicUsize::new(0) }
    }

    /// Adds an instance, unless it is listed.
    pub(super) fn add(&self, handler: &HandlerRef<T>, home: usize) {
        let mut list = self.list.lock();
        let number = list.added;
        let List { handlers, numbers, added } = &mut *list;
        numbers.entry(handler.address()).or_insert_with(|| {
            *added += 1;
            handlers.insert(number, IdleHandler { handler: handler.clone(), home });
            number
        });
        self.note_count(&list);
    }

    pub(super) fn remove(&self, handler: &HandlerRef<T>) {
        let mut list = self.list.lock();
        let number = list.numbers.remove(&handler.address());
        let removed = number.and_then(|number| list.handlers.remove(&number));
        self.note_count(&list);
        drop(list);
        // Outside the lock: it may be the last reference to the user's handler.
        drop(removed);
    }

    pub(super) fn includes(&self, handler: &HandlerRef<T>) -> bool {
        self.list.lock().numbers.contains_key(&handler.address())
    }

    pub(super) fn any(&self) -> bool {
        // Relaxed: a thread that misses the first one calls it after its next empty cycle.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Those whose home `is_mine`.
    pub(super) fn of(&self, is_mine: impl Fn(usize) -> bool) -> Vec<IdleHandler<T>> {
        if !self.any() {
            return Vec::new();
        }
        let list = self.list.lock();
        list.handlers.values().filter(|idle| is_mine(idle.home)).cloned().collect()
    }

    fn note_count(&self, list: &List<T>) {
        // Relaxed: as in `of`.
        self.count.store(list.handlers.len(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::flow::handler::Batch;

    #[test]
    fn an_instance_is_listed_once_in_order_of_registration() {
        let idle = IdleHandlers::new();
        let handlers = [(); 3].map(|()| HandlerRef::new(|_: &mut Batch<u64>| {}));
        let homes = || idle.of(|_| true).iter().map(|idle| idle.home).collect::<Vec<_>>();
        for (home, handler) in handlers.iter().enumerate() {
            idle.add(handler, home);
            idle.add(handler, 7);
        }
        assert_eq!(homes(), [0, 1, 2]);
        idle.remove(&handlers[0]);
        assert!(!idle.includes(&handlers[0]) && idle.includes(&handlers[1]));
        idle.add(&handlers[0], 3);
        assert_eq!(homes(), [1, 2, 3]);
        assert_eq!(idle.of(|home| home == 2).len(), 1);
    }
}
