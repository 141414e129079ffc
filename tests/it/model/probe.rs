//! The handler of the model: it succeeds or fails at random, checks its callers, and calls the
//! queue.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use batchqueue::{AddHandlerError, Batch, Failure, FlushError, Handler, HandlerRef, Wait};

use super::random::Random;
use super::settings::{End, KINDS, common_kind, own_limit};
use super::world::{Ended, World};
use crate::support::{Sent, key};

/// Producer numbers of probes start here; actors' numbers are below.
pub const FIRST_PROBE: usize = 1_000;

/// A handler instance.
pub struct Probe {
    pub id: usize,
    world: Weak<World>,
    /// The types that it is registered for; empty means all types.
    kinds: Mutex<Vec<usize>>,
    handler: Mutex<Option<HandlerRef<Sent>>>,
    idles: bool,
    random: Mutex<Random>,
    inside: AtomicBool,
    fed: AtomicUsize,
    pub registered: AtomicBool,
    pub closed: AtomicUsize,
    /// Whether it has a partition to itself, as one of a factory's instances.
    pub of_factory: bool,
}

impl Probe {
    /// Creates an instance for these types, or for all types if there are none.
    pub fn new(
        world: &Arc<World>,
        kinds: &[usize],
        of_factory: bool,
        random: &mut Random,
    ) -> Arc<Self> {
        let mut probes = world.probes.lock().unwrap();
        let probe = Arc::new(Self {
            id: FIRST_PROBE + probes.len(),
            world: Arc::downgrade(world),
            kinds: Mutex::new(kinds.to_vec()),
            handler: Mutex::new(None),
            idles: random.once_in(3),
            random: Mutex::new(Random::new(random.next())),
            inside: AtomicBool::new(false),
            fed: AtomicUsize::new(0),
            registered: AtomicBool::new(false),
            closed: AtomicUsize::new(0),
            of_factory,
        });
        probes.push(probe.clone());
        probe
    }

    /// Returns the same handler on every call.
    pub fn handler(self: &Arc<Self>) -> HandlerRef<Sent> {
        self.handler
            .lock()
            .unwrap()
            .get_or_insert_with(|| HandlerRef::new(Entrance(self.clone())))
            .clone()
    }

    /// Breaks the reference cycle between the probe and its handler.
    pub fn release(&self) {
        self.handler.lock().unwrap().take();
    }

    pub fn also_for(&self, kind: usize) {
        self.kinds.lock().unwrap().push(kind);
    }

    /// Records whether its registration succeeded.
    pub fn note<E>(&self, answer: &Result<(), AddHandlerError<E>>) {
        if answer.is_ok() {
            self.registered.store(true, SeqCst);
        }
    }

    fn consume(&self, world: &Arc<World>, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        let mut items: Vec<Sent> = batch.iter().copied().collect();
        if items.len() != batch.len() || items.is_empty() {
            world.violation(format!("a batch of {} items reports {}", items.len(), batch.len()));
        }
        {
            let kinds = self.kinds.lock().unwrap();
            if !kinds.is_empty() && items.iter().any(|item| !kinds.contains(&item.kind)) {
                world.violation(format!("{} is for {kinds:?} and got {items:?}", self.id));
            }
        }
        let own = items.iter().filter_map(|item| own_limit(item.kind)).max();
        let most = world.settings.config.max_batch_items.max(own.unwrap_or(0));
        if items.len() > most {
            world.violation(format!("a call got {} items, more than {most}", items.len()));
        }
        let mut random = self.random.lock().unwrap().clone();
        if random.once_in(8) {
            self.act(world, &mut random);
        }
        let mood = random.below(40);
        let takes = Duration::from_millis(random.pick(&[2, 30, 120]));
        let is_slow = world.settings.has_slow_calls && random.once_in(60);
        *self.random.lock().unwrap() = random;
        if is_slow {
            std::thread::sleep(takes);
        }
        if mood < 4 {
            (0..50).for_each(|_| std::thread::yield_now());
        }
        let failure = match mood {
            4 | 5 => Some(Failure::new("not now")),
            6 => Some(Failure::last("never")),
            8 | 9 => {
                // The rest fails, so consumed items stay in order.
                let handled = items.len() / 2;
                self.end(world, &items[..handled], true);
                let failed: Vec<usize> = (handled..items.len()).collect();
                batch.keep(&failed);
                items.drain(..handled);
                Some(Failure::of_rest("some not now"))
            }
            7 => {
                self.end(world, &items, false);
                // A panic without the panic hook's message.
                std::panic::resume_unwind(Box::new("in a panic"));
            }
            _ => None,
        };
        match failure {
            Some(failure) if failure.retry && !batch.is_last_attempt() => {
                world.between_tries.lock().unwrap().extend(items.iter().map(name));
                Err(failure)
            }
            failure => {
                self.end(world, &items, failure.is_none());
                if mood.is_multiple_of(2) && mood != 8 {
                    drop(batch.drain());
                }
                failure.map_or(Ok(()), Err)
            }
        }
    }

    /// Records the outcome of items that will not be handled again.
    fn end(&self, world: &World, items: &[Sent], consumed: bool) {
        let mut between_tries = world.between_tries.lock().unwrap();
        for item in items {
            between_tries.remove(&name(item));
        }
        drop(between_tries);
        for run in items.chunk_by(|item, next| item.kind == next.kind) {
            let ended = run.iter().map(|&item| Ended { item, consumed, probe: self.id });
            world.ended[run[0].kind].lock().unwrap().extend(ended);
        }
    }

    /// Makes a control call, or produces an item, from inside the handler.
    fn act(&self, world: &Arc<World>, random: &mut Random) {
        let Some(queue) = world.queue() else { return };
        match random.below(12) {
            0 => drop(queue.rebalance()),
            1 => drop(queue.remove_handler(key(common_kind(random)))),
            2 => {
                let kind = common_kind(random);
                let next = Self::new(world, &[kind], false, random);
                next.note(&queue.add_handler(key(kind), next.handler()));
            }
            3 => {
                if queue.flush(None, &mut Wait) != Err(FlushError::FromDrainThread) {
                    world.violation("a flush inside a handler was not refused");
                }
            }
            4 => drop(queue.stats()),
            5 if world.settings.end == End::FromHandler && random.once_in(4) => {
                // Returns immediately, whatever is left to do.
                if queue.shutdown(None) != 0 {
                    world.violation("a shutdown inside a handler abandoned items");
                }
            }
            _ => {
                let number = self.fed.fetch_add(1, SeqCst);
                world.feed(&queue, random.below(KINDS), self.id, number);
            }
        }
    }

    /// Wraps every call: checks that no other call is inside, and that none comes after `on_close`.
    fn watch<R>(&self, call: &str, body: impl FnOnce(&Arc<World>) -> R) -> Option<R> {
        let world = self.world.upgrade()?;
        if self.inside.swap(true, SeqCst) {
            world.violation(format!("{call} of {} while another call was inside", self.id));
        }
        if self.closed.load(SeqCst) > 0 {
            world.violation(format!("{call} of {} after its on_close", self.id));
        }
        let leave = Leave(&self.inside);
        let result = body(&world);
        drop(leave);
        Some(result)
    }
}

/// Marks the call's end, even if it panics.
struct Leave<'a>(&'a AtomicBool);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Returns a name that is unique to the item.
fn name(item: &Sent) -> (usize, usize, usize) {
    (item.kind, item.producer, item.number)
}

struct Entrance(Arc<Probe>);

impl Handler<Sent> for Entrance {
    fn consume(&self, batch: &mut Batch<Sent>) -> Result<(), Failure> {
        self.0.watch("consume", |world| self.0.consume(world, batch)).unwrap_or(Ok(()))
    }

    fn has_on_idle(&self) -> bool {
        self.0.idles
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.0.watch("on_idle", |_| std::thread::yield_now());
        if self.0.id.is_multiple_of(2) { Ok(()) } else { Err(Failure::new("idle")) }
    }

    fn on_close(&self) -> Result<(), Failure> {
        self.0.watch("on_close", |_| std::thread::yield_now());
        self.0.closed.fetch_add(1, SeqCst);
        if self.0.id.is_multiple_of(2) { Ok(()) } else { Err(Failure::new("closed")) }
    }

    fn name(&self) -> String {
        format!("probe {}", self.0.id)
    }
}
