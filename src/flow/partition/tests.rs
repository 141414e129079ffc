//! Compares a partition with a model, call by call: signals, stops, order, counts, the ready bit,
//! the bound, the put times.

use std::collections::VecDeque;
use std::ops::Range;

use proptest::prelude::*;

use crate::flow::partition::lanes::Lanes;
use crate::flow::partition::ready::ReadySet;
use crate::flow::partition::{Access, Attempt, Partition, Stop};
use crate::flow::segments::{
    PutTime, Segment, SegmentCache, SegmentPool, TakenSegments, kept_capacity, segment_size,
};
use crate::item::{Item, TypeKey};
use crate::sync::{Arc, Duration, Instant};
use crate::testing::clock::StoppedClock;
use crate::threads::park::Signal;

/// Consecutive numbers, each of weight 1.
#[derive(Debug, Clone, PartialEq)]
struct Numbers(Range<u64>);

impl Item for Numbers {
    fn type_key(&self) -> TypeKey {
        TypeKey(1)
    }

    fn weight(&self) -> usize {
        usize::try_from(self.0.end - self.0.start).unwrap()
    }

    fn cut(self, weight: usize) -> (Self, Self) {
        let at = self.0.start + weight as u64;
        (Self(self.0.start..at), Self(at..self.0.end))
    }
}

fn single(number: u64) -> Numbers {
    Numbers(number..number + 1)
}

#[derive(Debug, Clone)]
enum Action {
    /// This many single puts, from a drain thread or from outside; the first that finds no room is
    /// retried after a take.
    Put(usize, bool),
    /// This many puts in one run.
    PutRun(usize, bool),
    /// One item of this weight, in pieces of at least this weight.
    PutWeighted(usize, usize, bool),
    /// A take of at least this many items, if there are enough.
    Take(usize),
    Restrict(Access),
}

fn action(buffer_size: usize) -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => (0..buffer_size + 2, any::<bool>())
            .prop_map(|(puts, inside)| Action::Put(puts, inside)),
        4 => (0..buffer_size + 2, any::<bool>())
            .prop_map(|(run, inside)| Action::PutRun(run, inside)),
        3 => (1..2 * buffer_size + 2, 0..buffer_size + 1, any::<bool>())
            .prop_map(|(weight, least, inside)| Action::PutWeighted(weight, least, inside)),
        6 => (1..buffer_size + 3).prop_map(Action::Take),
        1 => prop_oneof![Just(Access::DrainThreads), Just(Access::Closed)]
            .prop_map(Action::Restrict),
    ]
}

fn case() -> impl Strategy<Value = (usize, usize, Vec<Action>)> {
    prop_oneof![1..10_usize, 1..900_usize].prop_flat_map(|buffer_size| {
        (Just(buffer_size), 1..300_usize, prop::collection::vec(action(buffer_size), 1..60))
    })
}

/// A partition and its model.
struct Both {
    partition: Partition<Numbers>,
    buffer_size: usize,
    /// Each number, and its put time.
    queued: VecDeque<(u64, PutTime)>,
    /// Advances with each call.
    clock: StoppedClock,
    access: Access,
    /// The put time of the first item of the segment taken last.
    last_segment_at: PutTime,
    next: u64,
    attempts: u64,
    pushed: u64,
    taken: u64,
    refused: u64,
    segment_cache: SegmentCache<Numbers>,
}

impl Both {
    fn new(buffer_size: usize, max_batch_items: usize) -> Self {
        let bit = ReadySet::new().add(0);
        let segment = segment_size(buffer_size, max_batch_items);
        let pool = Arc::new(SegmentPool::new(segment));
        Self {
            partition: Partition::new(0, bit, buffer_size, segment, pool.clone()),
            buffer_size,
            queued: VecDeque::new(),
            clock: StoppedClock::stop(),
            access: Access::Open,
            last_segment_at: PutTime::default(),
            next: 0,
            attempts: 0,
            pushed: 0,
            taken: 0,
            refused: 0,
            segment_cache: SegmentCache::new(pool),
        }
    }

    /// Returns what would stop a put now.
    fn stop(&self, inside: bool) -> Option<Stop> {
        let limit = if inside { Access::DrainThreads } else { Access::Open };
        let full = (self.queued.len() == self.buffer_size).then_some(Stop::Full);
        if self.access > limit { Some(Stop::Closed) } else { full }
    }

    /// Records that `put` items were put. Returns the expected signal.
    fn pushed(&mut self, put: usize) -> Signal {
        let (before, half) = (self.queued.len(), self.buffer_size.div_ceil(2));
        for _ in 0..put {
            self.queued.push_back((self.next, PutTime::now()));
            self.next += 1;
            self.pushed += 1;
        }
        match (before..before + put).any(|queued| queued + 1 == half) {
            true => Signal::Pressure,
            false if before == 0 && put > 0 => Signal::FirstItem,
            false => Signal::Nothing,
        }
    }

    fn put(&mut self, inside: bool) -> bool {
        self.attempts += 1;
        let stop = self.stop(inside);
        match self.partition.put(single(self.next), || inside) {
            Ok(signal) => {
                assert_eq!(stop, None);
                assert_eq!(signal, self.pushed(1));
                true
            }
            Err(back) => {
                assert_eq!(Some(back), stop.map(|stop| (single(self.next), stop)));
                false
            }
        }
    }

    /// Retries a put that found no room, after a take has made some.
    fn put_again(&mut self, inside: bool) {
        if self.stop(inside) == Some(Stop::Full) {
            self.take(1);
            let signal = self.partition.put_again(single(self.next), inside);
            assert_eq!(signal, Ok(self.pushed(1)));
        }
    }

    fn put_run(&mut self, run: usize, inside: bool) {
        let stop = self.stop(inside);
        let room = if stop.is_none() { self.buffer_size - self.queued.len() } else { 0 };
        let expected = stop.or(Some(Stop::Full)).filter(|_| run > room);
        let mut many = self.partition.run(inside);
        let (mut put, mut stopped) = (0, None);
        while put < run && stopped.is_none() {
            match many.check(|| TypeKey(0)) {
                Ok(()) => {
                    many.put(single(self.next + put as u64));
                    put += 1;
                }
                Err(stop) => {
                    many.count_delayed();
                    stopped = Some(stop);
                }
            }
        }
        let signal = many.end();
        assert_eq!((put, stopped), (run.min(room), expected));
        assert_eq!(signal, self.pushed(put));
        self.attempts += put as u64 + u64::from(stopped.is_some());
    }

    /// Puts one item of this weight, or the part of it that finds room; the rest is put after a
    /// take, or given up.
    fn put_weighted(&mut self, weight: usize, least: usize, inside: bool) {
        let whole = Numbers(self.next..self.next + weight as u64);
        let stop = self.stop(inside).filter(|stop| *stop == Stop::Closed);
        let room = self.buffer_size - self.queued.len();
        let put = match () {
            () if stop.is_some() => 0,
            () if weight <= room => weight,
            () if room >= least.max(1) => room,
            () => 0,
        };
        let (signal, rest) = self.partition.put_weighted(whole, least, Attempt::New, inside);
        let left = Numbers(self.next + put as u64..self.next + weight as u64);
        assert_eq!(rest, (put < weight).then_some((left, stop.unwrap_or(Stop::Full))));
        assert_eq!(signal, self.pushed(put));
        self.attempts += weight as u64;
        if let Some((rest, Stop::Full)) = rest {
            self.take(usize::MAX);
            let put = rest.weight().min(self.buffer_size);
            let (signal, left) = self.partition.put_weighted(rest, 1, Attempt::Again, inside);
            assert_eq!(signal, self.pushed(put));
            let given_up = left.map_or(0, |(left, _)| left.weight());
            self.partition.refuse(given_up);
            self.refused += given_up as u64;
        } else if let Some((rest, Stop::Closed)) = rest {
            self.partition.refuse(rest.weight());
            self.refused += rest.weight() as u64;
        }
    }

    fn take(&mut self, budget: usize) {
        let mut segments = TakenSegments::new();
        self.partition.begin_take();
        let taken = self.partition.take(budget, &mut segments, &mut self.segment_cache);
        self.partition.make_room(&mut Lanes::new(), taken.may_be_awaited);
        assert!(taken.items >= budget.min(self.queued.len()));
        for Segment { mut items, weight, put_at } in segments {
            assert_eq!(items.iter().map(Item::weight).sum::<usize>(), weight);
            assert_eq!(self.queued.front().map(|(_, time)| *time), Some(put_at));
            for number in items.drain(..).flat_map(|numbers| numbers.0) {
                let expected = self.queued.pop_front().map(|(number, _)| number);
                assert_eq!(Some(number), expected);
                self.last_segment_at = put_at;
                self.taken += 1;
            }
            self.segment_cache.keep(items);
        }
    }

    fn compare(&self) {
        let counts = self.partition.counts();
        assert_eq!(
            (counts.attempts, counts.pushed, counts.taken),
            (self.attempts, self.pushed, self.taken)
        );
        assert_eq!(counts.refused, self.refused);
        assert!(
            self.queued.is_empty() || self.partition.is_ready(),
            "an item is queued, but the ready bit is not set"
        );
        let oldest = self.queued.front().map(|(_, time)| Instant::from(*time));
        let known = self.partition.oldest_put();
        let segment_before = Instant::from(self.last_segment_at);
        assert!(known == oldest || known == Some(segment_before) && oldest.is_some());
        assert_eq!(self.partition.is_pressed(), self.queued.len() >= self.buffer_size.div_ceil(2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_call_matches_the_model((buffer_size, max_batch_items, actions) in case()) {
        let mut both = Both::new(buffer_size, max_batch_items);
        for action in actions {
            match action {
                Action::Put(puts, inside) => {
                    if !(0..puts).all(|_| both.put(inside)) {
                        both.put_again(inside);
                    }
                }
                Action::PutRun(run, inside) => both.put_run(run, inside),
                Action::PutWeighted(weight, least, inside) => {
                    both.put_weighted(weight, least, inside);
                }
                Action::Take(budget) => both.take(budget),
                Action::Restrict(access) => {
                    both.access = both.access.max(access);
                    both.partition.restrict(access);
                }
            }
            both.compare();
            both.clock.advance(Duration::from_nanos(1));
        }
    }
}

/// Puts into a partition whose only batch lacks nine items: later items belong to the next batch,
/// which has its own age.
#[test]
fn a_segment_ends_where_a_batch_does_that_waits_for_it() {
    type Puts = fn(&Partition<Numbers>, usize);
    let (single, run, weighted): (Puts, Puts, Puts) = (
        |partition, items| assert!((0..items).all(|_| partition.put(single(0), || false).is_ok())),
        |partition, items| {
            let mut run = partition.run(false);
            for _ in 0..items {
                run.check(|| TypeKey(1)).unwrap();
                run.put(single(0));
            }
            run.end();
        },
        |partition, items| {
            partition.put_weighted(Numbers(0..items as u64), 1, Attempt::New, false);
        },
    );
    // The rest of an item that ends one batch and begins another is as old as the item.
    for (put, expected) in [(single, [9, 5]), (run, [9, 5]), (weighted, [7, 7])] {
        let (clock, pool) = (StoppedClock::stop(), Arc::new(SegmentPool::new(100)));
        let partition = Partition::new(0, ReadySet::new().add(0), 1_000, 100, pool.clone());
        partition.let_linger();
        partition.suppress_notifications(9, 0, || true);
        for items in [4, 3, 5, 2] {
            put(&partition, items);
            clock.advance(Duration::from_nanos(1));
        }
        let (mut segments, mut segment_cache) = (TakenSegments::new(), SegmentCache::new(pool));
        partition.take(usize::MAX, &mut segments, &mut segment_cache);
        let weights: Vec<_> = segments.iter().map(|segment| segment.weight).collect();
        assert_eq!(weights, expected);
        let [first, second] = [0, 1].map(|at| Instant::from(segments[at].put_at));
        assert_eq!(second - first, Duration::from_nanos(2));
    }
}

/// A turn that takes nothing may find no lanes, but items that an earlier one left at its budget.
#[test]
fn a_closed_partition_is_finished_only_when_it_is_empty() {
    let mut both = Both::new(12, 3);
    assert!((0..7).all(|_| both.put(false)));
    both.partition.restrict(Access::Closed);
    assert!(!both.partition.finish());
    both.take(3);
    assert!(!both.partition.finish());
    both.take(usize::MAX);
    assert!(both.partition.finish());
    assert!(!both.partition.finish(), "once");
}

/// An item of one kibibyte.
struct Large([u8; 1_024]);

impl Item for Large {
    fn type_key(&self) -> TypeKey {
        TypeKey(1)
    }
}

#[test]
fn a_take_leaves_little_memory_behind() {
    for items in [1, 100, 256, 300, 512] {
        let pool = Arc::new(SegmentPool::new(256));
        let partition = Partition::new(0, ReadySet::new().add(0), 1_000, 256, pool.clone());
        for _ in 0..items {
            assert!(partition.put(Large([0; 1_024]), || false).is_ok());
        }
        let (mut segments, mut segment_cache) = (TakenSegments::new(), SegmentCache::new(pool));
        segment_cache.keep(Vec::with_capacity(256));
        partition.begin_take();
        assert_eq!(partition.take(usize::MAX, &mut segments, &mut segment_cache).items, items);
        assert!(!partition.is_ready());
        assert!(
            segments.iter().flat_map(|segment| &segment.items).all(|item| item.0 == [0; 1_024])
        );
        let left = partition.gate.lock().open.capacity() * size_of::<Large>();
        assert!(left <= 4_096, "{left} bytes after {items} items");
    }
}

#[test]
fn a_busy_partition_keeps_a_full_segment_until_a_turn_finds_nothing() {
    let pool = Arc::new(SegmentPool::new(512));
    let partition = Partition::new(0, ReadySet::new().add(0), 10_000, 512, pool.clone());
    let mut segment_cache = SegmentCache::new(pool);
    let turn = |segment_cache: &mut SegmentCache<Numbers>, items: usize| {
        for _ in 0..items {
            assert!(partition.put(Numbers(0..1), || false).is_ok());
        }
        partition.begin_take();
        let mut segments = TakenSegments::new();
        assert_eq!(partition.take(usize::MAX, &mut segments, segment_cache).items, items);
        (partition.gate.lock().open.capacity(), partition.is_ready())
    };
    let kept = kept_capacity::<Numbers>();
    assert_eq!(
        turn(&mut segment_cache, kept + 1),
        (kept, false),
        "no full-size segment exists yet"
    );
    (0..9).for_each(|_| segment_cache.keep(Vec::with_capacity(512)));
    let mut turn = |items| turn(&mut segment_cache, items);
    assert_eq!(turn(kept), (kept, false));
    assert_eq!(turn(kept + 1), (512, true));
    assert_eq!(turn(512 + 1), (512, true), "one full segment, and an item");
    assert_eq!(turn(1), (kept, false));
    assert_eq!(turn(kept + 1), (512, true));
    assert_eq!(turn(0), (kept, false));
    assert_eq!(turn(0), (kept, false));
}
