//! The balancer of a queue, as its config names it.

use std::cell::Cell;
use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::python::interpreter::{GuardedRef, describe_error, guarded_call, release};
use crate::{Assign, ConfigError, DrainBalancer};

/// The facade's `DrainBalancer`.
#[derive(FromPyObject)]
pub(super) struct BalancerSettings {
    kind: String,
    skip_ratio: f64,
    function: Option<Py<PyAny>>,
}

impl BalancerSettings {
    /// The core's balancer, and the Python function in it, for the garbage collector.
    pub(super) fn core(self) -> Result<(DrainBalancer, Option<Arc<PyAssign>>), ConfigError> {
        let balancer = match (self.kind.as_str(), self.function) {
            ("custom", Some(function)) => {
                let assign = Arc::new(PyAssign(GuardedRef::new(function)));
                return Ok((DrainBalancer::custom(assign.clone()), Some(assign)));
            }
            ("cost_weighted", _) => DrainBalancer::cost_weighted().with_skip_ratio(self.skip_ratio),
            _ => DrainBalancer::throughput_weighted().with_skip_ratio(self.skip_ratio),
        };
        Ok((balancer?, None))
    }
}

thread_local! {
    /// What this thread's run of a balancer is to raise to its caller: `None` while nobody asked.
    static INTERRUPT: Cell<Option<Result<(), PyErr>>> = const { Cell::new(None) };
}

/// Runs a balancer on behalf of a Python caller, who gets an interrupt in a custom one, like
/// `KeyboardInterrupt`.
pub(crate) fn run_for_caller(
    py: Python<'_>,
    run: impl FnOnce() -> usize + Send,
) -> PyResult<usize> {
    let outer = INTERRUPT.replace(Some(Ok(())));
    let moved = py.detach(run);
    let interrupt = INTERRUPT.replace(outer);
    interrupt.unwrap_or(Ok(())).map(|()| moved)
}

/// Keeps an exception that is no `Exception` for the caller, if this thread has one.
fn keep_interrupt(py: Python<'_>, error: &PyErr) {
    let waits = INTERRUPT.take();
    INTERRUPT.set(match waits {
        Some(Ok(())) if !error.is_instance_of::<PyException>(py) => Some(Err(error.clone_ref(py))),
        before => before,
    });
}

/// An assignment written in Python. Called attached, on the control thread or on a thread that
/// asked for a run.
pub(crate) struct PyAssign(GuardedRef);

impl PyAssign {
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&*self.0)
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
            let given = || {
                let assign = py.import("batchqueue._callbacks")?.getattr("assign")?;
                let (load, owner) = (PyList::new(py, load)?, PyList::new(py, owner)?);
                let (function, threads) = (self.0.bind(py), threads.into_pyobject(py)?);
                Ok((
                    assign,
                    PyTuple::new(py, [function, load.as_any(), owner.as_any(), threads.as_any()])?,
                ))
            };
            let (assign, args) = given().map_err(|memory: PyErr| memory.to_string())?;
            // The user's code, and the conversion of what it returns, which may be the user's code
            // as well.
            let result = guarded_call(&assign, &args);
            release(args.into_any());
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
            // What is no thread stays none: the core refuses the plan, and says why.
            let plan = plan.extract::<Option<Vec<i64>>>().map_err(|error| error.to_string())?;
            Ok(plan.map(|plan| {
                plan.into_iter().map(|one| usize::try_from(one).unwrap_or(usize::MAX)).collect()
            }))
        })
    }
}
