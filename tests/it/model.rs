//! Random actions against the real queue and a model of it; the model is a list per type and producer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use batchqueue::{BatchQueue, BufferStrategy, Config, PartitionPolicy, Wait};
use proptest::prelude::*;

use crate::support::{Collector, PATIENCE, Sent, assert_conserved, config, key, sent, start};

#[derive(Debug, Clone)]
enum Action {
    AddHandler(usize),
    Produce { kind: usize, count: usize },
    ProduceMany { kind: usize, count: usize },
    Flush,
    Yield,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        1 => (0..12_usize).prop_map(Action::AddHandler),
        6 => (0..12_usize, 1..40_usize).prop_map(|(kind, count)| Action::Produce { kind, count }),
        4 => (0..12_usize, 1..400_usize).prop_map(|(kind, count)| Action::ProduceMany { kind, count }),
        1 => Just(Action::Flush),
        1 => Just(Action::Yield),
    ]
}

fn settings() -> impl Strategy<Value = Config> {
    let partitions = prop_oneof![
        (1..6_usize).prop_map(PartitionPolicy::Fixed),
        (1..4_usize).prop_map(|multiplier| PartitionPolicy::Adaptive { multiplier }),
    ];
    (1..4_usize, partitions, 1..300_usize, 1..300_usize, any::<bool>(), 0..3_u64).prop_map(
        |(threads, partitions, buffer_size, max_batch_items, blocking, min_idle)| Config {
            partitions,
            buffer_size,
            max_batch_items,
            strategy: if blocking { BufferStrategy::Blocking } else { BufferStrategy::IfPossible },
            min_idle: Duration::from_millis(min_idle),
            ..config(threads)
        },
    )
}

/// What one producer did: its accepted items in order, by type.
#[derive(Default)]
struct Model {
    accepted: BTreeMap<(usize, usize), Vec<usize>>,
    registered: Vec<usize>,
    next: usize,
}

impl Model {
    fn apply(&mut self, queue: &BatchQueue<Sent>, collector: &Collector, producer: usize, action: &Action) {
        match *action {
            // The kinds of a producer are its own: kind × 2 + producer.
            Action::AddHandler(kind) => {
                let kind = kind * 2 + producer;
                if queue.add_handler(key(kind), collector.handler()).is_ok() {
                    self.registered.push(kind);
                }
            }
            Action::Produce { kind, count } => {
                for _ in 0..count {
                    let item = self.next(kind * 2 + producer, producer);
                    if queue.produce(item).is_ok() {
                        self.accept(item);
                    }
                }
            }
            Action::ProduceMany { kind, count } => {
                let items: Vec<_> = (0..count).map(|_| self.next(kind * 2 + producer, producer)).collect();
                let mut left = items.clone().into_iter();
                let _ = queue.produce_many(&mut left, None, &mut Wait);
                let accepted = items.len() - left.len();
                items[..accepted].iter().for_each(|item| self.accept(*item));
            }
            Action::Flush => assert_eq!(queue.flush(Some(Instant::now() + PATIENCE), &mut Wait), Ok(true)),
            Action::Yield => std::thread::yield_now(),
        }
    }

    fn next(&mut self, kind: usize, producer: usize) -> Sent {
        self.next += 1;
        sent(kind, producer, self.next)
    }

    fn accept(&mut self, item: Sent) {
        self.accepted.entry((item.kind, item.producer)).or_default().push(item.number);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_actions_lose_nothing_double_nothing_and_keep_the_order(
        settings in settings(),
        actions in prop::collection::vec(prop::collection::vec(action(), 1..30), 2),
    ) {
        let queue = start(settings);
        let collector = Collector::default();
        let models: Vec<Model> = std::thread::scope(|scope| {
            let producers: Vec<_> = actions
                .iter()
                .enumerate()
                .map(|(producer, actions)| {
                    let (queue, collector) = (&queue, &collector);
                    scope.spawn(move || {
                        let mut model = Model::default();
                        for action in actions {
                            model.apply(queue, collector, producer, action);
                        }
                        model
                    })
                })
                .collect();
            producers.into_iter().map(|producer| producer.join().unwrap()).collect()
        });
        prop_assert_eq!(queue.shutdown(Some(Instant::now() + PATIENCE)), 0);
        let stats = queue.stats();
        assert_conserved(&stats);

        let mut handled: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for item in collector.items() {
            handled.entry((item.kind, item.producer)).or_default().push(item.number);
        }
        let accepted: usize = models.iter().flat_map(|model| model.accepted.values()).map(Vec::len).sum();
        prop_assert_eq!(stats.produced, accepted as u64);
        prop_assert_eq!(stats.consumed, handled.values().map(Vec::len).sum::<usize>() as u64);
        for model in &models {
            for (of, accepted) in &model.accepted {
                let handled = handled.remove(of).unwrap_or_default();
                // Before its handler an item may end unhandled, so what was handled is the accepted list without some.
                let mut rest = accepted.iter();
                prop_assert!(handled.iter().all(|number| rest.any(|one| one == number)), "{:?}: {:?}", of, handled);
                prop_assert!(model.registered.contains(&of.0) || handled.is_empty());
            }
        }
        prop_assert!(handled.is_empty(), "handled but never accepted: {:?}", handled);
    }
}
