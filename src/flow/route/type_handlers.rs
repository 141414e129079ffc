//! The handlers of one type, and the one of them that a batch goes to.

use smallvec::SmallVec;

use crate::flow::desk::Purpose;
use crate::flow::handler::HandlerRef;
use crate::flow::handler::call_settings::CallSettings;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::item::TypeKey;
use crate::observe::HandlerTally;
use crate::sync::Arc;

/// Partitions of a type, by index: nearly always one.
pub(crate) type Partitions = SmallVec<[usize; 1]>;

/// The handler or handlers of one type.
pub(crate) struct TypeHandlers<T> {
    pub(crate) key: TypeKey,
    /// The number of the type in order of registration; of a consumer, its number among the
    /// consumers.
    pub(crate) number: usize,
    pub(crate) name: Arc<str>,
    /// One handler for all partitions of the type, or one per partition.
    pub(crate) handlers: Vec<HandlerRef<T>>,
    /// The partitions of the type, one or as many as it was spread over; none for a consumer.
    pub(crate) partitions: Partitions,
    pub(crate) settings: CallSettings,
    /// What fails for good goes there.
    pub(crate) dead_letter: Option<Arc<DeadLetterBox<T>>>,
    pub(crate) tally: HandlerTally,
}

impl<T> TypeHandlers<T> {
    pub(crate) fn new(
        key: TypeKey,
        number: usize,
        name: &str,
        handlers: Vec<HandlerRef<T>>,
        settings: CallSettings,
    ) -> Self {
        Self {
            key,
            number,
            name: name.into(),
            handlers,
            partitions: Partitions::new(),
            settings,
            dead_letter: None,
            tally: HandlerTally::default(),
        }
    }

    /// The same for a type with these partitions.
    pub(crate) fn in_partitions(self, partitions: Partitions) -> Self {
        Self { partitions, ..self }
    }

    pub(crate) fn with_dead_letter(self, dead_letter: Option<Arc<DeadLetterBox<T>>>) -> Self {
        Self { dead_letter, ..self }
    }

    /// All instances, that of the dead letters included.
    pub(crate) fn instances(&self) -> impl Iterator<Item = &HandlerRef<T>> {
        let keeper = self.dead_letter.iter().map(|letter_box| &letter_box.handler);
        self.handlers.iter().chain(keeper)
    }

    /// What a call of them is at a desk.
    pub(crate) fn purpose(&self) -> Purpose {
        Purpose::Batch(std::ptr::from_ref(self) as usize)
    }

    pub(crate) fn needs_host(&self) -> bool {
        self.handlers.iter().any(|instance| instance.handler.needs_host())
    }
}

/// The destination of a group of items: one handler instance of a type.
pub(crate) struct Target<T> {
    pub(crate) registered: Arc<TypeHandlers<T>>,
    pub(super) instance: usize,
}

impl<T> Target<T> {
    pub(crate) fn only(registered: Arc<TypeHandlers<T>>) -> Self {
        Self { registered, instance: 0 }
    }

    pub(crate) fn handler(&self) -> &HandlerRef<T> {
        &self.registered.handlers[self.instance]
    }
}
