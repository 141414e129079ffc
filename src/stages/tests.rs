//! What a gate admits, for any chunks in any order; what meters make of time.

use proptest::prelude::*;

use super::gate::{Amount, Gate, Wish};
use super::meters::{Counter, TimeMeter};

const MAX_BYTES: u64 = 50;
const WORKER_ROWS: u64 = 20;
const WORKERS: usize = 3;

fn wish(worker: Option<usize>, rows: u64, bytes: u64) -> Wish {
    Wish { worker, size: Amount { rows, bytes } }
}

#[derive(Debug, Clone)]
enum Step {
    Put(Wish),
    /// The chunk at this place of those inside, modulo their number, is completed.
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

/// Who is inside, who waits in which order, and whether the gate keeps to its rules.
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
            let before: Vec<Wish> = self.waiting[..place].iter().map(|(_, wish)| *wish).collect();
            assert!(!before.iter().any(|wish| self.has_worker(*wish)), "overtaken");
            self.admit(wish, worker);
            self.waiting.remove(place);
        }
        // Nothing waits that could enter.
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
            prop_assert_eq!(model.gate.held(), Amount { rows, bytes: model.bytes() });
            prop_assert_eq!(model.gate.waiting(), model.waiting.len());
            let is_full = rows >= WORKER_ROWS * WORKERS as u64
                || !model.inside.is_empty() && model.bytes() >= MAX_BYTES;
            prop_assert_eq!(model.gate.free().is_none(), is_full);
            prop_assert!(model.gate.most_bytes() >= model.bytes());
            prop_assert_eq!(model.gate.worker_rows(), WORKER_ROWS);
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
    assert_eq!(gate.held(), Amount { rows: 2, bytes: 100 });
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
    assert_eq!(counter.value(), 1_000);
    assert!((counter.per_s(10.0) - 100.0).abs() < 10.0);
    assert!(counter.per_s(13.0) < 10.0);
    assert_eq!(counter.per_s(20.0), 0.0);
}
