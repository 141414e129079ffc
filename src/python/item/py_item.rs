//! What a partition holds: a Python object and its type, or a block of rows and its tag.

use std::mem::ManuallyDrop;

use arrow_array::RecordBatch;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::row_block::RowBlock;
use crate::arrow::Tags;
use crate::python::interpreter::release;
use crate::{Item, TypeKey};

/// One queued item, in two words.
///
/// The key says which of the two it is: the key of rows is that of a tag. An enum would need no key
/// for this, but its two words would be stored separately and loaded together, which stalls the
/// processor: `produce` would cost 3 ns more, `produce_many` 11 ns.
pub(crate) struct PyItem {
    content: Content,
    /// The type is read once, while attached, so that grouping needs no interpreter.
    key: TypeKey,
}

union Content {
    object: ManuallyDrop<Py<PyAny>>,
    rows: ManuallyDrop<Box<RowBlock>>,
}

impl PyItem {
    pub(crate) fn new(object: Bound<'_, PyAny>) -> Self {
        // Type addresses are even, so they never collide with the keys of tags, which are odd.
        let key = TypeKey(object.get_type_ptr() as usize);
        Self { content: Content { object: ManuallyDrop::new(object.unbind()) }, key }
    }

    /// An item of rows.
    ///
    /// # Panics
    /// The key of the block is not that of a tag.
    pub(crate) fn rows(block: RowBlock) -> Self {
        let key = block.key;
        assert!(Tags::is_tag(key), "the key of rows must be that of a tag");
        Self { content: Content { rows: ManuallyDrop::new(Box::new(block)) }, key }
    }

    fn as_ref(&self) -> Result<&Py<PyAny>, &RowBlock> {
        if Tags::is_tag(self.key) {
            // SAFETY: only `rows` makes items with the key of a tag, and it stores rows in them.
            Err(unsafe { &self.content.rows })
        } else {
            // SAFETY: only `new` makes items with another key, and it stores an object in them.
            Ok(unsafe { &self.content.object })
        }
    }

    /// Takes the object or the rows out of the item.
    #[inline]
    pub(crate) fn into_content(self) -> Result<Py<PyAny>, Box<RowBlock>> {
        let mut item = ManuallyDrop::new(self);
        if Tags::is_tag(item.key) {
            // SAFETY: as in `as_ref`; the item is never read or dropped again.
            Err(unsafe { ManuallyDrop::take(&mut item.content.rows) })
        } else {
            // SAFETY: as above.
            Ok(unsafe { ManuallyDrop::take(&mut item.content.object) })
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
    if Tags::is_tag(item.key) {
        // SAFETY: as in `as_ref`; the item is being dropped.
        unsafe { ManuallyDrop::drop(&mut item.content.rows) };
    } else {
        // SAFETY: as above.
        let object = unsafe { ManuallyDrop::take(&mut item.content.object) };
        // `__del__` of the object is the user's code.
        Python::try_attach(|py| release(object.into_bound(py)));
    }
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
            Err(block) => {
                let (head, tail) = block.cut(weight);
                (Self::rows(head), Self::rows(tail))
            }
            Ok(_) => unreachable!("an object weighs 1"),
        }
    }
}
