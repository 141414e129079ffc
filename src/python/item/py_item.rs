//! What a partition holds: a Python object and its type, perhaps with a future, or a block of rows
//! and its tag.

use std::mem::ManuallyDrop;

use arrow_array::RecordBatch;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::row_block::RowBlock;
use crate::arrow::Tags;
use crate::python::interpreter::release;
use crate::python::results::Ticket;
use crate::{Item, TypeKey};

/// One queued item, in two words.
///
/// The key says which of the two it is: the key of rows is that of a tag. An object that was
/// submitted has its future beside it, and the address of both is odd. An enum would need no key
/// for this, but its two words would be stored separately and loaded together, which stalls the
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
    /// Whichever of these it is.
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

/// What an item is.
pub(crate) enum Content {
    Object(Py<PyAny>),
    Rows(Box<RowBlock>),
    Submitted(Box<Submitted>),
}

/// The same, borrowed.
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

    /// An item with a future, which ends with an error if the item is dropped.
    /// `key`: that of the class whose handler it goes to, if it is not its own.
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

    /// An item that goes to the handler of another class than its own. `key` must not be that of a
    /// tag.
    pub(crate) fn with_key(object: Bound<'_, PyAny>, key: TypeKey) -> Self {
        assert!(!Tags::is_tag(key), "the key of an object must not be that of a tag");
        Self { content: Stored { object: ManuallyDrop::new(object.unbind()) }, key }
    }

    /// An item of rows.
    ///
    /// # Panics
    /// The key of the block is not that of a tag.
    pub(crate) fn rows(block: RowBlock) -> Self {
        let key = block.key;
        assert!(Tags::is_tag(key), "the key of rows must be that of a tag");
        Self { content: Stored { rows: ManuallyDrop::new(Box::new(block)) }, key }
    }

    /// Whether it is an object without a future: the key is not that of a tag, and the address is
    /// even.
    #[inline]
    fn is_plain(&self) -> bool {
        // SAFETY: all fields are one pointer, of which only the address is read here. Objects are
        // aligned, so their addresses are even.
        let address = unsafe { self.content.address.addr() };
        // One branch for each item.
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

    /// The future of the item, if it was submitted.
    #[inline]
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        match self.borrow() {
            BorrowedItem::Submitted(submitted) => Some(&submitted.ticket),
            _ => None,
        }
    }

    /// Takes what it is out of the item.
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
            // SAFETY: as in `borrow`; the caller sees to the rest.
            Content::Object(unsafe { ManuallyDrop::take(&mut self.content.object) })
        } else if Tags::is_tag(self.key) {
            // SAFETY: as in `borrow`; the caller sees to the rest.
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

    /// The object, or a record batch of the rows.
    pub(crate) fn to_object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.as_ref()
            .map_or_else(|block| block.to_record_batch(py), |object| Ok(object.clone_ref(py)))
    }

    /// Whether it stands for rows of Arrow data, even if it is a single row.
    pub(crate) fn is_rows(&self) -> bool {
        self.as_ref().is_err()
    }

    /// The rows as a record batch; `None` for an object.
    pub(crate) fn batch(&self) -> Option<RecordBatch> {
        self.as_ref().err().map(RowBlock::batch)
    }

    /// The class of an object; `None` for rows.
    pub(crate) fn class<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyType>> {
        self.as_ref().ok().map(|object| object.bind(py).get_type())
    }

    /// The class of an object, or the tag of rows.
    pub(crate) fn item_type<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match self.as_ref() {
            Ok(object) => object.bind(py).get_type().into_any(),
            Err(block) => PyString::new(py, &block.tag()).into_any(),
        }
    }

    /// The name of the type for a log line.
    pub(crate) fn type_name(&self, py: Python<'_>) -> String {
        if let Err(block) = self.as_ref() {
            return block.tag_name();
        }
        let name = self.class(py).and_then(|class| class.fully_qualified_name().ok());
        name.map_or_else(|| "an unnamed class".to_owned(), |name| name.to_string())
    }
}

impl Drop for PyItem {
    /// For items that no handler got.
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
