//! Drops items, of which some may panic: the drop of an item is the user's code.
//!
//! A panic that unwinds through a segment drops its other items meanwhile, and a second panic among
//! them aborts the process. So the panic of each item is caught here, and the rest is dropped after
//! it. Items without drop glue cost nothing.

use std::any::Any;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::flow::handler::Batch;
use crate::sync::panicking;

/// What a panic carries.
pub(crate) type PanicCause = Box<dyn Any + Send>;

/// The items that panicked when they were dropped.
#[derive(Debug, Default)]
pub(crate) struct DropPanics {
    items: u64,
    first: Option<PanicCause>,
}

impl DropPanics {
    pub(crate) fn drop_all<T>(&mut self, mut items: impl Iterator<Item = T>) {
        if !needs_drop::<T>() {
            return items.for_each(drop);
        }
        while let Err(cause) = catch_unwind(AssertUnwindSafe(|| items.by_ref().for_each(drop))) {
            self.items += 1;
            self.first.get_or_insert(cause);
        }
    }

    /// Empties a segment, which keeps its capacity.
    #[inline]
    pub(crate) fn clear<T>(&mut self, segment: &mut Vec<T>) {
        if needs_drop::<T>() {
            self.drop_all(segment.drain(..));
        } else {
            segment.clear();
        }
    }

    pub(crate) fn drop_batch<T>(&mut self, batch: Batch<T>) {
        for mut segment in batch.into_segments() {
            self.clear(&mut segment);
        }
    }

    /// How many items panicked, and the message of the first; `None` if no item did.
    pub(crate) fn report(self) -> Option<(u64, String)> {
        self.first.map(|cause| (self.items, message(&cause)))
    }

    /// Panics as the first item did, unless the thread unwinds already.
    pub(crate) fn resume(self) {
        if let Some(cause) = self.first
            && !panicking()
        {
            resume_unwind(cause);
        }
    }
}

/// The message of a panic.
pub(crate) fn message(cause: &PanicCause) -> String {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| cause.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Counts its drops. Some panic then, without the panic hook's message.
    struct Fragile(Rc<Cell<usize>>, bool);

    impl Drop for Fragile {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            if self.1 {
                resume_unwind(Box::new("fragile"));
            }
        }
    }

    fn fragile(dropped: &Rc<Cell<usize>>) -> Vec<Fragile> {
        (0..10).map(|number| Fragile(dropped.clone(), number % 3 == 0)).collect()
    }

    #[test]
    fn each_item_is_dropped_once_whatever_others_do() {
        let (dropped, mut panics) = (Rc::default(), DropPanics::default());
        let mut segment = fragile(&dropped);
        let capacity = segment.capacity();
        panics.clear(&mut segment);
        assert_eq!((segment.len(), segment.capacity(), dropped.get()), (0, capacity, 10));
        let mut batch = Batch::default();
        batch.push_segment(fragile(&dropped), 10);
        batch.push_segment(fragile(&dropped), 10);
        panics.drop_batch(batch);
        assert_eq!(dropped.get(), 30);
        assert_eq!(panics.report(), Some((12, "fragile".to_owned())));
    }

    #[test]
    fn a_drain_of_a_batch_drops_every_item_before_it_panics() {
        let dropped = Rc::default();
        let mut batch = Batch::default();
        batch.push_segment(fragile(&dropped), 10);
        batch.push_segment(fragile(&dropped), 10);
        let drops = AssertUnwindSafe(|| drop(batch.drain()));
        assert_eq!(message(&catch_unwind(drops).unwrap_err()), "fragile");
        assert_eq!(dropped.get(), 20);
    }

    #[test]
    fn nothing_is_reported_where_no_item_panics() {
        let mut panics = DropPanics::default();
        panics.drop_all(["item".to_owned()].into_iter());
        panics.clear(&mut vec![1, 2]);
        assert_eq!(panics.report(), None);
    }
}
