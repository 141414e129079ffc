//! The protocol as a model whose states are all visited: small queues, in every order of their
//! steps. `src/flow/ownership/README.md` describes the steps.
//!
//! The model's limits: it is sequentially consistent, so it has no fences (loom runs the real code
//! without that assumption). A rest is a sleep, and pressure wakes no thread. A search reads all
//! partitions in one step, and a wake-up is one step with the read of the owner word. The side
//! calls of handlers, weights, spare threads, permits for slow calls, hosts and growth are not
//! modelled; there is one queue, whose handler locks are reserved for no other. Circular waits are
//! not modelled either: they all change under one lock (`threads/waits.rs`). A type that comes or
//! goes has one partition. The versions of the type table are left to loom
//! (`flow/route/type_table.rs`).
//!
//! | file | holds |
//! |---|---|
//! | `explore.rs` | the search |
//! | `state.rs`, `positions.rs` | the shared state, and the position of each thread |
//! | `registry.rs` | the types and their partitions; places and partitions that change hands |
//! | `rules.rs` | the rules that the model can leave out |
//! | `world.rs` | the setup and tasks of a queue |
//! | `promises.rs` | the promises, and the good ends |
//! | `drain.rs`, `submit.rs`, `calls.rs`, `leave.rs` | the steps of a drain thread |
//! | `linger.rs`, `letters.rs` | the steps of batches that wait, and of items that fail for good |
//! | `producers.rs`, `changes.rs`, `departures.rs`, `others.rs` | the steps of all other threads |
//! | `worlds.rs`, `worlds_of_batches.rs`, `worlds_of_types.rs` | the worlds that are searched |
//!
//! `make loom` runs the tests, with optimisation. They stop at a limit of states; those of `make
//! states` do not.

mod calls;
mod changes;
mod departures;
mod drain;
mod explore;
mod leave;
mod letters;
mod linger;
mod others;
mod positions;
mod producers;
mod promises;
mod registry;
mod rules;
mod state;
mod submit;
mod world;
mod worlds;
mod worlds_of_batches;
mod worlds_of_types;

use explore::{Verdict, explore};
use rules::Rule;
use world::World;
use worlds::worlds;

/// The most states of a world.
const LIMIT: usize = 50_000;

/// The limit for a world that needs many states to break.
const MANY: usize = 400_000;

/// Returns the requested limit, which must suffice.
fn asked_for() -> Option<usize> {
    std::env::var("BATCHQUEUE_STATES").ok().map(|limit| limit.parse().unwrap())
}

#[test]
fn no_order_of_steps_breaks_a_promise() {
    for world in worlds() {
        match explore(&world, asked_for().unwrap_or(LIMIT)) {
            Verdict::Broken { promise, way } => {
                panic!("{}: {promise}:\n{}", world.name, way.join("\n"))
            }
            Verdict::Complete(states) => println!("{}: all of {states} states", world.name),
            Verdict::Cut(states) => {
                assert_eq!(asked_for(), None, "{} has more than {states} states", world.name);
                println!("{}: the first {states} states", world.name);
            }
        }
    }
}

/// A rule without which nothing breaks would not be a rule.
#[test]
fn without_each_rule_a_promise_breaks() {
    for (rule, name) in RULES {
        let world = worlds().into_iter().find(|world| world.name == name);
        let world = World { off: Some(rule), ..world.expect(name) };
        let Verdict::Broken { promise, way } = explore(&world, MANY) else {
            panic!("without {rule:?} nothing breaks in this world: {name}");
        };
        println!("without {rule:?}, {name}: {promise}, after {} steps", way.len());
    }
}

/// The rules of the model, and for each a world that needs it. `AppendToLane` is missing, because
/// the model cannot have a second lane of a type.
const RULES: [(Rule, &str); 45] = [
    (Rule::HoldHandlerLock, "two threads at one lock"),
    (Rule::TicketsAtRelease, "two threads at one lock, a close"),
    (Rule::FailedToHead, "a close, a retry"),
    (Rule::DropConsumed, "a retry of a part"),
    (Rule::ResultBit, "a retry"),
    (Rule::ResultWake, "a move"),
    (Rule::StoppedTake, "a retry"),
    (Rule::StoppedTake, "a full box of dead letters"),
    (Rule::AssignLanes, "a move between consumers, a retry"),
    (Rule::HeldCounts, "a retry beside another type, a small buffer"),
    (Rule::MarkStalled, "a stalled type"),
    (Rule::CompletedBehindLanes, "a flush"),
    (Rule::FinishWithoutLanes, "a close, a retry"),
    (Rule::RecallType, "a removal from two partitions"),
    (Rule::RecallFailed, "a removal, a long back-off"),
    (Rule::Bound, "a retry, a small buffer"),
    (Rule::NotifyWaiting, "producers that wait"),
    (Rule::CheckBeforeSleep, "one thread"),
    (Rule::BudgetBit, "batches of one item"),
    (Rule::TryBeforeDeadline, "a close with a deadline, a long back-off"),
    (Rule::AwakeForNews, "a close with a deadline, a long back-off"),
    (Rule::ClosedFlag, "a close"),
    (Rule::NotifyClosed, "a call that hangs, a close that runs out of time"),
    (Rule::CutOff, "a call that takes long, a close that runs out of time"),
    (Rule::NotifyFlush, "a flush"),
    (Rule::TakeOnlyWhenOwned, "a move"),
    (Rule::CompareExchange, "three threads, one partition"),
    (Rule::InsideBeforeCheck, "a move"),
    (Rule::MoverChecksInside, "a move"),
    (Rule::CompleteAtLeave, "a move"),
    (Rule::WaitForRetired, "a removal"),
    (Rule::TakeOver, "a call that hangs"),
    (Rule::AssignWake, "a move"),
    (Rule::EndSuppression, "a batch that becomes full"),
    (Rule::FlushEndsLinger, "a batch that waits, a flush"),
    (Rule::KeepLingering, "a batch that waits, a removal"),
    (Rule::AwakeForDeadLetters, "dead letters from two threads"),
    (Rule::MarkMixed, "a type that leaves its partition to another"),
    (Rule::SecondTypeEndsSuppression, "another type comes while a batch waits"),
    (Rule::KeyOfPlace, "a type that leaves its partition to another"),
    (Rule::OnlyAtHome, "a type that comes behind its first items"),
    (Rule::ReturnHome, "a type that comes back to its partition"),
    (Rule::WholeRound, "a type that goes and comes back twice"),
    (Rule::StayAfterReturn, "a type that goes and comes back"),
    (Rule::GoWhenSettled, "a type that goes and comes back"),
];
