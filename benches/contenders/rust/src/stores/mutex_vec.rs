//! A vector behind a lock, swapped out as a whole. The other vector keeps its capacity, so a
//! partition costs two buffers.

use parking_lot::{Condvar, Mutex};

use crate::drain::Store;
use crate::tally::Metric;

pub struct MutexVec {
    items: Mutex<Vec<Metric>>,
    not_full: Condvar,
    capacity: usize,
}

impl Store for MutexVec {
    fn bounded(capacity: usize) -> Self {
        Self { items: Mutex::new(Vec::new()), not_full: Condvar::new(), capacity }
    }

    fn try_put(&self, metric: Metric) -> Result<(), Metric> {
        let mut items = self.items.lock();
        if items.len() >= self.capacity {
            return Err(metric);
        }
        items.push(metric);
        Ok(())
    }

    fn put(&self, metric: Metric) {
        let mut items = self.items.lock();
        while items.len() >= self.capacity {
            self.not_full.wait(&mut items);
        }
        items.push(metric);
    }

    fn take(&self, batch: &mut Vec<Metric>) {
        std::mem::swap(&mut *self.items.lock(), batch);
        if !batch.is_empty() {
            self.not_full.notify_all();
        }
    }
}
