//! The balancer of a queue, as its config names it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::python::interpreter::{GuardedRef, describe_error, guarded_call, release};
use crate::{Assign, DrainBalancer};

/// The facade's `DrainBalancer`.
#[derive(FromPyObject)]
pub(super) struct BalancerSettings {
    kind: String,
    skip_ratio: f64,
    function: Option<Py<PyAny>>,
}

impl BalancerSettings {
    /// Returns the core's balancer, and the Python function in it for the garbage collector.
    pub(super) fn core(self) -> Result<(DrainBalancer, Option<Arc<PyAssign>>), crate::ConfigError> {
        let balancer = match (self.kind.as_str(), self.function) {
            ("custom", Some(function)) => {
                let function = GuardedRef::new(function);
                let assign = Arc::new(PyAssign { function, is_over: AtomicBool::new(false) });
                return Ok((DrainBalancer::custom(assign.clone()), Some(assign)));
            }
            ("load_weighted", _) => DrainBalancer::load_weighted().with_skip_ratio(self.skip_ratio),
            _ => DrainBalancer::throughput_weighted().with_skip_ratio(self.skip_ratio),
        };
        Ok((balancer?, None))
    }
}

thread_local! {
    /// The interrupt that the running balancer raises to its caller on this thread; `None` while no
    /// caller waits for one.
    static INTERRUPT: Cell<Option<Result<(), PyErr>>> = const { Cell::new(None) };
}

/// Runs a balancer on behalf of a Python caller. An interrupt in a custom balancer, like
/// `KeyboardInterrupt`, is raised to the caller.
pub(crate) fn run_for_caller(
    py: Python<'_>,
    run: impl FnOnce() -> usize + Send,
) -> PyResult<usize> {
    let outer = INTERRUPT.replace(Some(Ok(())));
    let moved = py.detach(run);
    let interrupt = INTERRUPT.replace(outer);
    interrupt.unwrap_or(Ok(())).map(|()| moved)
}

/// Keeps an interrupt, which is not an `Exception`, for this thread's caller if there is one.
fn keep_interrupt(py: Python<'_>, error: &PyErr) {
    let interrupt = INTERRUPT.take();
    INTERRUPT.set(match interrupt {
        Some(Ok(())) if !error.is_instance_of::<PyException>(py) => Some(Err(error.clone_ref(py))),
        before => before,
    });
}

/// An assignment written in Python. It runs on the control thread, or on the thread that called
/// `rebalance`.
///
/// The control thread may still be about to call it when the queue has ended. By then the function
/// may be garbage: the collector takes it for the queue's alone, and clears it whatever a native
/// thread does meanwhile. So it is not called any more once the collector has seen it.
pub(crate) struct PyAssign {
    function: GuardedRef,
    is_over: AtomicBool,
}

impl PyAssign {
    /// For a queue that has ended.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Relaxed: the collector holds the GIL, or has stopped all threads that are attached.
        self.is_over.store(true, Ordering::Relaxed);
        visit.call(&*self.function)
    }
}

impl Assign for PyAssign {
    fn assign(
        &self,
        load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        Python::attach(|py| {
            // First the reference, which the collector counts, then the question.
            let function = self.function.bind(py).clone();
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let prepare = || {
                let assign = py.import("batchqueue.queues.callbacks")?.getattr("assign")?;
                let (load, owner) = (PyList::new(py, load)?, PyList::new(py, owner)?);
                let threads = threads.into_pyobject(py)?;
                Ok((
                    assign,
                    PyTuple::new(py, [&function, load.as_any(), owner.as_any(), threads.as_any()])?,
                ))
            };
            let (assign, args) = prepare().map_err(|memory: PyErr| memory.to_string())?;
            // Guarded: the function is the user's code, and the conversion of its result may be.
            let result = guarded_call(&assign, &args);
            release(args.into_any());
            release(function);
            let plan = result.map_err(|error| {
                keep_interrupt(py, &error);
                format!(
                    "the custom balancer raised {}",
                    describe_error(py, error.into_value(py).into_bound(py).into_any())
                )
            })?;
            if let Ok(problem) = plan.extract::<String>() {
                return Err(problem);
            }
            // Invalid thread ids are kept as an id that is out of range: the core rejects the plan
            // and says why.
            let plan = plan.extract::<Option<Vec<i64>>>().map_err(|error| error.to_string())?;
            Ok(plan.map(|plan| {
                plan.into_iter()
                    .map(|thread| usize::try_from(thread).unwrap_or(usize::MAX))
                    .collect()
            }))
        })
    }
}
