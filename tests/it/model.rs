//! Random actions of several threads against the real queue and a model of it, which is just lists
//! of the accepted items and of the items that each handler received.
//!
//! Every run has a seed, which determines the queue's settings and each actor's steps; the system's
//! scheduling does the rest. To run a single seed: `BATCHQUEUE_MODEL_SEED=<seed>
//! BATCHQUEUE_MODEL_ACTIONS=1`. To run more actions: `BATCHQUEUE_MODEL_ACTIONS=10000000`, or `make
//! soak`.

mod actor;
mod check;
mod keeper;
mod probe;
mod random;
mod settings;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use batchqueue::{BatchQueue, ThreadPolicy};

use crate::support::{PATIENCE, Sent, wait_until};
use actor::{ACTIONS, Action, Actor};
use check::check;
use keeper::Keeper;
use probe::Probe;
use random::Random;
use settings::{ACTORS, End, Mode, Settings};
use world::World;

const ACTIONS_IN_CI: usize = 100_000;
const STEPS: usize = 250;
/// Concurrent runs, so that queues share pools and the control thread.
const LANES: usize = 2;

fn from_environment(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

fn start(world: &Arc<World>, random: &mut Random) -> Arc<BatchQueue<Sent>> {
    let settings = &world.settings;
    let mut builder = BatchQueue::builder("model", settings.config.clone());
    if let Some(threads) = settings.pool {
        builder = builder.shared_scheduler("model", ThreadPolicy::Fixed(threads));
    }
    let consumer = |world: &Arc<World>, random: &mut Random| {
        let probe = Probe::new(world, &[], false, random);
        probe.registered.store(true, SeqCst);
        probe.handler()
    };
    if settings.has_keeper {
        builder = builder.dead_letter(Keeper::handler(world, random));
    }
    builder = match settings.mode {
        Mode::Handlers => builder,
        Mode::OneConsumer => builder.consumer(consumer(world, random)),
        Mode::ConsumerPerThread => {
            let (world, mut random) = (world.clone(), Random::new(random.next()));
            builder.consumer_per_thread(move |_| consumer(&world, &mut random))
        }
    };
    let queue = Arc::new(builder.start().unwrap());
    world.meet(&queue);
    queue
}

/// Three threads shut the queue down concurrently, and agree on the number of abandoned items.
fn end(world: &World, queue: &BatchQueue<Sent>, random: &mut Random) {
    let in_time = Instant::now() + PATIENCE;
    let out_of_time = Instant::now() + Duration::from_micros(random.next() % 500);
    std::thread::scope(|scope| {
        let shutdowns: Vec<_> = (0..3)
            .map(|index| {
                let deadline =
                    if world.may_run_out_of_time() && index == 0 { out_of_time } else { in_time };
                scope.spawn(move || queue.shutdown(Some(deadline)))
            })
            .collect();
        let abandoned: Vec<u64> =
            shutdowns.into_iter().map(|shutdown| shutdown.join().unwrap()).collect();
        let counted = queue.stats().abandoned;
        if abandoned.iter().any(|number| *number != counted) {
            world.violation(format!("shutdowns returned {abandoned:?}, and {counted} are counted"));
        }
    });
    wait_until("the drain threads to end", || queue.has_ended());
}

fn run(seed: u64) -> [usize; ACTIONS.len()] {
    let mut random = Random::new(seed);
    let world = Arc::new(World::new(Settings::of(&mut random)));
    let queue = start(&world, &mut random);
    let shutdown_by =
        (world.settings.end == End::MidRun).then(|| (random.below(ACTORS), random.below(STEPS)));
    let done = std::thread::scope(|scope| {
        let actors: Vec<_> = (0..ACTORS)
            .map(|index| {
                let actor = Actor::new(index, &world, &queue, Random::new(random.next()));
                let shutdown_at =
                    shutdown_by.filter(|(actor, _)| *actor == index).map(|(_, step)| step);
                scope.spawn(move || actor.run(STEPS, shutdown_at))
            })
            .collect();
        let done: Vec<_> = actors.into_iter().map(|actor| actor.join().unwrap()).collect();
        std::array::from_fn(|action| done.iter().map(|counts| counts[action]).sum())
    });
    end(&world, &queue, &mut random);
    check(&world, &queue);
    for probe in world.probes.lock().unwrap().drain(..) {
        probe.release();
    }
    done
}

/// P1, P2, P3, P5, P9.
#[test]
fn random_actions_keep_every_promise() {
    let wanted = from_environment("BATCHQUEUE_MODEL_ACTIONS", ACTIONS_IN_CI);
    let first = from_environment("BATCHQUEUE_MODEL_SEED", 1) as u64;
    let next = AtomicU64::new(first);
    let counts: [AtomicUsize; ACTIONS.len()] = Default::default();
    let total = || counts.iter().map(|count| count.load(SeqCst)).sum::<usize>();
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while total() < wanted {
                    let seed = next.fetch_add(1, SeqCst);
                    let done =
                        catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
                            eprintln!(
                                "reproduce: BATCHQUEUE_MODEL_SEED={seed} BATCHQUEUE_MODEL_ACTIONS=1"
                            );
                            resume_unwind(panic)
                        });
                    counts
                        .iter()
                        .zip(done)
                        .for_each(|(count, done)| _ = count.fetch_add(done, SeqCst));
                }
            });
        }
    });
    let counts = counts.map(AtomicUsize::into_inner);
    let total: usize = counts.iter().sum();
    println!("{total} actions in {} runs from seed {first}: {counts:?}", next.into_inner() - first);
    if wanted >= ACTIONS_IN_CI {
        assert!(
            counts[Action::Produce as usize] * 2 <= total,
            "more than half of the actions are single produces: {counts:?}"
        );
        assert!(counts.iter().all(|count| *count > 0), "some action never occurred: {counts:?}");
    }
}
