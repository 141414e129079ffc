//! `batchqueue` through its public API. No other file here refers to it.

use std::sync::Arc;
use std::time::Duration;

use batchqueue::{
    Batch, BatchQueue, Config, HandlerRef, Item, PartitionPolicy, ThreadPolicy, TypeKey,
};

use crate::measure::Contender;
use crate::tally::{Metric, Tally};
use crate::workload::Workload;

impl Item for Metric {
    fn type_key(&self) -> TypeKey {
        TypeKey(self.kind)
    }
}

pub struct Ours(BatchQueue<Metric>);

impl Contender for Ours {
    fn start(workload: &Workload, tally: &Arc<Tally>) -> Self {
        let config = Config {
            threads: ThreadPolicy::fixed(workload.drain_threads).expect("a valid count"),
            partitions: PartitionPolicy::adaptive(25).expect("a valid multiplier"),
            buffer_size: workload.buffer_size,
            min_idle: Duration::from_millis(1),
            max_idle: Duration::from_millis(50),
            ..Config::default()
        };
        let queue = BatchQueue::builder(workload.name, config).start().expect("a valid config");
        for kind in 0..workload.types() {
            let tally = tally.clone();
            let no_op =
                move |batch: &mut Batch<Metric>| tally.consume(kind, batch.len(), batch.iter());
            queue.add_handler(TypeKey(kind), HandlerRef::new(no_op)).expect("a new type");
        }
        assert_eq!(
            queue.partition_count(),
            workload.partitions(),
            "every contender has the same shape"
        );
        Self(queue)
    }

    fn produce(&self, metric: Metric) {
        self.0.produce(metric).expect("a running queue");
    }

    fn stop(&mut self) {
        assert_eq!(self.0.shutdown(None), 0, "nothing is abandoned");
    }
}
