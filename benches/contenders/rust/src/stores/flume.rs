//! A bounded flume channel, emptied by `drain` under one lock.

use flume::{Receiver, Sender, bounded};

use crate::drain::Store;
use crate::tally::Metric;

pub struct Flume {
    sender: Sender<Metric>,
    receiver: Receiver<Metric>,
}

impl Store for Flume {
    fn bounded(capacity: usize) -> Self {
        let (sender, receiver) = bounded(capacity);
        Self { sender, receiver }
    }

    fn try_put(&self, metric: Metric) -> Result<(), Metric> {
        self.sender.try_send(metric).map_err(flume::TrySendError::into_inner)
    }

    fn put(&self, metric: Metric) {
        self.sender.send(metric).expect("an open channel");
    }

    fn take(&self, batch: &mut Vec<Metric>) {
        batch.extend(self.receiver.drain());
    }
}
