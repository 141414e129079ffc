//! A breadth-first search of all states of a system: finds the shortest path to a broken promise,
//! and checks that a good end is reachable from every state.
//!
//! The second condition rules out the `stateright` crate, whose properties are about single states
//! or all paths, not about the existence of one.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::rc::Rc;

use rustc_hash::FxHashMap;

/// A system whose state changes in steps, in any order.
pub trait System {
    type State: Clone + Eq + Hash + Debug;
    type Step: Display;

    fn start(&self) -> Self::State;

    /// Calls `each` with every possible next step and the state after it.
    fn steps(&self, state: &Self::State, each: &mut dyn FnMut(Self::Step, Self::State));

    /// Returns the promise that a state breaks.
    fn broken(&self, state: &Self::State) -> Option<String>;

    /// Whether all tasks are done.
    fn is_good_end(&self, state: &Self::State) -> bool;
}

#[derive(Debug)]
pub enum Verdict {
    /// All states were visited; this is their number.
    Complete(usize),
    /// This many states were visited, without a broken promise. Reachability of good ends was not
    /// checked.
    Cut(usize),
    Broken {
        promise: String,
        way: Vec<String>,
    },
}

const NO_GOOD_END: &str = "nothing leads to a good end";

/// Visits the states of `system`, at most `limit` of them.
pub fn explore<S: System>(system: &S, limit: usize) -> Verdict {
    let mut search = Search { system, states: Vec::new(), parents: Vec::new() };
    let mut numbers: FxHashMap<Rc<S::State>, u32> = FxHashMap::default();
    let mut ways: Vec<(u32, u32)> = Vec::new();
    let start = Rc::new(system.start());
    numbers.insert(start.clone(), 0);
    search.states.push(start);
    search.parents.push(0);
    let mut at = 0;
    while at < search.states.len() {
        if let Some(promise) = system.broken(&search.states[at]) {
            return Verdict::Broken { promise, way: search.way_to(at) };
        }
        if search.states.len() >= limit {
            return Verdict::Cut(at);
        }
        let from = search.states[at].clone();
        let here = number(at);
        system.steps(&from, &mut |_, state| {
            let next = numbers.get(&state).copied().unwrap_or_else(|| {
                let (state, next) = (Rc::new(state), number(search.states.len()));
                numbers.insert(state.clone(), next);
                search.states.push(state);
                search.parents.push(here);
                next
            });
            ways.push((next, here));
        });
        at += 1;
    }
    match search.without_good_end(&mut ways) {
        Some(stuck) => {
            let mut way = search.way_to(stuck);
            way.push(format!("{:#?}", search.states[stuck]));
            Verdict::Broken { promise: NO_GOOD_END.to_owned(), way }
        }
        None => Verdict::Complete(search.states.len()),
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("more states than memory")
}

struct Search<'a, S: System> {
    system: &'a S,
    states: Vec<Rc<S::State>>,
    /// The predecessor of each state.
    parents: Vec<u32>,
}

impl<S: System> Search<'_, S> {
    /// Returns the first state from which no path leads to a good end. `ways`: to, from.
    fn without_good_end(&self, ways: &mut [(u32, u32)]) -> Option<usize> {
        ways.sort_unstable();
        let mut good: Vec<bool> =
            self.states.iter().map(|state| self.system.is_good_end(state)).collect();
        let mut left: Vec<u32> = (0..number(good.len())).filter(|&at| good[at as usize]).collect();
        while let Some(to) = left.pop() {
            let first = ways.partition_point(|&(other, _)| other < to);
            for &(_, from) in ways[first..].iter().take_while(|&&(other, _)| other == to) {
                if !std::mem::replace(&mut good[from as usize], true) {
                    left.push(from);
                }
            }
        }
        good.iter().position(|good| !good)
    }

    /// Returns the steps on the shortest path to a state.
    fn way_to(&self, state: usize) -> Vec<String> {
        let mut way = Vec::new();
        let mut at = state;
        while at != 0 {
            let parent = self.parents[at] as usize;
            let mut found = None;
            self.system.steps(&self.states[parent], &mut |what, state| {
                if state == *self.states[at] {
                    found.get_or_insert(what.to_string());
                }
            });
            way.extend(found);
            at = parent;
        }
        way.reverse();
        way
    }
}
