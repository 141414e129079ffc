//! A bounded crossbeam channel, one item per slot.

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::drain::Store;
use crate::tally::Metric;

pub struct Crossbeam {
    sender: Sender<Metric>,
    receiver: Receiver<Metric>,
    capacity: usize,
}

impl Store for Crossbeam {
    fn bounded(capacity: usize) -> Self {
        let (sender, receiver) = bounded(capacity);
        Self { sender, receiver, capacity }
    }

    fn try_put(&self, metric: Metric) -> Result<(), Metric> {
        self.sender.try_send(metric).map_err(crossbeam_channel::TrySendError::into_inner)
    }

    fn put(&self, metric: Metric) {
        self.sender.send(metric).expect("an open channel");
    }

    fn take(&self, batch: &mut Vec<Metric>) {
        // Producers continue meanwhile: without the limit, one partition could occupy the thread
        // for ever.
        batch.extend(self.receiver.try_iter().take(self.capacity));
    }
}
