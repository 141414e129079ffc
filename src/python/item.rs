//! The items of a queue, objects and blocks of rows; the types that handlers are registered for;
//! and refused items.

use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_cast::display::array_value_to_string;
use arrow_schema::Schema;
use pyo3::exceptions::PyImportError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use pyo3::{type_hint_identifier, type_hint_union};
use pyo3_arrow::input::AnyRecordBatch;
use pyo3_arrow::{PyRecordBatch, PyRecordBatchReader};

use crate::arrow::Tags;
use crate::error::ProduceError;
use crate::item::{Item, TypeKey};
use crate::python::errors::{
    ConfigError, ProduceTimeoutError, QueueClosedError, ReentrantProduceError, type_with_article,
};
use crate::python::future::{Ending, Settler, Ticket};
use crate::python::interpreter::{GuardedRef, error_value, guarded_call, release};

// A block of rows in a queue: a piece of a record batch, which becomes a Python object when a
// handler gets it.

/// The record batch that blocks are pieces of.
pub(crate) struct SourceBatch {
    batch: RecordBatch,
    /// The index of the column with the tags.
    column: usize,
    /// Whether pyarrow is installed.
    pyarrow: bool,
    /// The method `slice` of the batch as a pyarrow object, because a slice costs much less than an
    /// export to pyarrow. Created for the first handler that is written in Python.
    slice: PyOnceLock<GuardedRef>,
}

impl SourceBatch {
    pub(crate) fn new(batch: RecordBatch, column: usize, pyarrow: bool) -> Self {
        Self { batch, column, pyarrow, slice: PyOnceLock::new() }
    }

    fn slice(&self, py: Python<'_>) -> PyResult<&GuardedRef> {
        self.slice.get_or_try_init(py, || {
            let source = to_pyarrow(py, self.batch.clone(), true)?;
            Ok(GuardedRef::new(source.getattr("slice")?.unbind()))
        })
    }
}

/// Some rows of a batch, all with the same tag.
pub(crate) struct RowBlock {
    pub(crate) source: Arc<SourceBatch>,
    pub(crate) rows: Range<usize>,
    pub(crate) key: TypeKey,
}

impl RowBlock {
    /// Returns a `pyarrow.RecordBatch`, or without pyarrow an object with the same data behind
    /// `__arrow_c_array__`.
    pub(crate) fn to_record_batch(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.source.pyarrow {
            let args = (self.rows.start, self.rows.len());
            return Ok(guarded_call(self.source.slice(py)?.bind(py), args)?.unbind());
        }
        Ok(to_pyarrow(py, self.batch(), false)?.unbind())
    }

    /// Returns the rows as a record batch.
    pub(crate) fn batch(&self) -> RecordBatch {
        self.source.batch.slice(self.rows.start, self.rows.len())
    }

    /// Splits the block after its first `rows` rows.
    pub(crate) fn cut(self, rows: usize) -> (Self, Self) {
        let Self { source, rows: Range { start, end }, key } = self;
        let at = start + rows;
        (Self { source: source.clone(), rows: start..at, key }, Self { source, rows: at..end, key })
    }

    /// Returns the tag of these rows, or an empty string if they have none. Rows of unknown tags
    /// share a block, for which the first tag stands.
    pub(crate) fn tag(&self) -> String {
        let tags = self.source.batch.column(self.source.column);
        array_value_to_string(tags, self.rows.start).unwrap_or_default()
    }
}

// Arrow data on its way from Python and back.

pub(crate) type Batches = Box<dyn RecordBatchReader + Send>;

pub(crate) fn batches_of(data: &Bound<'_, PyAny>) -> PyResult<Batches> {
    let kind = type_with_article(data);
    for method in ["__arrow_c_array__", "__arrow_c_stream__"] {
        if data.hasattr(method)? {
            let batches = data.extract::<AnyRecordBatch>().and_then(AnyRecordBatch::into_reader);
            return batches.map_err(|error| {
                let problem = ConfigError::new_err(format!(
                    "batch is {kind}, not a record batch or table: {error}"
                ));
                problem.set_cause(data.py(), Some(error));
                problem
            });
        }
    }
    Err(ConfigError::new_err(format!(
        "batch is {kind}; give an object with __arrow_c_array__ or __arrow_c_stream__, like a \
         record batch or a table of pyarrow, polars, DuckDB or nanoarrow"
    )))
}

/// Whether handlers can get pyarrow batches. Imports pyarrow, so that no drain thread has to.
pub(crate) fn has_pyarrow(py: Python<'_>) -> PyResult<bool> {
    match py.import("pyarrow") {
        Ok(_) => Ok(true),
        Err(error) if error.is_instance_of::<PyImportError>(py) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns a `pyarrow.RecordBatch`, or without pyarrow an object with the same data behind
/// `__arrow_c_array__`.
pub(crate) fn to_pyarrow(
    py: Python<'_>,
    batch: RecordBatch,
    pyarrow: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let batch = PyRecordBatch::new(batch).into_pyobject(py)?.into_any();
    // Not `into_pyarrow`, whose lazy statics cannot be filled without pyarrow.
    if pyarrow { py.import("pyarrow")?.getattr("record_batch")?.call1((batch,)) } else { Ok(batch) }
}

/// Fills the lazy statics of `pyo3_arrow` for Arrow data in both directions.
pub(crate) fn prepare_arrow_data(py: Python<'_>) -> PyResult<()> {
    let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
    let schema = batch.schema();
    let reader: Batches = Box::new(RecordBatchIterator::new([Ok(batch.clone())], schema));
    batches_of(&to_pyarrow(py, batch, false)?)?;
    batches_of(&PyRecordBatchReader::new(reader).into_pyobject(py)?.into_any())?;
    Ok(())
}

// The contents of a partition: a Python object and its type, perhaps with a future, or a block of
// rows and its tag.

/// One queued item, in two words.
///
/// The key says whether the item is an object or rows, whose key is that of a tag. A submitted
/// object is boxed with its future, and the stored address is odd. An enum would need no key for
/// this, but its two words would be stored separately and loaded together, which stalls the
/// processor: `produce` would cost 3 ns more, `produce_many` 11 ns.
pub(crate) struct PyItem {
    content: Stored,
    /// The type is read once, while attached, so that grouping needs no interpreter.
    key: TypeKey,
}

union Stored {
    object: ManuallyDrop<Py<PyAny>>,
    rows: ManuallyDrop<Box<RowBlock>>,
    /// The address of a box, plus 1.
    submitted: *mut Submitted,
    /// The address of any of these.
    address: *mut (),
}

// SAFETY: each of the three can be sent: `Py` and `RowBlock` are `Send`, and the pointer owns its
// box, whose content is `Send` as well.
unsafe impl Send for PyItem {}

/// An object that was submitted, and its future.
pub(crate) struct Submitted {
    pub(crate) object: Py<PyAny>,
    pub(crate) ticket: Ticket,
}

/// The content of an item.
pub(crate) enum Content {
    Object(Py<PyAny>),
    Rows(Box<RowBlock>),
    Submitted(Box<Submitted>),
}

/// The borrowed content of an item.
enum BorrowedItem<'a> {
    Object(&'a Py<PyAny>),
    Rows(&'a RowBlock),
    Submitted(&'a Submitted),
}

impl PyItem {
    pub(crate) fn new(object: Bound<'_, PyAny>) -> Self {
        // Type addresses are even, so they never collide with the keys of tags, which are odd.
        let key = TypeKey(object.get_type_ptr() as usize);
        Self { content: Stored { object: ManuallyDrop::new(object.unbind()) }, key }
    }

    /// Creates an item with a future, which ends with an error if the item is dropped. `key` is
    /// that of the class whose handler it goes to, if that is not its own class.
    pub(crate) fn submitted(
        object: Bound<'_, PyAny>,
        ticket: Ticket,
        key: Option<TypeKey>,
    ) -> Self {
        let key = key.unwrap_or(TypeKey(object.get_type_ptr() as usize));
        assert!(!Tags::is_tag(key), "the key of an object must not be that of a tag");
        let submitted = Box::into_raw(Box::new(Submitted { object: object.unbind(), ticket }));
        Self { content: Stored { submitted: submitted.map_addr(|address| address + 1) }, key }
    }

    /// Creates an item that goes to the handler of another class than its own. `key` must not be
    /// that of a tag.
    pub(crate) fn with_key(object: Bound<'_, PyAny>, key: TypeKey) -> Self {
        assert!(!Tags::is_tag(key), "the key of an object must not be that of a tag");
        Self { content: Stored { object: ManuallyDrop::new(object.unbind()) }, key }
    }

    /// Creates an item of rows.
    ///
    /// # Panics
    /// The key of the block is not that of a tag.
    pub(crate) fn rows(block: RowBlock) -> Self {
        let key = block.key;
        assert!(Tags::is_tag(key), "the key of rows must be that of a tag");
        Self { content: Stored { rows: ManuallyDrop::new(Box::new(block)) }, key }
    }

    /// Whether the item is an object without a future: the key is not that of a tag, and the
    /// address is even.
    #[inline]
    fn is_plain(&self) -> bool {
        // SAFETY: all fields are one pointer, of which only the address is read here. Objects are
        // aligned, so their addresses are even.
        let address = unsafe { self.content.address.addr() };
        // One branch per item.
        (self.key.0 | address) & 1 == 0
    }

    fn borrow(&self) -> BorrowedItem<'_> {
        if self.is_plain() {
            // SAFETY: only `new` and `with_key` make such items, and they store an object in them.
            BorrowedItem::Object(unsafe { &self.content.object })
        } else if Tags::is_tag(self.key) {
            // SAFETY: only `rows` makes items with the key of a tag, and it stores rows in them.
            BorrowedItem::Rows(unsafe { &self.content.rows })
        } else {
            // SAFETY: only `submitted` makes the others, with the address of a box that the item
            // owns, plus 1.
            BorrowedItem::Submitted(unsafe {
                &*self.content.submitted.map_addr(|address| address - 1)
            })
        }
    }

    fn as_ref(&self) -> Result<&Py<PyAny>, &RowBlock> {
        match self.borrow() {
            BorrowedItem::Object(object) => Ok(object),
            BorrowedItem::Submitted(submitted) => Ok(&submitted.object),
            BorrowedItem::Rows(block) => Err(block),
        }
    }

    /// Returns the future of the item, if it was submitted.
    #[inline]
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        match self.borrow() {
            BorrowedItem::Submitted(submitted) => Some(&submitted.ticket),
            _ => None,
        }
    }

    /// Takes the content out of the item.
    #[inline]
    pub(crate) fn into_content(self) -> Content {
        let mut item = ManuallyDrop::new(self);
        // SAFETY: the item is never read or dropped again.
        unsafe { item.take() }
    }

    /// Moves the content out.
    ///
    /// # Safety
    /// The item must not be read or dropped afterwards.
    #[inline]
    unsafe fn take(&mut self) -> Content {
        if self.is_plain() {
            // SAFETY: as in `borrow`; the caller ensures the rest.
            Content::Object(unsafe { ManuallyDrop::take(&mut self.content.object) })
        } else if Tags::is_tag(self.key) {
            // SAFETY: as in `borrow`; the caller ensures the rest.
            Content::Rows(unsafe { ManuallyDrop::take(&mut self.content.rows) })
        } else {
            // SAFETY: as above; the box was made by `Box::into_raw`.
            Content::Submitted(unsafe {
                Box::from_raw(self.content.submitted.map_addr(|address| address - 1))
            })
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.as_ref().map_or(Ok(()), |object| visit.call(object))
    }

    /// Returns the object, or a record batch of the rows.
    pub(crate) fn to_object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.as_ref()
            .map_or_else(|block| block.to_record_batch(py), |object| Ok(object.clone_ref(py)))
    }

    /// Whether the item is rows of Arrow data, even a single row.
    pub(crate) fn is_rows(&self) -> bool {
        self.as_ref().is_err()
    }

    /// Returns the rows as a record batch, or `None` for an object.
    pub(crate) fn batch(&self) -> Option<RecordBatch> {
        self.as_ref().err().map(RowBlock::batch)
    }

    /// Returns the class of an object, or `None` for rows.
    pub(crate) fn class<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyType>> {
        self.as_ref().ok().map(|object| object.bind(py).get_type())
    }

    /// Returns the class of an object, or the tag of rows.
    pub(crate) fn item_type<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match self.as_ref() {
            Ok(object) => object.bind(py).get_type().into_any(),
            Err(block) => PyString::new(py, &block.tag()).into_any(),
        }
    }

    /// Returns the name of the type for a log line.
    pub(crate) fn type_name(&self, py: Python<'_>) -> String {
        match self.as_ref() {
            Err(_) if self.key == Tags::NULL => "no tag (null)".to_owned(),
            Err(block) => format!("tag {:?}", block.tag()),
            Ok(object) => {
                let name = object.bind(py).get_type().fully_qualified_name();
                name.map_or_else(|_| "an unnamed class".to_owned(), |name| name.to_string())
            }
        }
    }
}

impl Drop for PyItem {
    /// Drops an item that no handler got.
    fn drop(&mut self) {
        drop_unhandled(self);
    }
}

#[cold]
fn drop_unhandled(item: &mut PyItem) {
    // SAFETY: the item is being dropped.
    let object = match unsafe { item.take() } {
        Content::Rows(block) => return drop(block),
        Content::Object(object) => object,
        Content::Submitted(submitted) => {
            let Submitted { object, ticket } = *submitted;
            drop(ticket);
            object
        }
    };
    // `__del__` of the object is the user's code.
    Python::try_attach(|py| release(object.into_bound(py)));
}

impl Item for PyItem {
    #[inline]
    fn type_key(&self) -> TypeKey {
        self.key
    }

    #[inline]
    fn weight(&self) -> usize {
        self.as_ref().map_or_else(|block| block.rows.len(), |_| 1)
    }

    fn cut(self, weight: usize) -> (Self, Self) {
        match self.into_content() {
            Content::Rows(block) => {
                let (head, tail) = block.cut(weight);
                (Self::rows(head), Self::rows(tail))
            }
            Content::Object(_) | Content::Submitted(_) => unreachable!("an object weighs 1"),
        }
    }
}

// The type that a handler is registered for: a class, or a tag of rows.

/// The type that a handler is registered for.
pub(crate) enum ItemType<'py> {
    Class(Bound<'py, PyType>),
    /// The value of a type column in Arrow data.
    Tag(String, Bound<'py, PyAny>),
}

impl<'py> ItemType<'py> {
    pub(crate) fn object(&self) -> &Bound<'py, PyAny> {
        match self {
            Self::Class(class) => class,
            Self::Tag(_, object) => object,
        }
    }

    pub(crate) fn tag(&self) -> Option<&str> {
        match self {
            Self::Class(_) => None,
            Self::Tag(tag, _) => Some(tag),
        }
    }

    pub(crate) fn name(&self) -> PyResult<String> {
        match self {
            Self::Class(class) => Ok(class.qualname()?.to_string()),
            Self::Tag(tag, _) => Ok(format!("{tag:?}")),
        }
    }

    /// Returns the key, or [`Tags::UNKNOWN`] for a tag that is not registered.
    pub(crate) fn known_to(&self, tags: &Tags) -> TypeKey {
        match self {
            Self::Class(class) => TypeKey(class.as_ptr() as usize),
            Self::Tag(tag, _) => tags.key(tag),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for ItemType<'py> {
    type Error = PyErr;

    const INPUT_TYPE: PyStaticExpr =
        type_hint_union!(type_hint_identifier!("builtins", "type"), String::INPUT_TYPE);

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(class) = object.cast::<PyType>() {
            return Ok(Self::Class(class.to_owned()));
        }
        match object.extract() {
            Ok(tag) => Ok(Self::Tag(tag, object.to_owned())),
            Err(_) => Err(ConfigError::new_err(format!(
                "item_type is {}; give a class, or a str for the rows of Arrow batches with that \
                 tag",
                object.repr()?
            ))),
        }
    }
}

// Refused items.

/// Returns a refusal as an exception, or `None` if the return value of the call reports it. In
/// either case, the future of the item, if it has one, ends with the error.
pub(crate) fn refused<E: Into<PyErr> + Display>(
    py: Python<'_>,
    queue: &str,
    refusal: ProduceError<PyItem, E>,
    accepted: usize,
) -> Option<PyErr> {
    let (item, refusal) = refusal.into_parts();
    let error = match refusal {
        ProduceError::Full(()) | ProduceError::Closed(()) => {
            if let Some(ticket) = item.ticket() {
                let error = if matches!(refusal, ProduceError::Full(())) {
                    ProduceTimeoutError::new_err((said(queue, &refusal), 0))
                } else {
                    QueueClosedError::new_err(format!(
                        "queue {queue} is shut down and takes no more items; submit before its \
                         shutdown, or make a new queue"
                    ))
                };
                end_refused(py, ticket, error);
            }
            return None;
        }
        ProduceError::TimedOut { .. } => {
            ProduceTimeoutError::new_err((said(queue, &refusal), accepted))
        }
        ProduceError::Interrupted((), interrupt) => {
            let interrupt = interrupt.into();
            // An exception that refuses attributes is still the one to raise.
            let _ = interrupt.value(py).setattr("accepted", accepted);
            interrupt
        }
        ProduceError::Reentrant { .. } => {
            let reentrant = ReentrantProduceError::new_err(said(queue, &refusal));
            let _ = reentrant.value(py).setattr("accepted", accepted);
            reentrant
        }
    };
    if let Some(ticket) = item.ticket() {
        end_refused(py, ticket, error.clone_ref(py));
    }
    Some(error)
}

fn said<E: Display>(queue: &str, refusal: &ProduceError<(), E>) -> String {
    format!("queue {queue}: {refusal}")
}

fn end_refused(py: Python<'_>, ticket: &Ticket, error: PyErr) {
    Settler::new(py).end(ticket.future(py), Ending::error(&error_value(py, error)));
}
