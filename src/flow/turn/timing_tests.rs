//! Tests when batches are called, to the nanosecond, with one drain thread whose cycles and clock
//! the test controls.

use std::convert::Infallible;

use crate::config::{Config, PartitionPolicy, RetryPolicy};
use crate::control::state::Control;
use crate::flow::batch::{Batch, Failure};
use crate::flow::handler::{Handler, HandlerRef, NoHost};
use crate::flow::route::type_handlers::Consumption;
use crate::flow::state::Flow;
use crate::flow::turn::QUICK_CYCLE;
use crate::flow::turn::task::{Cycle, DrainTask};
use crate::item::{HandledType, Item, TypeKey};
use crate::sync::{Arc, Duration, Mutex, now};
use crate::testing::clock::{StoppedClock, advance};
use crate::threads::park::sleeper;
use crate::threads::slots::{Spares, ThreadSlots};
use crate::threads::waits::Wait;

const DELAY: Duration = Duration::from_millis(200);

const TICK: Duration = Duration::from_nanos(1);

const SHORT: TypeKey = TypeKey(16);

const LONG: TypeKey = TypeKey(32);

#[derive(Debug)]
struct Number(TypeKey, u32);

impl Item for Number {
    fn type_key(&self) -> TypeKey {
        self.0
    }
}

/// Keeps its batches; the first ones fail.
struct Kept {
    batches: Arc<Mutex<Vec<Vec<u32>>>>,
    failures: usize,
}

impl Handler<Number> for Kept {
    fn consume(&self, batch: &mut Batch<Number>) -> Result<(), Failure> {
        let mut batches = self.batches.lock();
        batches.push(batch.iter().map(|number| number.1).collect());
        if batches.len() <= self.failures { Err(Failure::new("not yet")) } else { Ok(()) }
    }
}

/// A queue without threads.
struct Queue {
    flow: Arc<Flow<Number>>,
    control: Arc<Control<Number>>,
    task: DrainTask<Number>,
    clock: StoppedClock,
    batches: Arc<Mutex<Vec<Vec<u32>>>>,
}

impl Queue {
    fn new(config: Config, failures: usize) -> Self {
        Self::without_delay(Config { max_delay: Some(DELAY), ..config }, failures)
    }

    fn without_delay(config: Config, failures: usize) -> Self {
        let config = Config { partitions: PartitionPolicy::Fixed(1), ..config };
        let queue = Self::without_handlers(config);
        queue.add(&SHORT.into(), failures);
        queue
    }

    fn without_handlers(config: Config) -> Self {
        let (sleeper, waker) = sleeper();
        let slots = ThreadSlots::new(vec![waker], Spares::new(1, Vec::new()));
        let (by_handler, host) = (Consumption::ByHandler, Arc::new(NoHost));
        let control = Control::new("q".to_owned(), config, by_handler, None, host, slots, None);
        let control = Arc::new(control);
        let (flow, task) = (control.flow.clone(), control.clone().drain_task(0, sleeper));
        let batches = Arc::<Mutex<Vec<Vec<u32>>>>::default();
        Self { flow, control, task, clock: StoppedClock::stop(), batches }
    }

    fn add(&self, item_type: &HandledType, failures: usize) {
        let kept = Kept { batches: self.batches.clone(), failures };
        let handlers = vec![HandlerRef::new(kept)].into();
        self.control.register::<Infallible>(item_type, handlers).unwrap();
    }

    fn put(&mut self, key: TypeKey, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.flow.produce(Number(key, number), None, None, &mut Wait).unwrap();
        }
        self.task.cycle();
    }

    /// Advances the clock, and returns the batches called so far.
    fn after(&mut self, time: Duration) -> Vec<Vec<u32>> {
        self.clock.advance(time);
        // One cycle may do no more than find out that something is due.
        self.task.cycle();
        self.task.cycle();
        self.batches.lock().clone()
    }
}

fn just_before(time: Duration) -> Duration {
    time.saturating_sub(TICK)
}

fn up_to(max_batch_items: usize) -> Config {
    Config { max_batch_items, ..Config::default() }
}

#[test]
fn a_batch_is_called_exactly_when_its_oldest_item_has_waited_for_the_delay() {
    let mut queue = Queue::new(up_to(10), 0);
    queue.put(SHORT, 0..1);
    assert!(queue.after(DELAY / 2).is_empty());
    queue.put(SHORT, 1..3);
    assert!(queue.after(just_before(DELAY / 2)).is_empty());
    assert_eq!(queue.after(TICK), [[0, 1, 2]]);
}

#[test]
fn a_full_batch_waits_for_nothing_and_its_rest_for_its_own_delay() {
    let mut queue = Queue::new(up_to(3), 0);
    queue.put(SHORT, 0..2);
    queue.clock.advance(DELAY / 2);
    queue.put(SHORT, 2..5);
    assert_eq!(queue.after(Duration::ZERO), [[0, 1, 2]]);
    assert_eq!(queue.after(just_before(DELAY)).len(), 1);
    assert_eq!(queue.after(TICK)[1..], [[3, 4]]);
}

#[test]
fn what_is_put_together_with_the_end_of_a_batch_waits_for_its_own_delay() {
    let mut queue = Queue::new(up_to(3), 0);
    queue.put(SHORT, 0..1);
    for numbers in [1..2, 2..5] {
        queue.clock.advance(DELAY / 4);
        let numbers: Vec<_> = numbers.map(|number| Number(SHORT, number)).collect();
        queue.flow.produce_many(&mut numbers.into_iter(), None, &mut Wait).unwrap();
    }
    assert_eq!(queue.after(Duration::ZERO), [[0, 1, 2]]);
    assert_eq!(queue.after(just_before(DELAY)).len(), 1);
    assert_eq!(queue.after(TICK)[1..], [[3, 4]]);
}

#[test]
fn two_types_in_one_partition_wait_for_their_own_delays() {
    let mut queue = Queue::new(up_to(10), 0);
    queue.add(&HandledType { max_delay: Some(2 * DELAY), ..LONG.into() }, 0);
    queue.put(LONG, 0..1);
    queue.put(SHORT, 1..2);
    assert!(queue.after(just_before(DELAY)).is_empty());
    assert_eq!(queue.after(TICK), [[1]]);
    assert_eq!(queue.after(just_before(DELAY)).len(), 1);
    assert_eq!(queue.after(TICK)[1..], [[0]]);
}

#[test]
fn a_batch_that_failed_is_tried_again_exactly_after_each_back_off() {
    let backoff = Duration::from_secs(1);
    let retry = RetryPolicy { attempts: Some(3), backoff, factor: 4.0, ..RetryPolicy::default() };
    let mut queue = Queue::new(Config { retry: Some(retry), ..up_to(2) }, 2);
    queue.put(SHORT, 7..9);
    assert_eq!(queue.after(Duration::ZERO).len(), 1);
    assert_eq!(queue.after(just_before(backoff)).len(), 1);
    assert_eq!(queue.after(TICK).len(), 2);
    assert_eq!(queue.after(just_before(4 * backoff)).len(), 2);
    assert_eq!(queue.after(TICK), [[7, 8]; 3]);
    assert_eq!(queue.flow.threads[0].tally.counts().consumed, 2);
}

#[test]
fn the_age_of_the_oldest_item_and_the_waits_of_batches_are_exact() {
    let mut queue = Queue::new(up_to(10), 0);
    queue.put(SHORT, 0..1);
    queue.clock.advance(DELAY / 4);
    queue.put(SHORT, 1..3);
    queue.clock.advance(DELAY / 4);
    assert_eq!(queue.control.stats().oldest_age, DELAY / 2);
    assert_eq!(queue.after(DELAY / 2), [[0, 1, 2]]);
    assert_eq!(queue.control.stats().oldest_age, Duration::ZERO);
    queue.put(SHORT, 3..13);
    assert_eq!(queue.after(Duration::ZERO).len(), 2);
    let histograms = queue.control.histograms();
    let [(key, types)] = histograms.as_slice() else { panic!("not one type: {histograms:?}") };
    assert_eq!(*key, SHORT);
    assert_eq!(u128::from(types.waits.sum()), DELAY.as_nanos(), "the second one did not wait");
    assert_eq!((types.waits.count(), types.waits.at_most(1)), (2, 1));
    assert_eq!((types.batch_items.count(), types.batch_items.sum()), (2, 13));
}

#[test]
fn items_of_two_types_that_never_linger_have_an_age_too() {
    let mut queue = Queue::new(up_to(10), 0);
    let soon = |key: TypeKey| HandledType { max_delay: Some(Duration::ZERO), ..key.into() };
    queue.add(&soon(LONG), 0);
    queue.add(&soon(SHORT), 0);
    queue.flow.produce(Number(LONG, 1), None, None, &mut Wait).unwrap();
    queue.clock.advance(DELAY);
    queue.flow.produce(Number(SHORT, 2), None, None, &mut Wait).unwrap();
    queue.clock.advance(DELAY);
    assert_eq!(queue.control.stats().oldest_age, 2 * DELAY);
    assert_eq!(queue.after(Duration::ZERO).len(), 2);
    assert_eq!(queue.control.stats().oldest_age, Duration::ZERO);
}

#[test]
fn each_try_counts_as_a_call_and_only_the_first_has_waited() {
    let retry = RetryPolicy { attempts: Some(3), backoff: DELAY, ..RetryPolicy::default() };
    let mut queue = Queue::new(Config { retry: Some(retry), ..up_to(2) }, 1);
    queue.put(SHORT, 7..9);
    assert_eq!(queue.after(DELAY).len(), 2);
    let stats = queue.control.stats();
    assert_eq!((stats.consumed, stats.handlers[0].batches), (2, 1));
    let (_, types) = &queue.control.histograms()[0];
    assert_eq!((types.calls.count(), types.batch_items.sum(), types.waits.count()), (2, 4, 1));
}

/// Spends time on each batch.
struct Busy {
    time: Duration,
    calls: Arc<Mutex<Vec<TypeKey>>>,
}

impl Handler<Number> for Busy {
    fn consume(&self, batch: &mut Batch<Number>) -> Result<(), Failure> {
        let types = batch.drain().map(|number| number.0);
        self.calls.lock().extend(types.take(1));
        advance(self.time);
        Ok(())
    }
}

fn calls_of_a_cycle(time: Duration) -> Vec<TypeKey> {
    let (mut queue, calls) = with_backlogs(up_to(10), 10, time);
    queue.task.cycle();
    calls.lock().clone()
}

/// Makes three batches of each of two types wait.
fn with_backlogs(
    config: Config,
    batch: usize,
    time: Duration,
) -> (Queue, Arc<Mutex<Vec<TypeKey>>>) {
    let items = u32::try_from(3 * config.max_batch_items).unwrap();
    let config = Config { partitions: PartitionPolicy::Fixed(4), ..config };
    let queue = Queue::without_handlers(config);
    let calls = Arc::<Mutex<Vec<TypeKey>>>::default();
    for key in [SHORT, LONG] {
        let handler = HandlerRef::new(Busy { time, calls: calls.clone() });
        let its = HandledType { max_batch_items: Some(batch), ..key.into() };
        queue.control.register::<Infallible>(&its, vec![handler].into()).unwrap();
        let items = (0..items).map(|number| Number(key, number)).collect::<Vec<_>>();
        queue.flow.produce_many(&mut items.into_iter(), None, &mut Wait).unwrap();
    }
    (queue, calls)
}

#[test]
fn a_cycle_takes_the_backlog_of_a_partition_while_its_calls_are_quick() {
    let calls = calls_of_a_cycle(QUICK_CYCLE / 10);
    assert_eq!(calls, [[LONG; 3], [SHORT; 3]].concat());
}

#[test]
fn a_slow_handler_gets_one_batch_in_a_cycle() {
    assert_eq!(calls_of_a_cycle(QUICK_CYCLE).len(), 1);
    assert_eq!(calls_of_a_cycle(QUICK_CYCLE / 2), [LONG; 2]);
}

#[test]
fn a_slow_handler_with_a_low_limit_gets_one_batch_in_a_cycle() {
    let (mut queue, calls) = with_backlogs(up_to(1_000), 250, QUICK_CYCLE);
    // The first cycles fill the lanes; later takes fill up what a call has left.
    while calls.lock().len() < 4 {
        queue.task.cycle();
    }
    calls.lock().clear();
    queue.task.cycle();
    let mut called = calls.lock().clone();
    called.sort_unstable();
    assert_eq!(called, [SHORT, LONG]);
}

/// The rest of a thread after a batch.
const REST: Duration = Duration::from_millis(5);

impl Queue {
    fn put_many(&self, items: usize) {
        let items: Vec<_> = (0..).map(|number| Number(SHORT, number)).take(items).collect();
        self.flow.produce_many(&mut items.into_iter(), None, &mut Wait).unwrap();
    }

    /// Puts a batch `gap` after the last one, and returns how often the thread pauses until it
    /// sleeps again.
    fn pauses_after_batch(&mut self, gap: Duration) -> usize {
        self.clock.advance(gap);
        self.put_many(self.flow.config.max_batch_items);
        self.task.wake_up();
        let mut pauses = 0;
        loop {
            let cycle = self.task.cycle();
            let Some((attempt, limit)) = self.task.prepare_sleep(cycle) else { continue };
            attempt.leave();
            pauses += 1;
            if limit > REST {
                return pauses;
            }
            self.task.wake_up();
        }
    }
}

#[test]
fn a_thread_does_not_rest_after_batches_that_come_at_long_intervals() {
    // After a small batch it rests without an empty cycle, after a large one with it.
    for items in [2, 300] {
        let config = Config { min_idle: REST, max_idle: 2 * REST, ..up_to(items) };
        let mut queue = Queue::new(config, 0);
        let mut pauses = |gap: Duration| [(); 6].map(|()| queue.pauses_after_batch(gap)).to_vec();
        assert_eq!(pauses(REST + TICK), [2, 2, 2, 2, 1, 1], "batches of {items}");
        assert_eq!(pauses(REST), [2; 6], "a rest would gather items");
        assert_eq!(pauses(2 * REST), [2, 2, 2, 1, 1, 1]);
    }
}

/// A partition that was busy is ready once more without an item. No other thread takes it over for
/// that.
#[test]
fn an_idle_thread_takes_large_segments_back() {
    let config = Config { buffer_size: 100_000, ..up_to(10_000) };
    let mut queue = Queue::without_delay(config, 0);
    for _ in 0..2 {
        queue.put_many(600);
        assert_eq!(queue.task.cycle(), Cycle::Worked);
    }
    let flow = queue.flow.clone();
    let partition = flow.route.partition(0);
    assert!(partition.is_ready());
    assert!(!Control::is_held_up(partition, false));
    queue.task.cycle();
    assert!(!partition.is_ready());
}

/// A turn that takes a large segment back would end the suppression of notifications.
#[test]
fn a_partition_whose_items_linger_keeps_no_large_segment() {
    let mut queue = Queue::new(Config { buffer_size: 100_000, ..up_to(10_000) }, 0);
    for batches in 1..=3 {
        queue.put_many(600);
        queue.task.cycle();
        assert!(!queue.flow.route.partition(0).is_ready());
        assert_eq!(queue.after(DELAY).len(), batches);
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a configuration that retries forever, after each `backoff`.
fn patient(backoff: Duration) -> Config {
    let retry = RetryPolicy {
        attempts: None,
        backoff,
        factor: 1.0,
        max_backoff: backoff,
        ..RetryPolicy::default()
    };
    Config { retry: Some(retry), ..up_to(2) }
}

impl Queue {
    /// Advances the clock, and returns the number of calls so far.
    fn calls_after(&mut self, time: Duration) -> usize {
        self.after(time).len()
    }
}

#[test]
fn a_shutdown_tries_after_each_back_off_and_once_more_just_before_its_deadline() {
    let backoff = Duration::from_secs(3);
    let mut queue = Queue::without_delay(patient(backoff), 4);
    queue.put(SHORT, 7..9);
    let (flow, control) = (queue.flow.clone(), queue.control.clone());
    let deadline = Some(now() + Duration::from_secs(10));
    let _time = flow.ending.deadlines.begin(deadline);
    control.close();
    for calls in 1..4 {
        assert_eq!(queue.calls_after(just_before(backoff)), calls);
        assert_eq!(queue.calls_after(TICK), calls + 1);
    }
    assert_eq!(queue.calls_after(just_before(Duration::from_millis(900))), 4);
    assert_eq!(queue.calls_after(TICK), 5);
    let counts = flow.threads[0].tally.counts();
    assert_eq!((counts.consumed, counts.failed), (2, 0));
    assert!(flow.ending.is_over());
}

#[test]
fn what_fails_just_before_the_deadline_has_failed() {
    let mut queue = Queue::without_delay(patient(HOUR), usize::MAX);
    queue.put(SHORT, 7..9);
    let (flow, control) = (queue.flow.clone(), queue.control.clone());
    let _time = flow.ending.deadlines.begin(Some(now() + Duration::from_secs(10)));
    control.close();
    assert_eq!(queue.calls_after(Duration::from_millis(9_900)), 2);
    assert_eq!(flow.threads[0].tally.counts().failed, 2);
    assert!(flow.ending.is_over());
}

#[test]
fn without_a_deadline_a_closed_queue_waits_for_the_end_of_each_back_off() {
    let mut queue = Queue::without_delay(patient(HOUR), 2);
    queue.put(SHORT, 7..9);
    let (flow, control) = (queue.flow.clone(), queue.control.clone());
    let _time = flow.ending.deadlines.begin(None);
    control.close();
    assert_eq!(queue.calls_after(just_before(HOUR)), 1);
    assert_eq!(queue.calls_after(TICK), 2);
    assert_eq!(queue.calls_after(HOUR), 3);
    assert!(flow.ending.is_over());
}

#[test]
fn a_deadline_that_comes_nearer_moves_the_last_try() {
    let mut queue = Queue::without_delay(patient(HOUR), 1);
    queue.put(SHORT, 7..9);
    let (flow, control) = (queue.flow.clone(), queue.control.clone());
    let _long = flow.ending.deadlines.begin(Some(now() + Duration::from_secs(60)));
    control.close();
    assert_eq!(queue.calls_after(Duration::from_secs(30)), 1);
    let _short = flow.ending.deadlines.begin(Some(now() + Duration::from_secs(1)));
    flow.ending.deadlines.publish_news();
    assert_eq!(queue.calls_after(just_before(Duration::from_millis(900))), 1);
    assert_eq!(queue.calls_after(TICK), 2);
    assert!(flow.ending.is_over());
}

#[test]
fn a_queue_that_is_closed_to_outside_threads_keeps_to_the_announced_deadline() {
    let mut queue = Queue::without_delay(patient(HOUR), 1);
    queue.put(SHORT, 7..9);
    queue.control.close_to_outside(Some(now() + Duration::from_secs(1)));
    assert_eq!(queue.calls_after(just_before(Duration::from_millis(900))), 1);
    assert_eq!(queue.calls_after(TICK), 2);
    assert!(!queue.flow.ending.is_closing());
}
