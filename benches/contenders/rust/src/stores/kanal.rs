//! A bounded kanal channel, emptied by `drain_into` under one lock, including the items of waiting
//! producers.

use kanal::{Receiver, Sender, bounded};

use crate::drain::Store;
use crate::tally::Metric;

pub struct Kanal {
    sender: Sender<Metric>,
    receiver: Receiver<Metric>,
}

impl Store for Kanal {
    fn bounded(capacity: usize) -> Self {
        let (sender, receiver) = bounded(capacity);
        Self { sender, receiver }
    }

    fn try_put(&self, metric: Metric) -> Result<(), Metric> {
        if self.sender.try_send(metric).expect("an open channel") { Ok(()) } else { Err(metric) }
    }

    fn put(&self, metric: Metric) {
        self.sender.send(metric).expect("an open channel");
    }

    fn take(&self, batch: &mut Vec<Metric>) {
        self.receiver.drain_into(batch).expect("an open channel");
    }
}
