//! Types that come and go, as producers and drain threads see them, and as the control side does.

use smallvec::SmallVec;

use super::rules::Rule;
use super::state::{Index, PARTITIONS, State, TYPES};
use super::world::World;

/// The most producers of a world whose types come and go.
const PRODUCERS: usize = 2;

/// An entry of the type table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    pub number: Index,
    pub home: Index,
}

/// The published contents of a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Registered {
    pub kind: Index,
    pub home: Index,
    pub lock: Index,
}

/// A type that has not gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Known {
    pub number: Index,
    pub home: Index,
    /// While it is leaving: the position up to which its partition has to be settled.
    pub goal: Option<u8>,
}

/// The former home of a type that has gone, and the rounds of the cursor for which it is
/// remembered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Former {
    pub home: Index,
    rounds: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Registry {
    // ---- written under the control lock, read without
    pub table: [Option<Entry>; TYPES],
    pub places: [Option<Registered>; TYPES],
    // ---- under the control lock
    pub known: [Option<Known>; TYPES],
    /// A type that is about to go.
    pub going: Option<Index>,
    free_numbers: SmallVec<[Index; 4]>,
    /// The number of places.
    made: Index,
    /// The number of types of each partition.
    types: [u8; PARTITIONS],
    /// Per partition, one bit for each type that it has ever had.
    ever: [u8; PARTITIONS],
    pub former: [Option<Former>; TYPES],
    /// The partition to check next, and the position up to which it has to be settled.
    cursor: Index,
    goal: Option<u8>,
    // ---- what really happened
    /// Whether each type has a handler, and how often it has lost one.
    has_handler: [bool; TYPES],
    removals: [u8; TYPES],
    /// Per producer and type: the position after the newest item that a handler got.
    next: [[u8; TYPES]; PRODUCERS],
}

/// The result of a producer's look-up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Found {
    pub partition: Index,
    pub is_known: bool,
    pub origin: Origin,
}

/// The producer of an item, the item's number, and whether the type had a handler at the look-up.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Origin(u8);

impl Origin {
    pub fn new(producer: usize, number: u8, life: Option<u8>) -> Self {
        let producer = Index::try_from(producer).expect("few producers");
        Self(producer << 7 | number << 4 | life.map_or(0, |life| life + 1))
    }

    fn producer(self) -> usize {
        usize::from(self.0 >> 7)
    }

    fn number(self) -> u8 {
        self.0 >> 4 & 7
    }

    /// Returns the life of the type in which the item was looked up.
    fn life(self) -> Option<u8> {
        (self.0 & 15).checked_sub(1)
    }
}

impl Registry {
    /// Creates a registry of the types that have a home. One of them may have lost its handler.
    pub fn new(
        homes: [Option<Index>; TYPES],
        locks: [Index; TYPES],
        leaving: Option<Index>,
    ) -> Self {
        let mut registry = Self {
            table: [None; TYPES],
            places: [None; TYPES],
            known: [None; TYPES],
            going: None,
            free_numbers: SmallVec::new(),
            made: 0,
            types: [0; PARTITIONS],
            ever: [0; PARTITIONS],
            former: [None; TYPES],
            cursor: 0,
            goal: None,
            has_handler: homes.map(|home| home.is_some()),
            removals: [0; TYPES],
            next: [[0; TYPES]; PRODUCERS],
        };
        for (kind, home) in homes.into_iter().enumerate() {
            let Some(home) = home else { continue };
            let number = registry.give_place(kind, home);
            registry.table[kind] = Some(Entry { number, home });
            let lock = locks[kind];
            let kind = Index::try_from(kind).expect("few types");
            let goal = (leaving == Some(kind)).then_some(0);
            let is_handled = goal.is_none();
            registry.known[usize::from(kind)] = Some(Known { number, home, goal });
            registry.has_handler[usize::from(kind)] = is_handled;
            registry.places[usize::from(number)] =
                is_handled.then_some(Registered { kind, home, lock });
        }
        registry
    }

    /// Gives a new type a place and a home. Returns the number of the place.
    fn give_place(&mut self, kind: usize, home: Index) -> Index {
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            self.made += 1;
            self.made - 1
        });
        self.known[kind] = Some(Known { number, home, goal: None });
        self.types[usize::from(home)] += 1;
        self.ever[usize::from(home)] |= 1 << kind;
        number
    }

    pub fn cursor(&self) -> Index {
        self.cursor
    }

    /// Whether a partition has had several types.
    pub fn has_had_several(&self, partition: usize) -> bool {
        self.ever[partition].count_ones() > 1
    }

    /// Returns the handler at a place.
    pub fn place_of(&mut self, kind: usize) -> &mut Option<Registered> {
        let known = self.known[kind].expect("it has not gone");
        &mut self.places[usize::from(known.number)]
    }

    /// Notes that a type has got or lost a handler.
    pub fn note_handler(&mut self, kind: usize, has_handler: bool) {
        self.has_handler[kind] = has_handler;
        self.removals[kind] += u8::from(!has_handler);
    }

    /// Returns the number of the type's current life, while it has a handler.
    fn life(&self, kind: usize) -> Option<u8> {
        self.has_handler[kind].then_some(self.removals[kind])
    }

    /// Whether the type of an item that is about to count as unhandled has had a handler all along.
    pub fn had_handler_all_along(&self, kind: usize, origin: Origin) -> bool {
        origin.life().is_some() && origin.life() == self.life(kind)
    }

    /// Notes that a handler gets an item. Returns `false` if it already had a newer one of the same
    /// producer.
    pub fn note_call(&mut self, kind: usize, origin: Origin) -> bool {
        let next = &mut self.next[origin.producer()][kind];
        let is_in_order = origin.number() + 1 >= *next;
        *next = (*next).max(origin.number() + 1);
        is_in_order
    }

    /// Whether each place belongs to one type or is free, and partitions have the types that live
    /// there.
    pub fn is_consistent(&self) -> bool {
        let of_types = self.known.iter().flatten().map(|known| known.number);
        let mut numbers: SmallVec<[Index; 4]> =
            of_types.chain(self.free_numbers.iter().copied()).collect();
        numbers.sort_unstable();
        let living = |at: usize| {
            let here = self.known.iter().flatten().filter(|known| usize::from(known.home) == at);
            here.count() == usize::from(self.types[at])
        };
        numbers.iter().copied().eq(0..self.made) && (0..PARTITIONS).all(living)
    }
}

impl World {
    /// Looks a type up for a producer: returns its home, or where items of unknown types go.
    pub fn look_up(state: &State, number: usize, kind: Index, unknown: Index) -> Found {
        let registry = state.registry.as_ref().expect("types come and go");
        let kind = usize::from(kind);
        let entry = registry.table[kind];
        let origin = Origin::new(number, state.producers[number].next, registry.life(kind));
        Found {
            partition: entry.map_or(unknown, |entry| entry.home),
            is_known: entry.is_some(),
            origin,
        }
    }

    /// Returns the lock of the handler at a place, for items of a type in a partition.
    pub fn read_place(
        &self,
        registry: &Registry,
        number: Index,
        kind: usize,
        of: usize,
    ) -> Option<Index> {
        let registered = registry.places[usize::from(number)]?;
        let is_its = usize::from(registered.kind) == kind || self.is_off(Rule::KeyOfPlace);
        let is_home = usize::from(registered.home) == of || self.is_off(Rule::OnlyAtHome);
        (is_its && is_home).then_some(registered.lock)
    }

    /// Returns the lock of a type's handler, for items in a partition, in one step.
    pub fn handler_of(&self, state: &State, kind: usize, of: usize) -> Option<Index> {
        match &state.registry {
            None => state.handlers[kind],
            Some(registry) => self.read_place(registry, registry.table[kind]?.number, kind, of),
        }
    }

    /// Places a new type: in its former partition if known, else in the one with the fewest types.
    /// Marks the partition if it has had another type.
    pub fn place_type(&self, state: &mut State, kind: usize) {
        let registry = state.registry.as_mut().expect("types come and go");
        let former = registry.former[kind].filter(|_| !self.is_off(Rule::ReturnHome));
        let fewest = || (0..self.partitions).min_by_key(|&at| registry.types[usize::from(at)]);
        let home = former.map(|former| former.home).or_else(fewest).expect("a partition");
        registry.give_place(kind, home);
        if registry.has_had_several(usize::from(home)) {
            let its = &mut state.partitions[usize::from(home)];
            its.is_mixed = !self.is_off(Rule::MarkMixed);
            if self.lingers && !self.is_off(Rule::SecondTypeEndsSuppression) {
                let put = Index::try_from(its.put.len()).expect("few items");
                its.notify_at = if its.queue.is_empty() { 0 } else { put + 1 };
            }
        }
    }

    /// Removes a type that nothing waits for.
    pub fn end_departure(&self, registry: &mut Registry, kind: usize) {
        let Some(known) = registry.known[kind].take() else { return };
        registry.table[kind] = None;
        registry.types[usize::from(known.home)] -= 1;
        let rounds = if self.is_off(Rule::WholeRound) { 1 } else { 2 };
        registry.former[kind] = Some(Former { home: known.home, rounds });
        registry.free_numbers.push(known.number);
    }

    /// Advances the cursor that finds the types to forget. Returns whether it moved.
    pub fn advance_cursor(&self, state: &mut State) -> bool {
        let registry = state.registry.as_mut().expect("types come and go");
        let its = &state.partitions[usize::from(registry.cursor)];
        if registry.former.iter().all(Option::is_none) {
            return false;
        }
        let put = Index::try_from(its.put.len()).expect("few items");
        let had_goal = registry.goal.is_some();
        if its.completed() < *registry.goal.get_or_insert(put) {
            return !had_goal;
        }
        registry.goal = None;
        registry.cursor += 1;
        if registry.cursor == self.partitions {
            registry.cursor = 0;
            for former in &mut registry.former {
                if let Some(it) = former {
                    it.rounds -= 1;
                    former.take_if(|it| it.rounds == 0);
                }
            }
        }
        true
    }
}
