//! P2: an item that finds no room, and whose producer listens instead of waiting, is accepted or
//! refused exactly once.

use std::sync::{Arc, Mutex};

use batchqueue::{
    BatchQueue, BufferStrategy, Config, Line, Listener, PartitionPolicy, PendingItem, ProduceError,
    TryProduceError,
};

use crate::support::{
    Collector, Latch, Sent, assert_conserved, config, holding, key, sent, shut_down, start,
    wait_until,
};

const LINE: Line = Line { partition: 0, key: key(0) };

/// Records its notifications.
#[derive(Default)]
struct Ear(Mutex<Vec<usize>>);

impl Listener for Ear {
    fn hear(&self, partition: usize) {
        self.0.lock().unwrap().push(partition);
    }
}

fn none_waiting(_line: Line) -> bool {
    false
}

/// Returns a full queue with one partition: its handler holds one item, and its buffer two more.
fn full(strategy: BufferStrategy) -> (BatchQueue<Sent>, Arc<Latch>) {
    let config =
        Config { buffer_size: 2, partitions: PartitionPolicy::Fixed(1), strategy, ..config(1) };
    let (queue, (handler, entered, release)) = (start(config), holding());
    queue.add_handler(key(0), handler).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    let mut items = vec![sent(0, 0, 1), sent(0, 0, 2)].into_iter();
    assert!(queue.try_produce_many(&mut items).is_ok());
    (queue, release)
}

fn late(result: Result<(), TryProduceError<Sent>>) -> PendingItem<Sent> {
    match result {
        Err(TryProduceError::Pending(late)) => late,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pending_item_counts_as_attempted_immediately_and_ends_produced_or_refused() {
    let (queue, release) = full(BufferStrategy::Blocking);
    let first = late(queue.try_produce(sent(0, 0, 3), None, &none_waiting));
    let mut more = vec![sent(0, 0, 4), sent(0, 0, 5)].into_iter();
    let second = late(queue.try_produce_many(&mut more));
    let third = late(queue.try_produce(sent(0, 0, 6), None, &none_waiting));
    assert_eq!((second.item().map(|item| item.number), more.len()), (Some(4), 1));
    let stats = queue.stats();
    assert_eq!((stats.attempts, stats.produced, stats.refused), (6, 3, 0));
    let first = late(first.try_again());
    drop(second);
    assert!(matches!(
        third.time_out(),
        ProduceError::TimedOut { partition: 0, buffer_size: 2, .. }
    ));
    let stats = queue.stats();
    assert_eq!((stats.attempts, stats.produced, stats.refused), (6, 3, 2));

    let ear = Arc::new(Ear::default());
    let listening = first.listen(ear.clone());
    assert_eq!(queue.room(LINE), 0);
    release.open();
    wait_until("the listener to be notified", || !ear.0.lock().unwrap().is_empty());
    wait_until("room for both", || queue.room(LINE) == 2);
    assert!(first.try_again().is_ok());
    drop(listening);
    shut_down(&queue);
    assert_eq!(queue.stats().consumed, 4);
    assert_conserved(&queue.stats());
}

#[test]
fn a_close_notifies_listeners_and_refuses_pending_items() {
    let (queue, release) = full(BufferStrategy::Blocking);
    let waits = late(queue.try_produce(sent(0, 0, 3), None, &none_waiting));
    let (ear, deaf) = (Arc::new(Ear::default()), Arc::new(Ear::default()));
    let listening = waits.listen(ear.clone());
    drop(waits.listen(deaf.clone()));
    queue.close();
    assert_eq!(*ear.0.lock().unwrap(), [0]);
    assert!(deaf.0.lock().unwrap().is_empty(), "a dropped listener is not notified");
    assert_eq!(
        queue.room(LINE),
        2,
        "a closed queue reports room, so that waiting producers check again"
    );
    assert!(matches!(waits.try_again(), Err(TryProduceError::Refused(ProduceError::Closed(_)))));
    assert!(matches!(
        queue.try_produce(sent(0, 0, 4), None, &none_waiting),
        Err(TryProduceError::Refused(ProduceError::Closed(_)))
    ));
    drop(listening);
    release.open();
    shut_down(&queue);
    assert_eq!(queue.stats().refused, 2);
    assert_conserved(&queue.stats());
}

#[test]
fn with_if_possible_no_item_is_pending() {
    let (queue, release) = full(BufferStrategy::IfPossible);
    assert!(matches!(
        queue.try_produce(sent(0, 0, 3), None, &none_waiting),
        Err(TryProduceError::Refused(ProduceError::Full(_)))
    ));
    release.open();
    shut_down(&queue);
    assert_conserved(&queue.stats());
}

#[test]
fn an_item_does_not_overtake_items_that_already_wait() {
    let collector = Collector::default();
    let queue = start(Config { partitions: PartitionPolicy::Fixed(1), ..config(1) });
    queue.add_handler(key(0), collector.handler()).unwrap();
    let behind = late(queue.try_produce(sent(0, 0, 2), None, &|line| line == LINE));
    assert_eq!(queue.stats().attempts, 1);
    queue.produce(sent(0, 0, 1)).unwrap();
    assert!(behind.try_again().is_ok());
    shut_down(&queue);
    assert_eq!(collector.items().iter().map(|item| item.number).collect::<Vec<_>>(), [1, 2]);
    assert_conserved(&queue.stats());
}
