//! Types that go while a producer puts their items.

use loom::thread;

use crate::BatchQueue;
use crate::sync::Arc;
use crate::testing::loom::{Number, ONE, Seen, TWO, config, model, model_by_turns};

/// A type goes while a producer puts an item of it, and another one gets its place and its
/// partition: its handler does not get the item.
#[test]
fn loom_put_while_the_type_goes_and_another_comes() {
    model(1, || {
        let (seen, other) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.produce(Number(ONE, 1)).unwrap())
        };
        assert!(queue.remove_handler(ONE));
        queue.add_handler(TWO, other.handler()).unwrap();
        queue.produce(Number(TWO, 2)).unwrap();
        producer.join().unwrap();
        queue.shutdown(None);
        assert_eq!(other.numbers(), [2]);
        assert_eq!(seen.numbers().len() as u64 + queue.stats().unhandled, 1);
    });
}

/// A type goes while a producer puts an item of it, and comes back: the item is handled at most
/// once, and before a later one.
#[test]
fn loom_put_while_the_type_goes_and_comes_back() {
    model_by_turns(11, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || {
                queue.produce(Number(ONE, 1)).unwrap();
                queue.produce(Number(ONE, 2)).unwrap();
            })
        };
        assert!(queue.remove_handler(ONE));
        queue.add_handler(ONE, seen.handler()).unwrap();
        producer.join().unwrap();
        queue.shutdown(None);
        let numbers = seen.numbers();
        assert!(numbers.is_sorted() && !numbers.contains(&0), "{numbers:?}");
        assert_eq!(numbers.len() as u64 + queue.stats().unhandled, 2);
    });
}
