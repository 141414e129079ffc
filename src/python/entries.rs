//! Records of Redis streams: `ReplyReader` and `Entries`.
//!
//! Nothing here detaches: a scan takes microseconds, and the end of the interpreter may find the
//! thread at work.

use parking_lot::Mutex;
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyString, PyTuple};

use crate::entries::{Entries, Reply, ReplyError, ReplyReader};
use crate::python::errors::BatchQueueError;
use crate::python::interpreter::guarded_call;

/// Finds the entries in the replies to XREAD commands, while they arrive.
///
/// It reads protocol 2. One thread uses it.
#[pyclass(frozen, name = "ReplyReader", module = "batchqueue._core")]
pub(crate) struct PyReplyReader(Mutex<ReplyReader>);

#[pymethods]
impl PyReplyReader {
    /// Expect replies.
    ///
    /// Args:
    ///     expected: How many commands were sent.
    #[new]
    fn new(expected: usize) -> Self {
        Self(Mutex::new(ReplyReader::new(expected)))
    }

    /// Take bytes that have arrived, and return whether all replies are there.
    ///
    /// Raises:
    ///     OverflowError: The id of an entry, which is the argument, is too large for an offset.
    ///     ValueError: The bytes are not a reply to XREAD.
    fn feed(&self, data: &[u8]) -> PyResult<bool> {
        self.0.lock().feed(data).map_err(|error| match error {
            ReplyError::Id(id) => PyOverflowError::new_err(id),
            ReplyError::Malformed(problem) => PyValueError::new_err(problem),
        })
    }

    /// Return the replies: of each the streams that have entries, or what the server refused.
    ///
    /// Returns:
    ///     For each command a list of the key of a stream, its entries, and their bytes; or a str,
    ///     which begins with a word for the kind of the error.
    #[pyo3(signature = () -> "list[list[tuple[bytes, Entries, int]] | str]")]
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let replies = self.0.lock().take();
        let replies = replies.into_iter().map(|reply| match reply {
            Reply::Refused(text) => Ok(PyString::new(py, &text).into_any()),
            Reply::Found(streams) => {
                let streams = streams.into_iter().map(|stream| {
                    (PyBytes::new(py, &stream.key), PyEntries(stream.entries), stream.size)
                });
                Ok(PyList::new(py, streams.collect::<Vec<_>>())?.into_any())
            }
        });
        PyList::new(py, replies.collect::<PyResult<Vec<_>>>()?)
    }
}

/// Entries of a stream, by ascending id, as they were read. A slice shares their bytes.
#[pyclass(frozen, name = "Entries", module = "batchqueue._core")]
pub(crate) struct PyEntries(Entries);

#[pymethods]
impl PyEntries {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, places: &Bound<'_, PySlice>) -> PyResult<Self> {
        let length = isize::try_from(self.0.len())?;
        let places = places.indices(length)?;
        if places.step != 1 {
            return Err(PyTypeError::new_err("the step of a slice of entries is 1"));
        }
        let begin = usize::try_from(places.start)?;
        Ok(Self(self.0.slice(begin..begin.max(usize::try_from(places.stop)?))))
    }

    /// The offset of the first entry.
    #[getter]
    fn first(&self) -> PyResult<u64> {
        self.checked(0).map(|place| self.0.offset(place))
    }

    /// The offset of the last entry.
    #[getter]
    fn last(&self) -> PyResult<u64> {
        self.checked(self.0.len().wrapping_sub(1)).map(|place| self.0.offset(place))
    }

    /// Return the values of the entries, up to the first that cannot be decoded.
    ///
    /// Args:
    ///     decode: Takes the bytes of a value and its offset, and returns the value.
    ///     plain: Values of at most so many bytes are not decoded: they stay bytes. Default: None,
    ///         all are decoded.
    ///
    /// Returns:
    ///     The values, and what `decode` raised, or None.
    ///
    /// Raises:
    ///     BaseException: What `decode` raised, if it is not a BatchQueueError.
    #[pyo3(signature = (
        decode: "Any",
        plain: "int | None" = None
    ) -> "tuple[list[Any], BaseException | None]")]
    fn values<'py>(
        &self,
        decode: &Bound<'py, PyAny>,
        plain: Option<usize>,
    ) -> PyResult<(Bound<'py, PyList>, Option<PyErr>)> {
        let py = decode.py();
        let mut values = Vec::with_capacity(self.0.len());
        let mut error = None;
        for place in 0..self.0.len() {
            let value = self.0.value(place);
            let data = PyBytes::new(py, value);
            if plain.is_some_and(|most| value.len() <= most) {
                values.push(data.into_any());
                continue;
            }
            match guarded_call(decode, (data, self.0.offset(place))) {
                Ok(value) => values.push(value),
                Err(problem) if problem.is_instance_of::<BatchQueueError>(py) => {
                    error = Some(problem);
                    break;
                }
                Err(problem) => return Err(problem),
            }
        }
        Ok((PyList::new(py, values)?, error))
    }

    /// Return records of the first entries.
    ///
    /// Args:
    ///     values: What `values` has returned, or other values for the first entries.
    ///
    /// Raises:
    ///     IndexError: There are more values than entries.
    #[pyo3(signature = (values: "list[Any]") -> "list[Any]")]
    fn records<'py>(&self, values: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        let maker = RecordMaker::new(values.py())?;
        let records = values.iter().enumerate().map(|(place, value)| {
            self.checked(place)?;
            maker.record(&self.0, place, value)
        });
        PyList::new(values.py(), records.collect::<PyResult<Vec<_>>>()?)
    }

    /// Return offset, value, key and headers of the entry with an offset.
    ///
    /// Raises:
    ///     IndexError: It is not there.
    #[pyo3(signature = (offset: "int") -> "tuple[int, bytes, bytes | None, tuple[Any, ...]]")]
    fn entry<'py>(&self, py: Python<'py>, offset: u64) -> PyResult<Bound<'py, PyTuple>> {
        let place = self.0.find(offset).ok_or_else(|| PyIndexError::new_err(offset))?;
        let parts = self.0.parts(place);
        let key = parts.key.map(|key| PyBytes::new(py, key));
        (offset, PyBytes::new(py, parts.value), key, headers(py, &parts.headers)?).into_pyobject(py)
    }
}

impl PyEntries {
    fn checked(&self, place: usize) -> PyResult<usize> {
        (place < self.0.len()).then_some(place).ok_or_else(|| PyIndexError::new_err("no entries"))
    }
}

/// Makes objects of the class `batchqueue.groups.record.Record`, a named tuple.
struct RecordMaker<'py> {
    class: Bound<'py, PyAny>,
    /// `tuple.__new__`: the class's own is written in Python and takes three times as long.
    make: Bound<'py, PyAny>,
    no_headers: Bound<'py, PyAny>,
}

impl<'py> RecordMaker<'py> {
    fn new(py: Python<'py>) -> PyResult<Self> {
        let class = py.import("batchqueue.groups.record")?.getattr("Record")?;
        let make = py.get_type::<PyTuple>().getattr("__new__")?;
        let no_headers = PyTuple::empty(py).into_any();
        Ok(Self { class, make, no_headers })
    }

    fn record(
        &self,
        entries: &Entries,
        place: usize,
        value: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = self.make.py();
        let (key, headers) = if entries.has_only_a_value(place) {
            (None, self.no_headers.clone())
        } else {
            let parts = entries.parts(place);
            let key = parts.key.map(|key| PyBytes::new(py, key));
            (key, headers(py, &parts.headers)?.into_any())
        };
        let fields = (value, key, entries.offset(place), entries.milliseconds(place), headers);
        guarded_call(&self.make, (&self.class, fields))
    }
}

/// Returns headers as pairs of a str and bytes.
fn headers<'py>(py: Python<'py>, headers: &[(&[u8], &[u8])]) -> PyResult<Bound<'py, PyTuple>> {
    let pairs = headers.iter().map(|(name, value)| {
        let name = match std::str::from_utf8(name) {
            Ok(name) => PyString::new(py, name).into_any(),
            // Encoding with the same error handler restores the bytes.
            Err(_) => PyBytes::new(py, name).call_method1("decode", ("utf8", "surrogateescape"))?,
        };
        (name, PyBytes::new(py, value)).into_pyobject(py)
    });
    PyTuple::new(py, pairs.collect::<PyResult<Vec<_>>>()?)
}
