//! The desks of handler instances, which keep P1 across types and queues.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::Desk;

/// The desks of all handler instances of the process, by address. A holder of a desk also
/// holds the object, so an address never stands for another object.
static DESKS: Mutex<Option<HashMap<usize, Weak<Desk>>>> = Mutex::new(None);

/// The desk of `instance`, which P1 protects: the same desk for every queue and type that the
/// instance serves.
pub(crate) fn desk_of(instance: &Bound<'_, PyAny>) -> Arc<Desk> {
    let mut desks = DESKS.lock();
    let desks = desks.get_or_insert_with(HashMap::new);
    let address = instance.as_ptr() as usize;
    if let Some(desk) = desks.get(&address).and_then(Weak::upgrade) {
        return desk;
    }
    desks.retain(|_, desk| desk.strong_count() > 0);
    let desk = Arc::new(Desk::default());
    desks.insert(address, Arc::downgrade(&desk));
    desk
}

/// In a forked child: threads that do not exist here may hold the desks.
pub(crate) fn forget_desks() {
    std::mem::forget(DESKS.lock().take());
}
