//! Handlers and their batches.

pub(crate) mod consumption;
pub(crate) mod dispatch_log;
pub(crate) mod host;

use std::fmt;

use crate::flow::desk::Desk;
use crate::flow::partition::segment::Segments;
use crate::item::{Item, weight_of};
use crate::sync::Arc;

/// Items of one type from one partition, in order, in the segments that carried them.
#[derive(Debug)]
pub struct Batch<T> {
    segments: Segments<T>,
    len: usize,
    last_attempt: bool,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self { segments: Segments::new(), len: 0, last_attempt: true }
    }
}

impl<T> Batch<T> {
    /// The number of items in the batch, by weight.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether all items have been taken out.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a failure of this call is final. Otherwise a handler that fails and leaves all items
    /// in the batch is called again.
    pub fn is_last_attempt(&self) -> bool {
        self.last_attempt
    }

    pub(crate) fn set_last_attempt(&mut self, last: bool) {
        self.last_attempt = last;
    }

    /// The items, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().flatten()
    }

    /// Takes all items out, in order. Items left in the iterator when it is dropped are dropped
    /// too.
    pub fn drain(&mut self) -> Drain<'_, T> {
        self.len = 0;
        let left = self.segments.iter().map(Vec::len).sum();
        Drain { segments: self.segments.iter_mut(), current: None, left }
    }

    /// Like [`drain`](Self::drain), but by segment, for loops that a check of the segment for each
    /// item would slow down.
    #[cfg(feature = "python")]
    pub(crate) fn drain_segments(&mut self) -> impl Iterator<Item = std::vec::Drain<'_, T>> {
        self.len = 0;
        self.segments.iter_mut().map(|segment| segment.drain(..))
    }

    /// The segments, for reuse by a later take.
    pub(crate) fn into_segments(self) -> Segments<T> {
        self.segments
    }

    pub(crate) fn push_segment(&mut self, segment: Vec<T>, weight: usize) {
        self.len += weight;
        self.segments.push(segment);
    }

    /// Adds an item. A new segment comes from `room`, once the last one has `most` items.
    pub(crate) fn push(&mut self, item: T, most: usize, room: impl FnOnce() -> Vec<T>)
    where
        T: Item,
    {
        self.len += item.weight();
        match self.segments.last_mut() {
            Some(segment) if segment.len() < most => segment.push(item),
            _ => {
                let mut segment = room();
                segment.push(item);
                self.segments.push(segment);
            }
        }
    }

    /// Takes the first items out: `most`, rounded up to a segment.
    pub(crate) fn split_front(&mut self, most: usize) -> Self
    where
        T: Item,
    {
        if self.len <= most {
            return std::mem::take(self);
        }
        let (mut len, mut count) = (0, 0);
        while len < most
            && let Some(segment) = self.segments.get(count)
        {
            len += weight_of(segment);
            count += 1;
        }
        self.len -= len;
        Self { segments: self.segments.drain(..count).collect(), len, ..Self::default() }
    }

    /// Adds the items of another batch behind these.
    pub(crate) fn append(&mut self, other: Self) {
        self.len += other.len;
        self.segments.extend(other.segments);
    }
}

/// The items of a batch, in order. The exact length is known.
#[derive(Debug)]
pub struct Drain<'a, T> {
    segments: std::slice::IterMut<'a, Vec<T>>,
    current: Option<std::vec::Drain<'a, T>>,
    left: usize,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        loop {
            if let Some(item) = self.current.as_mut().and_then(Iterator::next) {
                self.left -= 1;
                return Some(item);
            }
            self.current = Some(self.segments.next()?.drain(..));
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> Drop for Drain<'_, T> {
    fn drop(&mut self) {
        for segment in &mut self.segments {
            segment.clear();
        }
    }
}

impl<T> ExactSizeIterator for Drain<'_, T> {}

/// Why a handler failed to handle a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, for the log.
    pub message: String,
    /// Whether the failure has been reported already; if not, the queue logs it.
    pub reported: bool,
    /// Whether a retry may help. A batch that lost items is never retried.
    pub retry: bool,
}

impl Failure {
    /// A failure that the queue logs and may retry.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), reported: false, retry: true }
    }

    /// A failure that the queue logs and does not retry.
    pub fn last(message: impl Into<String>) -> Self {
        Self { message: message.into(), reported: false, retry: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Handles the batches of one type, or of a whole queue.
///
/// **Exclusive (P1):** calls of one [`HandlerRef`] never overlap, whatever thread, type or queue
/// they come from. A panic fails only its own batch.
pub trait Handler<T>: Send + Sync {
    /// Handles one batch: 1 to `max_batch_items` items, rounded up to a segment.
    ///
    /// # Errors
    /// The batch could not be handled; all its items count as failed.
    fn consume(&self, batch: &mut Batch<T>) -> Result<(), Failure>;

    /// Whether `consume` must run inside [`Host::enter`](crate::Host::enter). If no handler of a
    /// partition needs it, the drain thread does not enter the host for that partition.
    fn needs_host(&self) -> bool {
        true
    }

    /// Whether [`on_idle`](Self::on_idle) does anything. If not, the handler costs an idle queue
    /// nothing.
    fn has_on_idle(&self) -> bool {
        false
    }

    /// Called after an empty cycle of the drain thread that owns the handler.
    ///
    /// # Errors
    /// Logged but not counted, because no item is involved.
    fn on_idle(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Called once per queue, after the handler's last batch.
    ///
    /// # Errors
    /// Logged but not counted, because no item is involved.
    fn on_close(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether another thread, such as an event loop, does the work while the drain thread waits
    /// for it. On a shared pool another worker replaces the one that waits.
    fn works_elsewhere(&self) -> bool {
        false
    }

    /// The handler's name in logs and statistics.
    fn name(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

impl<T, F: Fn(&mut Batch<T>) + Send + Sync> Handler<T> for F {
    fn consume(&self, batch: &mut Batch<T>) -> Result<(), Failure> {
        self(batch);
        Ok(())
    }
}

/// A handler instance with its desk. Clones refer to the same instance: even if it is
/// registered for several types or on several queues, only one thread is inside at a time.
pub struct HandlerRef<T> {
    pub(crate) handler: Arc<dyn Handler<T>>,
    pub(crate) desk: Arc<Desk>,
}

impl<T> HandlerRef<T> {
    /// Creates an instance with a new desk.
    pub fn new(handler: impl Handler<T> + 'static) -> Self {
        Self::with_desk(Arc::new(handler), Arc::new(Desk::default()))
    }

    /// Creates an instance that shares `desk` with others: only one of them is entered at a time.
    pub fn with_desk(handler: Arc<dyn Handler<T>>, desk: Arc<Desk>) -> Self {
        Self { handler, desk }
    }

    /// The instance's identity.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.handler).cast::<()>() as usize
    }

    /// Whether both are the same instance.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl<T> Clone for HandlerRef<T> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), desk: self.desk.clone() }
    }
}

impl<T> fmt::Debug for HandlerRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerRef").field(&self.handler.name()).finish()
    }
}
