//! The desks of handler instances, which keep P1 across types and queues.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::Desk;

/// A sweep for desks without a holder is not worth it before there are more.
const FEW: usize = 64;

/// The desks of all handler instances of the process, by address. A holder of a desk also
/// holds the object, so an address never stands for another object.
static DESKS: Mutex<Option<Desks>> = Mutex::new(None);

#[derive(Default)]
struct Desks {
    by_address: HashMap<usize, Weak<Desk>>,
    /// How many there are when the next sweep is due: twice as many as the last one left.
    sweep_at: usize,
}

impl Desks {
    fn of(&mut self, address: usize) -> Arc<Desk> {
        if let Some(desk) = self.by_address.get(&address).and_then(Weak::upgrade) {
            return desk;
        }
        if self.by_address.len() >= self.sweep_at.max(FEW) {
            self.by_address.retain(|_, desk| desk.strong_count() > 0);
            self.by_address.shrink_to(2 * self.by_address.len());
            self.sweep_at = 2 * self.by_address.len();
        }
        let desk = Arc::new(Desk::default());
        self.by_address.insert(address, Arc::downgrade(&desk));
        desk
    }
}

/// The desk of `instance`, which P1 protects: the same desk for every queue and type that the
/// instance serves.
pub(crate) fn desk_of(instance: &Bound<'_, PyAny>) -> Arc<Desk> {
    DESKS.lock().get_or_insert_default().of(instance.as_ptr() as usize)
}

/// In a forked child: threads that do not exist here may hold the desks.
pub(crate) fn forget_desks() {
    std::mem::forget(DESKS.lock().take());
}
