//! P9: shutdown delivers the accepted items and returns, wherever it is called from.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use batchqueue::{
    Batch, BatchQueue, Config, Failure, FlushError, Handler, HandlerLock, HandlerRef, Item,
    ProduceError, ThreadPolicy, TypeKey, Wait,
};

use crate::support::{
    Collector, Latch, Sent, assert_conserved, config, holding, key, owners, sent, shut_down, start,
    steered, wait_until,
};

/// An item that shares a reference with all others that are left.
#[derive(Debug)]
struct Counted {
    _left: Arc<()>,
}

impl Item for Counted {
    fn type_key(&self) -> TypeKey {
        key(0)
    }
}

#[test]
fn a_shutdown_out_of_time_drops_what_is_behind_a_handler_that_hangs() {
    let (entered, release) = (Arc::new(Latch::default()), Arc::new(Latch::default()));
    let latches = (entered.clone(), release.clone());
    let config = Config { max_batch_items: 1, ..config(2) };
    let queue = BatchQueue::builder("hung", config).start().unwrap();
    let hang = HandlerRef::new(move |_: &mut Batch<Counted>| {
        latches.0.open();
        latches.1.wait();
    });
    queue.add_handler(key(0), hang).unwrap();
    let left = Arc::new(());
    for _ in 0..10 {
        queue.produce(Counted { _left: left.clone() }).unwrap();
    }
    entered.wait();
    assert_eq!(queue.shutdown(Some(Instant::now())), 10);
    // The test's own reference, and that of the item in its call.
    wait_until("the other items to be dropped", || Arc::strong_count(&left) == 2);
    release.open();
}

#[test]
fn a_shutdown_delivers_a_backlog() {
    let collector = Collector::default();
    // Enough for many cycles, so that a drain thread must not leave after the first.
    let queue = start(Config { max_batch_items: 100, ..config(2) });
    for kind in 0..4 {
        queue.add_handler(key(kind), collector.handler()).unwrap();
    }
    for number in 0..4_000 {
        queue.produce(sent(number % 4, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_eq!(collector.items().len(), 4_000);
    assert!(queue.has_ended());
}

#[test]
fn a_dropped_queue_still_delivers_its_items() {
    let collector = Collector::default();
    let queue = start(config(2));
    queue.add_handler(key(0), collector.handler()).unwrap();
    for number in 0..1_000 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    drop(queue);
    wait_until("the drain threads to deliver", || collector.items().len() == 1_000);
}

struct Closer {
    closed: Arc<AtomicUsize>,
    consumed: AtomicUsize,
}

impl Handler<Sent> for Closer {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        assert_eq!(self.closed.load(SeqCst), 0, "a batch after on_close");
        self.consumed.fetch_add(batch.drain().count(), SeqCst);
        Ok(())
    }

    fn on_close(&self) -> Result<(), Failure> {
        self.closed.fetch_add(1, SeqCst);
        Ok(())
    }
}

#[test]
fn on_close_is_called_once_per_instance_after_the_last_batch() {
    let closed = Arc::new(AtomicUsize::new(0));
    let queue = start(config(3));
    let handler = HandlerRef::new(Closer { closed: closed.clone(), consumed: 0.into() });
    for kind in 0..6 {
        queue.add_handler(key(kind), handler.clone()).unwrap();
    }
    for number in 0..600 {
        queue.produce(sent(number % 6, 0, number)).unwrap();
    }
    shut_down(&queue);
    assert_eq!(closed.load(SeqCst), 1);
    shut_down(&queue);
    assert_eq!(closed.load(SeqCst), 1);
}

/// An action of a handler on its own queue.
type Act = Box<dyn Fn(&BatchQueue<Sent>) + Send + Sync>;

fn with_act(config: Config, act: Act) -> Arc<BatchQueue<Sent>> {
    let queue = Arc::new(start(config));
    let own: Arc<OnceLock<std::sync::Weak<BatchQueue<Sent>>>> = Arc::default();
    own.set(Arc::downgrade(&queue)).unwrap();
    let handler = HandlerRef::new(move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        if let Some(queue) = own.get().and_then(std::sync::Weak::upgrade) {
            act(&queue);
        }
    });
    queue.add_handler(key(0), handler).unwrap();
    queue
}

#[test]
fn a_handler_can_shut_down_its_queue() {
    let queue = with_act(config(2), Box::new(|queue| assert_eq!(queue.shutdown(None), 0)));
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the drain threads to end", || queue.has_ended());
    assert_conserved(&queue.stats());
    assert_eq!(queue.stats().failed, 0);
}

#[test]
fn a_flush_from_a_handler_is_refused() {
    let queue = with_act(
        config(1),
        Box::new(|queue| {
            assert_eq!(queue.flush(None, &mut Wait), Err(FlushError::FromDrainThread));
        }),
    );
    queue.produce(sent(0, 0, 0)).unwrap();
    shut_down(&queue);
    assert_eq!(queue.stats().failed, 0);
}

#[test]
fn a_produce_that_would_wait_for_its_own_thread_is_refused() {
    let act: Act = Box::new(|queue| {
        queue.produce(sent(0, 1, 0)).unwrap();
        let refused = queue.produce(sent(0, 1, 1));
        // Refused before it waits: no circle had to be detected.
        let is_refused = matches!(
            refused,
            Err(ProduceError::Reentrant { partition: 0, buffer_size: 1, circle: None, .. })
        );
        assert!(is_refused, "{refused:?}");
        queue.close();
    });
    let queue = with_act(Config { buffer_size: 1, ..config(1) }, act);
    queue.produce(sent(0, 0, 0)).unwrap();
    wait_until("the drain threads to end", || queue.has_ended());
    // The first produce of the second call finds the queue closed and panics inside the handler:
    // one batch failed.
    assert_eq!((queue.stats().consumed, queue.stats().failed), (1, 1));
    assert_conserved(&queue.stats());
}

#[test]
fn a_produce_that_would_wait_for_its_own_lock_is_refused() {
    // One instance on two queues: while it is inside the first, no thread can drain the second.
    let lock = Arc::new(HandlerLock::default());
    let second = Arc::new(start(Config { buffer_size: 1, ..config(1) }));
    let emptied = Collector::default();
    second
        .add_handler(key(0), HandlerRef::with_lock(Arc::new(emptied.clone()), lock.clone()))
        .unwrap();
    let first = start(config(1));
    let (target, refused) = (second.clone(), Arc::new(AtomicUsize::new(0)));
    let count = refused.clone();
    let feed = move |batch: &mut Batch<Sent>| {
        drop(batch.drain());
        for number in 0..10 {
            if let Err(ProduceError::Reentrant { .. }) = target.produce(sent(0, 0, number)) {
                count.fetch_add(1, SeqCst);
            }
        }
    };
    first.add_handler(key(0), HandlerRef::with_lock(Arc::new(feed), lock)).unwrap();
    first.produce(sent(0, 0, 0)).unwrap();
    shut_down(&first);
    shut_down(&second);
    assert!(refused.load(SeqCst) > 0);
    assert_eq!(emptied.items().len() + refused.load(SeqCst), 10);
    assert_conserved(&second.stats());
}

/// One caller waits without a limit, and is notified that another has run out of time.
#[test]
fn a_shutdown_returns_when_another_one_expires() {
    let queue = start(config(2));
    let (hold, entered, release) = holding();
    queue.add_handler(key(0), hold).unwrap();
    queue.produce(sent(0, 0, 0)).unwrap();
    entered.wait();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| queue.shutdown(None))).collect();
        wait_until("the close", || queue.produce(sent(0, 0, 1)).is_err());
        // They most probably wait by now; if not, there is nothing to notify.
        std::thread::sleep(Duration::from_millis(50));
        let abandoned = queue.shutdown(Some(Instant::now()));
        assert!(abandoned >= 1);
        for thread in waiting {
            wait_until("the others", || thread.is_finished());
            assert_eq!(thread.join().unwrap(), abandoned);
        }
        release.open();
    });
}

#[test]
fn concurrent_shutdowns_wait_for_the_same_end() {
    let collector = Collector::default();
    let queue = start(config(2));
    queue.add_handler(key(0), collector.handler()).unwrap();
    for number in 0..5_000 {
        queue.produce(sent(0, 0, number)).unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                shut_down(&queue);
                assert_eq!(collector.items().len(), 5_000);
            });
        }
    });
}

/// Runs its hook in `on_idle` and records its calls.
struct IdleHandler<F> {
    calls: Arc<Mutex<Vec<&'static str>>>,
    hook: F,
}

impl<F: Fn() + Send + Sync> Handler<Sent> for IdleHandler<F> {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        drop(batch.drain());
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        true
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.calls.lock().unwrap().push("on_idle");
        (self.hook)();
        Ok(())
    }

    fn on_close(&self) -> Result<(), Failure> {
        self.calls.lock().unwrap().push("on_close");
        Ok(())
    }
}

/// Time runs out while a drain thread hangs in one handler's `on_idle` and is about to call
/// another's; meanwhile the other thread closes that other handler.
#[test]
fn on_close_is_the_last_call_even_when_time_runs_out() {
    let (config, steered) = steered(Config {
        min_idle: Duration::ZERO,
        max_idle: Duration::from_millis(2),
        ..config(2)
    });
    let queue = start(config);
    let (armed, entered, release) =
        (Arc::new(AtomicBool::new(false)), Arc::new(Latch::default()), Arc::new(Latch::default()));
    let (is_armed, inside, hold) = (armed.clone(), entered.clone(), release.clone());
    let hook = move || {
        if is_armed.load(SeqCst) {
            inside.open();
            hold.wait();
        }
    };
    queue
        .add_handler(key(0), HandlerRef::new(IdleHandler { calls: Arc::default(), hook }))
        .unwrap();
    let calls: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    queue
        .add_handler(key(1), HandlerRef::new(IdleHandler { calls: calls.clone(), hook: || () }))
        .unwrap();
    // The first thread will call both handlers in turn; the second thread closes the second
    // handler.
    steered.rebalance(&queue, &[0, 0]);
    wait_until("the first thread to own both", || owners(&queue) == [0, 0]);
    armed.store(true, SeqCst);
    entered.wait();
    queue.shutdown(Some(Instant::now()));
    wait_until("the second to be closed", || calls.lock().unwrap().contains(&"on_close"));
    release.open();
    wait_until("the drain threads to end", || queue.has_ended());
    assert_eq!(calls.lock().unwrap().last(), Some(&"on_close"));
}

/// Waits for work that the handler of another queue does.
struct Elsewhere(Arc<Latch>);

impl Handler<Sent> for Elsewhere {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        drop(batch.drain());
        self.0.wait();
        Ok(())
    }

    fn works_elsewhere(&self) -> bool {
        true
    }
}

#[test]
fn a_worker_whose_handler_works_elsewhere_is_replaced() {
    let pooled = || {
        let builder = BatchQueue::builder("test", config(1))
            .shared_scheduler("elsewhere", ThreadPolicy::fixed(1).unwrap());
        builder.start().unwrap()
    };
    let (waits, works, done) = (pooled(), pooled(), Arc::new(Latch::default()));
    waits.add_handler(key(0), HandlerRef::new(Elsewhere(done.clone()))).unwrap();
    let opens = done.clone();
    works.add_handler(key(0), HandlerRef::new(move |_: &mut Batch<Sent>| opens.open())).unwrap();
    waits.produce(sent(0, 0, 0)).unwrap();
    wait_until("the only worker to wait", || waits.stats().in_flight == 1);
    works.produce(sent(0, 0, 0)).unwrap();
    shut_down(&waits);
    shut_down(&works);
    assert_eq!(waits.stats().consumed, 1);
}
