//! The handler of dead letters of the model: it succeeds or fails at random.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

use batchqueue::{Batch, DeadLetters, Failure, Handler, HandlerRef};

use super::random::Random;
use super::world::World;
use crate::support::Sent;

/// The kept letters, by type, producer and number: whether the call succeeded.
pub type Kept = HashMap<(usize, usize, usize), bool>;

pub struct Keeper {
    world: Weak<World>,
    random: Mutex<Random>,
    inside: AtomicBool,
}

impl Keeper {
    pub fn handler(world: &Arc<World>, random: &mut Random) -> HandlerRef<Sent> {
        HandlerRef::new(Self {
            world: Arc::downgrade(world),
            random: Mutex::new(Random::new(random.next())),
            inside: AtomicBool::new(false),
        })
    }
}

impl Handler<Sent> for Keeper {
    fn consume(&self, _batch: &mut Batch<Sent>) -> Result<(), Failure> {
        Err(Failure::last("it gets dead letters only"))
    }

    fn consume_dead_letters(&self, letters: &mut Vec<DeadLetters<Sent>>) -> Result<(), Failure> {
        let Some(world) = self.world.upgrade() else { return Ok(()) };
        if self.inside.swap(true, SeqCst) {
            world.violation("two threads keep dead letters");
        }
        let mood = self.random.lock().unwrap().below(12);
        let mut kept = world.kept.lock().unwrap();
        for letter in letters.iter() {
            if letter.attempts == 0 || letter.items.is_empty() {
                world.violation(format!("an empty letter: {letter:?}"));
            }
            for item in letter.items.iter() {
                let name = (item.kind, item.producer, item.number);
                if kept.insert(name, mood > 1).is_some() {
                    world.violation(format!("{item:?} was kept twice"));
                }
            }
        }
        drop(kept);
        if mood < 4 {
            (0..50).for_each(|_| std::thread::yield_now());
        }
        self.inside.store(false, SeqCst);
        match mood {
            0 => Err(Failure::new("no room")),
            1 => std::panic::resume_unwind(Box::new("in a panic")),
            _ => Ok(()),
        }
    }
}
