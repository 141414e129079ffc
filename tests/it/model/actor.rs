//! A thread that performs random actions on the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use batchqueue::{AddHandlerError, BatchQueue, HandledType, Selector};

use super::probe::Probe;
use super::random::Random;
use super::settings::{KINDS, Mode, common_kind, own_limit, private_kind, spread_kind};
use super::world::{Hung, Impatient, World};
use crate::support::{PATIENCE, Sent, key, sent};

/// What an actor can do. [`ACTIONS`] lists the frequency of each action, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Produce,
    ProduceMany,
    AddPrivate,
    ShareInstance,
    RemovePrivate,
    AddCommon,
    RemoveCommon,
    AddFactory,
    Rebalance,
    Flush,
    Stats,
    Shutdown,
}

pub const ACTIONS: [(Action, usize); 12] = [
    (Action::Produce, 42),
    (Action::ProduceMany, 22),
    (Action::AddPrivate, 4),
    (Action::ShareInstance, 2),
    (Action::RemovePrivate, 3),
    (Action::AddCommon, 4),
    (Action::RemoveCommon, 3),
    (Action::AddFactory, 2),
    (Action::Rebalance, 9),
    (Action::Flush, 3),
    (Action::Stats, 6),
    // Only at the step that the settings choose, see `Actor::run`.
    (Action::Shutdown, 0),
];

/// Items of an actor that may go to any partition, so that their order cannot be checked, have a
/// separate producer number.
const UNORDERED: usize = 100;

pub fn is_ordered(producer: usize) -> bool {
    !(UNORDERED..2 * UNORDERED).contains(&producer)
}

pub struct Actor<'a> {
    pub index: usize,
    pub world: &'a Arc<World>,
    pub queue: &'a Arc<BatchQueue<Sent>>,
    pub random: Random,
    pub number: usize,
    /// The probe that handles each type that only this actor registers.
    pub own: Vec<Option<Arc<Probe>>>,
    pub done: [usize; ACTIONS.len()],
}

impl<'a> Actor<'a> {
    pub fn new(
        index: usize,
        world: &'a Arc<World>,
        queue: &'a Arc<BatchQueue<Sent>>,
        random: Random,
    ) -> Self {
        Self {
            index,
            world,
            queue,
            random,
            number: 0,
            own: vec![None; KINDS],
            done: [0; ACTIONS.len()],
        }
    }

    /// `shutdown_at` is the step at which this actor shuts the queue down.
    pub fn run(mut self, steps: usize, shutdown_at: Option<usize>) -> [usize; ACTIONS.len()] {
        for step in 0..steps {
            if self.world.is_wrong() {
                break;
            }
            let mut draw = self.random.below(100);
            let mut action = Action::Shutdown;
            if shutdown_at != Some(step) {
                for (candidate, weight) in ACTIONS {
                    if draw < weight {
                        action = candidate;
                        break;
                    }
                    draw -= weight;
                }
            }
            self.act(action);
            self.done[action as usize] += 1;
        }
        self.done
    }

    fn item(&mut self, kind: usize, producer: usize) -> Sent {
        self.number += 1;
        sent(kind, producer, self.number)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Produce => {
                let kind = self.random.below(KINDS);
                let item = self.item(kind, self.index);
                self.world.produce(self.queue, item);
            }
            Action::ProduceMany => self.produce_many(),
            Action::AddPrivate => {
                let kind = private_kind(self.index, &mut self.random);
                let probe = Probe::new(self.world, &[kind], false, &mut self.random);
                if self.add(kind, &probe) {
                    self.own[kind] = Some(probe);
                }
            }
            Action::ShareInstance => self.share_instance(),
            Action::RemovePrivate => self.remove_private(),
            Action::AddCommon => {
                let kind = common_kind(&mut self.random);
                let probe = Probe::new(self.world, &[kind], false, &mut self.random);
                self.add(kind, &probe);
            }
            Action::RemoveCommon => {
                let kind = common_kind(&mut self.random);
                self.remove(kind);
            }
            Action::AddFactory => self.add_factory(),
            Action::Rebalance => drop(self.queue.rebalance()),
            Action::Flush => {
                let reached = self.queue.flush(None, &mut Impatient::default());
                if reached != Ok(true) {
                    self.world.violation(format!("flush: {reached:?}"));
                }
            }
            Action::Stats => self.check_stats(),
            Action::Shutdown => {
                let abandoned = self.queue.shutdown(Some(Instant::now() + PATIENCE));
                if abandoned > 0 {
                    self.world.violation(format!("{abandoned} items abandoned after {PATIENCE:?}"));
                }
            }
        }
    }

    fn produce_many(&mut self) {
        let count = self.random.within(1..80);
        let run = self.random.within(1..20);
        // `produce_many` does not name partitions.
        let ordered = self.world.settings.config.selector == Selector::ByType;
        let producer = if ordered { self.index } else { self.index + UNORDERED };
        let mut kind = self.random.below(KINDS);
        let mut items = Vec::with_capacity(count);
        for index in 0..count {
            if index % run == 0 {
                kind = self.random.below(KINDS);
            }
            items.push(self.item(kind, producer));
        }
        self.world.produce_many(self.queue, &items);
    }

    fn named(kind: usize) -> HandledType {
        HandledType {
            weight: 0.25,
            max_batch_items: own_limit(kind),
            max_delay: (kind % 2 == 1).then_some(Duration::ZERO),
            ..key(kind).into()
        }
    }

    fn add(&self, kind: usize, probe: &Arc<Probe>) -> bool {
        let answer = self.queue.add_handler_with(
            Self::named(kind),
            vec![probe.handler()],
            &mut Impatient::default(),
        );
        probe.note(&answer);
        match answer {
            Ok(()) => true,
            Err(AddHandlerError::Closed(_)) => false,
            Err(other) => {
                self.world.violation(format!("add_handler: {other:?}"));
                false
            }
        }
    }

    /// Registers one instance for two types that only this actor registers.
    fn share_instance(&mut self) {
        let kind = private_kind(self.index, &mut self.random);
        let Some(probe) = self.own[private_kind(self.index, &mut self.random)].clone() else {
            return;
        };
        if self.own[kind].as_ref().is_some_and(|known| Arc::ptr_eq(known, &probe)) {
            return;
        }
        probe.also_for(kind);
        if self.add(kind, &probe) {
            self.own[kind] = Some(probe);
        }
    }

    fn remove_private(&mut self) {
        let kind = private_kind(self.index, &mut self.random);
        let Some(probe) = self.own[kind].take() else { return };
        let removed = self.remove(kind);
        let serves = self.own.iter().flatten().any(|known| Arc::ptr_eq(known, &probe));
        let handlers = self.world.settings.mode == Mode::Handlers;
        if removed
            && handlers
            && !serves
            && !self.world.may_run_out_of_time()
            && probe.closed.load(SeqCst) != 1
        {
            self.world.violation(format!("{} was not closed when its removal returned", probe.id));
        }
    }

    fn remove(&self, kind: usize) -> bool {
        let removed = self.queue.remove_handler_with(key(kind), None, &mut Impatient::default());
        if removed == Err(Hung) {
            self.world.violation("a removal hung");
        }
        removed == Ok(true)
    }

    fn add_factory(&mut self) {
        let kind = spread_kind(&mut self.random);
        let count = self.random.within(2..5);
        let probes: Vec<_> =
            (0..count).map(|_| Probe::new(self.world, &[kind], true, &mut self.random)).collect();
        let handlers: Vec<_> = probes.iter().map(Probe::handler).collect();
        let answer =
            self.queue.add_handler_with(Self::named(kind), handlers, &mut Impatient::default());
        for probe in &probes {
            probe.note(&answer);
        }
        if matches!(answer, Err(AddHandlerError::Interrupted(Hung))) {
            self.world.violation("replacing a factory hung");
        }
    }

    /// Checks what must hold in every snapshot.
    fn check_stats(&self) {
        let (stats, config) = (self.queue.stats(), &self.world.settings.config);
        // Each thread may have a batch of the partition in hand, and one may wait for its next try.
        let batches = stats.drain_threads.len() + 1;
        let own = (0..KINDS).filter_map(own_limit).max().unwrap_or(0);
        let mut bound = config.buffer_size + batches * config.max_batch_items.max(own);
        if self.world.may_stall() {
            bound += config.buffer_size;
        }
        if stats.partitions.iter().any(|partition| partition.used > bound as u64) {
            self.world.violation(format!("more than {bound} items in a partition: {stats:?}"));
        }
        if stats.consumed + stats.failed + stats.unhandled > stats.produced {
            self.world.violation(format!("more handled than accepted: {stats:?}"));
        }
        if stats.produced + stats.refused > stats.attempts {
            self.world.violation(format!("more accepted and refused than attempted: {stats:?}"));
        }
        if stats.partitions.iter().any(|partition| partition.owner >= stats.drain_threads.len()) {
            self.world.violation(format!("a partition without an owner: {stats:?}"));
        }
    }
}
