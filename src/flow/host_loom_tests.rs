//! Loom tests of the things besides items that drain threads deal with: an interpreter, waits that
//! time out, attempts that fail.
//!
//! The model's interpreter is a lock held by one thread at a time, the attached one: a drain thread
//! takes it for a cycle with work, a producer holds it while it puts, and both release it for a
//! wait. loom reports a deadlock if a thread keeps it while it waits for another. Bounds: two or
//! three preemptions with one drain thread, one with two.

use std::cell::Cell;
use std::convert::Infallible;

use loom::thread;

use crate::config::{Config, RetryPolicy};
use crate::flow::batch::{Batch, Failure};
use crate::flow::handler::{Handler, HandlerRef, Host};
use crate::queue::BatchQueue;
use crate::sync::{Arc, Condvar, Duration, Instant, MOMENT, Mutex, thread_local, wait_for};
use crate::testing::loom::{
    Number, ONE, Seen, TWO, config, model, model_by_turns, two_owners_meet,
};
use crate::threads::waits::{Pause, Wait};

#[derive(Default)]
struct Interpreter {
    attached: Mutex<bool>,
    detached: Condvar,
}

impl Interpreter {
    fn attach(&self) {
        let mut attached = self.attached.lock();
        while *attached {
            attached = wait_for(&self.detached, attached, None);
        }
        *attached = true;
    }

    fn detach(&self) {
        *self.attached.lock() = false;
        self.detached.notify_one();
    }
}

/// The interpreter, as a host and as a waiting producer's pause.
#[derive(Clone, Default)]
struct Attached(Arc<Interpreter>);

thread_local! {
    #[allow(clippy::missing_const_for_thread_local)]
    static STAYS: Cell<bool> = Cell::new(false);
}

impl Host<Number> for Attached {
    fn enter(&self, body: &mut dyn FnMut()) {
        if STAYS.with(Cell::get) {
            return body();
        }
        self.0.attach();
        body();
        self.0.detach();
    }

    fn stay(&self, body: &mut dyn FnMut()) {
        self.enter(&mut || {
            STAYS.with(|stays| stays.set(true));
            body();
            STAYS.with(|stays| stays.set(false));
        });
    }

    fn leave(&self, wait: &mut (dyn FnMut() + Send)) {
        self.0.detach();
        wait();
        self.0.attach();
    }
}

impl Pause for Attached {
    type Interrupt = Infallible;

    fn pause(&mut self, wait: &mut (dyn FnMut(Option<Duration>) + Send)) -> Result<(), Infallible> {
        self.0.detach();
        wait(None);
        self.0.attach();
        Ok(())
    }
}

impl Attached {
    fn queue(&self, config: Config) -> BatchQueue<Number> {
        BatchQueue::builder("q", config).host(self.clone()).start().unwrap()
    }

    fn put(&mut self, queue: &BatchQueue<Number>, number: u32) {
        queue.produce_with(Number(ONE, number), None, None, self).unwrap();
    }
}

/// An attached producer fills the partition and waits for a drain thread that has to attach.
#[test]
fn loom_attached_producer_waits_for_space() {
    model(2, || {
        let (seen, mut interpreter) = (Arc::new(Seen::default()), Attached::default());
        let queue = interpreter.queue(Config { buffer_size: 1, ..config(1) });
        queue.add_handler(ONE, seen.handler()).unwrap();
        interpreter.0.attach();
        interpreter.put(&queue, 1);
        interpreter.put(&queue, 2);
        interpreter.0.detach();
        queue.shutdown(None);
        assert_eq!(seen.numbers(), [1, 2]);
    });
}

/// The same for a flush. The handler is added after the item, while the drain thread waits to
/// attach or before that.
#[test]
fn loom_attached_thread_flushes() {
    model(2, || {
        let (seen, mut interpreter) = (Arc::new(Seen::default()), Attached::default());
        let queue = interpreter.queue(config(1));
        interpreter.0.attach();
        interpreter.put(&queue, 1);
        queue.add_handler(ONE, seen.handler()).unwrap();
        assert_eq!(queue.flush(None, &mut interpreter), Ok(true));
        interpreter.0.detach();
        assert_eq!(seen.numbers(), [1]);
        queue.shutdown(None);
    });
}

/// Records a batch while another thread may hold the interpreter, like a handler that sleeps or
/// reads a file.
fn slow_handler(seen: &Arc<Seen>, interpreter: &Attached) -> impl Handler<Number> + use<> {
    let (seen, interpreter) = (seen.clone(), interpreter.clone());
    move |batch: &mut Batch<Number>| {
        seen.inside.with_mut(|_| interpreter.leave(&mut thread::yield_now));
        seen.note(batch);
    }
}

/// Two drain threads meet at a handler that releases the interpreter and reacquires it: a thread
/// that waits for the handler must not be attached.
#[test]
fn loom_attached_owners_meet_at_one_handler() {
    model_by_turns(7, 1, || {
        let (seen, interpreter) = (Arc::new(Seen::default()), Attached::default());
        let handler = HandlerRef::new(slow_handler(&seen, &interpreter));
        two_owners_meet(&interpreter.queue(config(2)), &handler, &seen);
    });
}

/// A handler with an `on_close`, which a function does not have.
struct Closing;

impl Handler<Number> for Closing {
    fn consume(&self, _: &mut Batch<Number>) -> Result<(), Failure> {
        Ok(())
    }
}

/// The same if the second thread has no items, but closes a handler that shares the handler lock.
#[test]
fn loom_attached_owner_closes_a_handler_while_the_other_is_entered() {
    model_by_turns(8, 1, || {
        let (seen, interpreter) = (Arc::new(Seen::default()), Attached::default());
        let queue = interpreter.queue(config(2));
        let slow = HandlerRef::new(slow_handler(&seen, &interpreter));
        let other = HandlerRef::with_lock(Arc::new(Closing), slow.lock.clone());
        queue.add_handler(ONE, slow).unwrap();
        queue.add_handler(TWO, other).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        assert!(queue.remove_handler(TWO));
        queue.shutdown(None);
        assert_eq!(seen.numbers(), [1]);
    });
}

/// A sleep times out as the first item arrives.
#[test]
fn loom_put_while_a_sleep_times_out() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let queue = Arc::new(BatchQueue::builder("q", config(1)).start().unwrap());
        queue.add_handler(ONE, seen.handler()).unwrap();
        let clock = {
            let queue = queue.clone();
            thread::spawn(move || queue.flow.threads[0].waker.time_out())
        };
        queue.produce(Number(ONE, 1)).unwrap();
        seen.wait_for(1);
        clock.join().unwrap();
        queue.shutdown(None);
    });
}

/// A first item does not end a rest: it is found when the rest has timed out.
#[test]
fn loom_put_while_a_rest_ends() {
    model(3, || {
        let seen = Arc::new(Seen::default());
        let queue =
            BatchQueue::builder("q", Config { min_idle: MOMENT, ..config(1) }).start().unwrap();
        queue.add_handler(ONE, seen.handler()).unwrap();
        queue.produce(Number(ONE, 1)).unwrap();
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// Fails at the first attempt.
struct Stubborn(Arc<Seen>, Mutex<bool>);

impl Handler<Number> for Stubborn {
    fn consume(&self, batch: &mut Batch<Number>) -> Result<(), Failure> {
        if !std::mem::replace(&mut *self.1.lock(), true) {
            return Err(Failure::new("not yet"));
        }
        self.0.note(batch);
        Ok(())
    }
}

/// Returns a queue whose batch waits forever after its first attempt, which an attached thread
/// makes.
fn stubborn_queue(interpreter: &mut Attached, seen: &Arc<Seen>) -> BatchQueue<Number> {
    let wait = Duration::from_secs(3_600);
    let retry =
        RetryPolicy { attempts: None, backoff: wait, max_backoff: wait, ..RetryPolicy::default() };
    let queue = interpreter.queue(Config { retry: Some(retry), ..config(1) });
    queue.add_handler(ONE, HandlerRef::new(Stubborn(seen.clone(), Mutex::new(false)))).unwrap();
    interpreter.0.attach();
    interpreter.put(&queue, 1);
    interpreter.0.detach();
    queue
}

/// Asserts that the item has had its last attempt, which was the first if the deadline was known by
/// then.
fn assert_tried(queue: &BatchQueue<Number>, seen: &Seen) {
    let stats = queue.stats();
    assert_eq!((stats.consumed + stats.failed, stats.abandoned), (1, 0));
    assert_eq!(seen.numbers().len() as u64, stats.consumed);
}

/// The deadline of a shutdown ends the wait between two attempts of a batch, whether the shutdown
/// or the wait begins first.
#[test]
fn loom_shutdown_while_a_batch_waits_for_its_next_try() {
    model(2, || {
        let (seen, mut interpreter) = (Arc::new(Seen::default()), Attached::default());
        let queue = stubborn_queue(&mut interpreter, &seen);
        assert_eq!(queue.shutdown(Some(Instant::now() + Duration::from_secs(3_600))), 0);
        assert_tried(&queue, &seen);
    });
}

/// A deadline that is set after the close ends the wait, too. The closing thread is attached, so
/// the waiting one must not be.
#[test]
fn loom_deadline_while_a_batch_of_a_closed_queue_waits_for_its_next_try() {
    model(2, || {
        let (seen, mut interpreter) = (Arc::new(Seen::default()), Attached::default());
        let queue = stubborn_queue(&mut interpreter, &seen);
        interpreter.0.attach();
        queue.close();
        interpreter.0.detach();
        assert_eq!(queue.shutdown(Some(Instant::now() + Duration::from_secs(3_600))), 0);
        assert_tried(&queue, &seen);
    });
}

/// So does a deadline that is announced for a later shutdown.
#[test]
fn loom_announced_deadline_while_a_batch_waits_for_its_next_try() {
    model(2, || {
        let (seen, mut interpreter) = (Arc::new(Seen::default()), Attached::default());
        let queue = stubborn_queue(&mut interpreter, &seen);
        queue.close_to_outside(Some(Instant::now()));
        assert!(queue.flush(None, &mut Wait).unwrap());
        assert_tried(&queue, &seen);
        queue.shutdown(None);
    });
}
