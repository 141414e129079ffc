//! The contents of a pipeline stage, and how it spends its time: the state behind the Python
//! classes that every chunk passes several times.
//!
//! All of this is plain data. The bindings keep it behind a lock and read the clock; Python waits.

use std::collections::VecDeque;

// `Gate`: the chunks that a stage holds, and those that wait for room, in order.

/// Rows and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// A chunk that wants to enter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// The worker that must get the chunk; `None` for any.
    pub(crate) worker: Option<usize>,
    pub(crate) size: Amount,
}

/// A waiting chunk, and the ticket to notify once it has entered.
#[derive(Debug)]
struct Waiter<T> {
    wish: Wish,
    ticket: T,
}

/// Admits chunks into a stage.
///
/// A chunk enters if the stage then holds at most `max_bytes` and the chunk's worker at most
/// `worker_rows`. An empty stage admits any chunk, and an empty worker any number of rows. A chunk
/// overtakes only chunks that wait for rows of their worker, so a large one gets its turn.
///
/// The thread that makes room hands it to waiting chunks: a chunk is inside before its thread
/// wakes, and no thread wakes in vain.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    max_bytes: u64,
    pub(crate) worker_rows: u64,
    /// The rows of each worker.
    held_rows: Vec<u64>,
    pub(crate) held: Amount,
    chunks: u64,
    pub(crate) most_bytes: u64,
    /// The worker whose turn it is.
    next: usize,
    waiting: Vec<Waiter<T>>,
}

impl<T> Gate<T> {
    pub(crate) fn new(workers: usize, max_bytes: u64, worker_rows: u64) -> Self {
        Self {
            max_bytes,
            worker_rows,
            held_rows: vec![0; workers],
            held: Amount::default(),
            chunks: 0,
            most_bytes: 0,
            next: 0,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Admits a chunk and returns its worker, or returns `None` if the chunk has to wait.
    pub(crate) fn enter(&mut self, wish: Wish) -> Option<usize> {
        let is_behind = |waiter: &Waiter<T>| self.worker_with_room(waiter.wish).is_some();
        if self.waiting.iter().any(is_behind) {
            return None;
        }
        let worker = self.worker_with_room(wish).filter(|_| self.has_bytes(wish))?;
        self.admit(wish, worker);
        Some(worker)
    }

    /// Queues a chunk behind the waiting ones. Call this only after `enter` has returned `None`.
    pub(crate) fn line_up(&mut self, wish: Wish, ticket: T) {
        self.waiting.push(Waiter { wish, ticket });
    }

    /// Frees the room of completed chunks. Returns the tickets of the chunks that enter instead,
    /// with their workers.
    pub(crate) fn leave(&mut self, size: Amount, worker: usize, chunks: u64) -> Vec<(T, usize)> {
        let rows = &mut self.held_rows[worker];
        debug_assert!(*rows >= size.rows && self.chunks >= chunks, "left twice");
        *rows = rows.saturating_sub(size.rows);
        self.held.rows = self.held.rows.saturating_sub(size.rows);
        self.held.bytes = self.held.bytes.saturating_sub(size.bytes);
        self.chunks = self.chunks.saturating_sub(chunks);
        if self.waiting.is_empty() { Vec::new() } else { self.admit_waiting() }
    }

    /// Removes all waiting chunks and returns their tickets.
    pub(crate) fn turn_away(&mut self) -> Vec<T> {
        self.waiting.drain(..).map(|waiter| waiter.ticket).collect()
    }

    /// Returns the amount that may still enter, or `None` if that is not even a row.
    pub(crate) fn free(&self) -> Option<Amount> {
        let most_rows = self.worker_rows.saturating_mul(self.held_rows.len() as u64);
        let is_full = self.chunks > 0 && self.held.bytes >= self.max_bytes;
        (self.held.rows < most_rows && !is_full).then(|| Amount {
            rows: most_rows - self.held.rows,
            bytes: self.max_bytes.saturating_sub(self.held.bytes).max(1),
        })
    }

    fn admit_waiting(&mut self) -> Vec<(T, usize)> {
        let mut entered = Vec::new();
        let mut place = 0;
        while let Some(waiter) = self.waiting.get(place) {
            let wish = waiter.wish;
            match self.worker_with_room(wish) {
                None => place += 1,
                Some(worker) if self.has_bytes(wish) => {
                    self.admit(wish, worker);
                    entered.push((self.waiting.remove(place).ticket, worker));
                }
                // This chunk waits for bytes, and those behind it wait for their turn.
                Some(_) => break,
            }
        }
        entered
    }

    fn admit(&mut self, wish: Wish, worker: usize) {
        self.next = (worker + 1) % self.held_rows.len();
        self.held_rows[worker] += wish.size.rows;
        self.chunks += 1;
        self.held.rows += wish.size.rows;
        self.held.bytes += wish.size.bytes;
        self.most_bytes = self.most_bytes.max(self.held.bytes);
    }

    fn has_bytes(&self, wish: Wish) -> bool {
        self.chunks == 0 || self.held.bytes.saturating_add(wish.size.bytes) <= self.max_bytes
    }

    fn worker_with_room(&self, wish: Wish) -> Option<usize> {
        let held = &self.held_rows;
        // Round robin, but a worker that hangs gets no more than its room.
        let worker = wish.worker.or_else(|| {
            let workers = (self.next..held.len()).chain(0..self.next);
            workers.min_by_key(|&worker| held[worker])
        })?;
        let rows = held[worker];
        let has_room = rows == 0 || rows.saturating_add(wish.size.rows) <= self.worker_rows;
        has_room.then_some(worker)
    }
}

// How threads spend their time: a total, and the share of the last seconds.
//
// Times are seconds of a monotonic clock.

const BLOCK_S: f64 = 0.25;

const BLOCKS: usize = 12;

/// Measures the time that one or more threads spend in an activity.
///
/// A span that has not ended counts as well, so a call that hangs is noticed.
#[derive(Debug)]
pub(crate) struct TimeMeter {
    threads: f64,
    total: f64,
    open: u32,
    at: f64,
    /// Times, each with the total up to then.
    marks: VecDeque<(f64, f64)>,
}

impl TimeMeter {
    pub(crate) fn new(threads: u32, now: f64) -> Self {
        let marks = VecDeque::from([(now, 0.0)]);
        Self { threads: f64::from(threads), total: 0.0, open: 0, at: now, marks }
    }

    pub(crate) fn enter(&mut self, now: f64) {
        self.advance(now);
        self.open += 1;
    }

    pub(crate) fn leave(&mut self, now: f64) {
        self.advance(now);
        self.open = self.open.saturating_sub(1);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open > 0
    }

    pub(crate) fn seconds(&mut self, now: f64) -> f64 {
        self.advance(now);
        self.total
    }

    /// Returns the share of about the last three seconds, from 0 to 1; at first, of all the time.
    pub(crate) fn share(&mut self, now: f64) -> f64 {
        self.advance(now);
        let (then, before) = self.marks.front().copied().unwrap_or((now, self.total));
        let passed = (now - then) * self.threads;
        if passed > 0.0 { ((self.total - before) / passed).min(1.0) } else { 0.0 }
    }

    fn advance(&mut self, now: f64) {
        if self.open > 0 {
            self.total += f64::from(self.open) * (now - self.at);
        }
        self.at = now;
        if self.marks.back().is_none_or(|&(last, _)| now - last >= BLOCK_S) {
            if self.marks.len() == BLOCKS {
                self.marks.pop_front();
            }
            self.marks.push_back((now, self.total));
        }
    }
}

/// A count that one or more threads raise, and its rate.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) value: u64,
    began: f64,
    /// Times, each with the count from then on.
    marks: VecDeque<(f64, u64)>,
}

impl Counter {
    pub(crate) fn new(now: f64) -> Self {
        Self { value: 0, began: now, marks: VecDeque::from([(now, 0)]) }
    }

    pub(crate) fn add(&mut self, amount: u64, now: f64) {
        self.value = self.value.saturating_add(amount);
        self.mark(now);
    }

    /// Returns the increase per second, averaged over the last three seconds.
    #[allow(clippy::cast_precision_loss)] // of counts beyond 2^53
    pub(crate) fn per_s(&mut self, now: f64) -> f64 {
        self.mark(now);
        let then = (now - Self::SPAN_S).max(self.began);
        let passed = now - then;
        let before = self.marks.front().map_or(self.value, |&(_, value)| value);
        if passed > 0.0 { (self.value - before) as f64 / passed } else { 0.0 }
    }

    #[allow(clippy::cast_precision_loss)]
    const SPAN_S: f64 = BLOCK_S * BLOCKS as f64;

    fn mark(&mut self, now: f64) {
        if self.marks.back().is_none_or(|&(last, _)| now - last >= BLOCK_S) {
            self.marks.push_back((now, self.value));
        }
        while self.marks.get(1).is_some_and(|&(second, _)| second <= now - Self::SPAN_S) {
            self.marks.pop_front();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::{Amount, Counter, Gate, TimeMeter, Wish};

    // Which chunks a gate admits, whatever their order; what meters measure.

    const MAX_BYTES: u64 = 50;

    const WORKER_ROWS: u64 = 20;

    const WORKERS: usize = 3;

    fn wish(worker: Option<usize>, rows: u64, bytes: u64) -> Wish {
        Wish { worker, size: Amount { rows, bytes } }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(Wish),
        /// Completes the chunk at this index of those inside, modulo their number.
        Complete(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let worker = proptest::option::of(0..WORKERS);
        let put = (worker, 1..30_u64, 0..80_u64)
            .prop_map(|(worker, rows, bytes)| Step::Put(wish(worker, rows, bytes)));
        let step = prop_oneof![
            4 => put,
            3 => any::<usize>().prop_map(Step::Complete),
        ];
        proptest::collection::vec(step, 1..200)
    }

    /// A gate with its own record of what is inside and what waits, in order, to check the rules.
    struct Model {
        gate: Gate<usize>,
        inside: Vec<(Wish, usize)>,
        waiting: Vec<(usize, Wish)>,
        tickets: usize,
    }

    impl Model {
        fn held(&self, worker: usize) -> u64 {
            self.inside.iter().filter(|(_, at)| *at == worker).map(|(wish, _)| wish.size.rows).sum()
        }

        fn bytes(&self) -> u64 {
            self.inside.iter().map(|(wish, _)| wish.size.bytes).sum()
        }

        fn has_worker(&self, wish: Wish) -> bool {
            let has_room = |worker| {
                let held = self.held(worker);
                held == 0 || held + wish.size.rows <= WORKER_ROWS
            };
            let least = || (0..WORKERS).min_by_key(|&worker| self.held(worker));
            wish.worker.or_else(least).is_some_and(has_room)
        }

        fn has_bytes(&self, wish: Wish) -> bool {
            self.inside.is_empty() || self.bytes() + wish.size.bytes <= MAX_BYTES
        }

        fn admit(&mut self, wish: Wish, worker: usize) {
            assert!(self.has_bytes(wish), "too many bytes");
            assert!(wish.worker.is_none_or(|wanted| wanted == worker), "the wrong worker");
            let held = self.held(worker);
            assert!(held == 0 || held + wish.size.rows <= WORKER_ROWS, "too many rows");
            self.inside.push((wish, worker));
        }

        fn admit_waiting(&mut self, entered: Vec<(usize, usize)>) {
            for (ticket, worker) in entered {
                let place = self.waiting.iter().position(|(each, _)| *each == ticket).unwrap();
                let wish = self.waiting[place].1;
                let before: Vec<Wish> =
                    self.waiting[..place].iter().map(|(_, wish)| *wish).collect();
                assert!(!before.iter().any(|wish| self.has_worker(*wish)), "overtaken");
                self.admit(wish, worker);
                self.waiting.remove(place);
            }
            // No waiting chunk could enter.
            if let Some((_, first)) = self.waiting.iter().find(|(_, wish)| self.has_worker(*wish)) {
                assert!(!self.has_bytes(*first), "forgotten");
            }
        }

        fn step(&mut self, step: &Step) {
            match *step {
                Step::Put(wish) => {
                    if let Some(worker) = self.gate.enter(wish) {
                        let is_behind = self.waiting.iter().any(|(_, each)| self.has_worker(*each));
                        assert!(!is_behind, "overtaken");
                        self.admit(wish, worker);
                    } else {
                        self.tickets += 1;
                        self.gate.line_up(wish, self.tickets);
                        self.waiting.push((self.tickets, wish));
                        self.admit_waiting(Vec::new());
                    }
                }
                Step::Complete(place) if !self.inside.is_empty() => {
                    let (wish, worker) = self.inside.swap_remove(place % self.inside.len());
                    let entered = self.gate.leave(wish.size, worker, 1);
                    self.admit_waiting(entered);
                }
                Step::Complete(_) => (),
            }
        }
    }

    proptest! {
        #[test]
        fn rows_bytes_and_turns_are_kept_whatever_comes(steps in steps()) {
            let gate = Gate::new(WORKERS, MAX_BYTES, WORKER_ROWS);
            let mut model = Model { gate, inside: Vec::new(), waiting: Vec::new(), tickets: 0 };
            for step in steps {
                model.step(&step);
                let rows = (0..WORKERS).map(|worker| model.held(worker)).sum();
                prop_assert_eq!(model.gate.held, Amount { rows, bytes: model.bytes() });
                prop_assert_eq!(model.gate.waiting(), model.waiting.len());
                let is_full = rows >= WORKER_ROWS * WORKERS as u64
                    || !model.inside.is_empty() && model.bytes() >= MAX_BYTES;
                prop_assert_eq!(model.gate.free().is_none(), is_full);
                prop_assert!(model.gate.most_bytes >= model.bytes());
                prop_assert_eq!(model.gate.worker_rows, WORKER_ROWS);
            }
            while !model.inside.is_empty() {
                model.step(&Step::Complete(0));
            }
            prop_assert!(model.waiting.is_empty(), "an empty stage admits any chunk");
        }
    }

    #[test]
    fn a_chunk_that_waits_is_inside_before_its_thread_wakes() {
        let mut gate = Gate::new(1, 100, 1_000);
        assert_eq!(gate.enter(wish(None, 1, 60)), Some(0));
        assert_eq!(gate.enter(wish(None, 2, 100)), None);
        gate.line_up(wish(None, 2, 100), "large");
        assert_eq!(gate.enter(wish(None, 1, 10)), None);
        gate.line_up(wish(None, 1, 10), "small");
        assert_eq!(gate.leave(Amount { rows: 1, bytes: 60 }, 0, 1), [("large", 0)]);
        assert_eq!(gate.held, Amount { rows: 2, bytes: 100 });
        assert_eq!(gate.leave(Amount { rows: 2, bytes: 100 }, 0, 1), [("small", 0)]);
    }

    #[test]
    fn those_that_are_turned_away_are_named_once() {
        let mut gate = Gate::new(1, 100, 10);
        assert_eq!(gate.enter(wish(None, 10, 1)), Some(0));
        gate.line_up(wish(None, 1, 1), "first");
        gate.line_up(wish(None, 1, 1), "second");
        assert_eq!(gate.turn_away(), ["first", "second"]);
        assert_eq!(gate.leave(Amount { rows: 10, bytes: 1 }, 0, 1), []);
    }

    #[test]
    #[allow(clippy::float_cmp)] // sums of quarters are exact
    fn a_meter_counts_all_threads_and_open_spans() {
        let mut meter = TimeMeter::new(4, 10.0);
        meter.enter(10.0);
        meter.enter(10.0);
        assert_eq!((meter.seconds(11.0), meter.share(11.0)), (2.0, 0.5));
        meter.leave(11.0);
        meter.leave(11.0);
        assert!(!meter.is_open());
        assert_eq!(meter.seconds(20.0), 2.0);
    }

    #[test]
    #[allow(clippy::float_cmp)]
    fn a_counter_forgets_what_is_older_than_three_seconds() {
        let mut counter = Counter::new(0.0);
        for tenth in 1..=100 {
            counter.add(10, f64::from(tenth) / 10.0);
        }
        assert_eq!(counter.value, 1_000);
        assert!((counter.per_s(10.0) - 100.0).abs() < 10.0);
        assert!(counter.per_s(13.0) < 10.0);
        assert_eq!(counter.per_s(20.0), 0.0);
    }
}
