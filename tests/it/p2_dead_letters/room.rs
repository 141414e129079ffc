//! A keeper that hangs, and letters that find no room in its box.

use super::*;
use crate::support::holding;

/// The lane continues, and so do all other types.
#[test]
fn a_keeper_that_hangs_holds_up_no_handler() {
    for threads in [2, 4] {
        let keeper = Arc::new(Keeper { release: Some(Latch::default()), ..Keeper::default() });
        let queue = start(config(threads), &keeper);
        let healthy = Collector::default();
        queue.add_handler(key(0), HandlerRef::new(Picky(odd))).unwrap();
        queue.add_handler(key(1), healthy.handler()).unwrap();
        queue.produce(sent(0, 0, 1)).unwrap();
        keeper.entered.wait();
        for number in 0..100 {
            queue.produce(sent(1, 0, number)).unwrap();
            queue.produce(sent(0, 0, 2 * number)).unwrap();
        }
        wait_until("the healthy type", || healthy.items().len() == 100);
        wait_until("good items of the other", || queue.stats().consumed == 200);
        assert_eq!(queue.flush(Some(Instant::now()), &mut Wait), Ok(false));
        keeper.release.as_ref().unwrap().open();
        shut_down(&queue);
        assert_conserved(&queue.stats());
    }
}

/// A keeper that also gets the letters of all other types of the queue.
#[test]
fn a_keeper_of_the_queue_that_hangs_holds_up_no_removal() {
    let keeper = Arc::new(Keeper { release: Some(Latch::default()), ..Keeper::default() });
    let queue = start(config(2), &keeper);
    let healthy = Collector::default();
    queue.add_handler(key(0), HandlerRef::new(Picky(odd))).unwrap();
    queue.add_handler(key(1), healthy.handler()).unwrap();
    queue.produce(sent(0, 0, 1)).unwrap();
    keeper.entered.wait();
    for kind in [1, 0] {
        let deadline = Some(Instant::now() + PATIENCE);
        assert_eq!(queue.remove_handler_with(key(kind), deadline, &mut Wait), Ok(true));
    }
    keeper.release.as_ref().unwrap().open();
    shut_down(&queue);
    assert_eq!((keeper.numbers(), keeper.closed.load(SeqCst)), (vec![1], 1));
}

/// One buffer of letters waits for the keeper. Beyond that the lane waits, and puts find the
/// partition full.
#[test]
fn letters_without_room_wait_in_their_lane() {
    let keeper = Arc::new(Keeper { release: Some(Latch::default()), ..Keeper::default() });
    let partitions = PartitionPolicy::fixed(2).unwrap();
    let threads = ThreadPolicy::fixed(2).unwrap();
    let config = Config { threads, partitions, buffer_size: 4, max_batch_items: 1, ..config(2) };
    let queue = start(config, &keeper);
    let healthy = Collector::default();
    queue.add_handler(key(0), HandlerRef::new(Picky(|_| true))).unwrap();
    queue.add_handler(key(1), healthy.handler()).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    keeper.entered.wait();
    // Four in the box, and four in their partition.
    for number in 1..9 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    // An item in a call takes no room, until it has failed.
    wait_until("the call whose letter finds no room", || queue.stats().handlers[0].batches == 6);
    wait_until("that letter in its lane", || queue.stats().in_flight == 1);
    let stats = queue.stats();
    assert_eq!((stats.consumed, stats.dead_lettered), (0, 0));
    let soon = Some(Instant::now() + Duration::from_millis(1));
    assert!(queue.produce_with(sent(0, 0, 9), None, soon, &mut Wait).is_err(), "{stats:?}");
    for number in 0..100 {
        queue.produce(sent(1, 0, number)).unwrap();
    }
    wait_until("the healthy type", || healthy.items().len() == 100);
    keeper.release.as_ref().unwrap().open();
    shut_down(&queue);
    assert_eq!(keeper.numbers(), (0..9).collect::<Vec<_>>(), "in order");
    assert_conserved(&queue.stats());
}

#[test]
fn letters_of_a_keeper_that_hangs_are_abandoned_when_time_runs_out() {
    let keeper = Arc::new(Keeper { release: Some(Latch::default()), ..Keeper::default() });
    let queue = start(Config { max_batch_items: 1, ..config(2) }, &keeper);
    queue.add_handler(key(0), HandlerRef::new(Picky(|_| true))).unwrap();
    for number in 0..3 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    keeper.entered.wait();
    assert_eq!(queue.shutdown(Some(Instant::now())), 3);
    keeper.release.as_ref().unwrap().open();
    wait_until("the end", || queue.has_ended());
    let stats = queue.stats();
    assert_eq!((stats.abandoned, stats.dead_lettered), (3, 0));
    assert_conserved(&stats);
}

/// The letters of a lane find room in the turn that the lane had kept from taking more.
#[test]
fn items_behind_letters_that_waited_for_room_are_taken() {
    for per_thread in [false, true] {
        let keeper = Arc::new(Keeper::default());
        let builder = BatchQueue::builder(
            "test",
            Config {
                selector: if per_thread { Selector::RoundRobin } else { Selector::ByType },
                partitions: PartitionPolicy::fixed(4).unwrap(),
                buffer_size: 3,
                min_idle: Duration::ZERO,
                ..config(4)
            },
        )
        .dead_letter(keeper.handler());
        let queue = if per_thread {
            builder.consumer_per_thread(|_| HandlerRef::new(Picky(odd))).start().unwrap()
        } else {
            builder.start().unwrap()
        };
        if !per_thread {
            for kind in 0..4 {
                queue.add_handler(key(kind), HandlerRef::new(Picky(odd))).unwrap();
            }
        }
        std::thread::scope(|scope| {
            for producer in 0..3 {
                let queue = &queue;
                scope.spawn(move || {
                    for number in 0..5_000 {
                        let item = sent(number % 4, producer, number);
                        let deadline = Some(Instant::now() + PATIENCE);
                        queue.produce_with(item, None, deadline, &mut Wait).unwrap();
                    }
                });
            }
        });
        shut_down(&queue);
        assert_conserved(&queue.stats());
    }
}

/// The keeper is not closed as soon as its box is empty: a lane may still have letters for it.
#[test]
fn a_removed_keeper_gets_letters_that_waited_for_room() {
    let keeper = Arc::new(Keeper { release: Some(Latch::default()), ..Keeper::default() });
    let partitions = PartitionPolicy::fixed(4).unwrap();
    let spare_threads = Some(0);
    let queue = BatchQueue::builder(
        "test",
        Config { partitions, buffer_size: 2, max_batch_items: 1, spare_threads, ..config(2) },
    );
    let queue = queue.start().unwrap();
    let (hold, entered, release) = holding();
    let instances = vec![HandlerRef::new(Picky(|_| true))];
    let handlers = Handlers { instances, dead_letter: Some(keeper.handler()) };
    queue.add_handler_with(key(0), handlers, &mut Wait).unwrap();
    queue.add_handler(key(2), hold).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    keeper.entered.wait();
    for number in 1..4 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    wait_until("two letters in the box and one that waits", || {
        let stats = queue.stats();
        (stats.queued, stats.held, stats.in_flight) == (0, 3, 1)
    });
    // The other thread, which owns the lane by now, is inside another handler.
    queue.produce(sent(2, 0, 0)).unwrap();
    entered.wait();
    assert_eq!(queue.remove_handler_with(key(0), Some(Instant::now()), &mut Wait), Ok(false));
    keeper.release.as_ref().unwrap().open();
    wait_until("the last call", || keeper.closed.load(SeqCst) == 1);
    assert_eq!(keeper.numbers(), [0, 1, 2, 3]);
    release.open();
    shut_down(&queue);
    assert_conserved(&queue.stats());
}
