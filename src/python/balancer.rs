//! The balancer of a queue, as its config names it.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::call::{call_handler, release};
use crate::{Assign, ConfigError, DrainBalancer};

/// The facade's `DrainBalancer`.
#[derive(FromPyObject)]
pub(super) struct BalancerSettings {
    kind: String,
    skip_ratio: f64,
    function: Option<Py<PyAny>>,
}

impl BalancerSettings {
    pub(super) fn core(self) -> Result<DrainBalancer, ConfigError> {
        match (self.kind.as_str(), self.function) {
            ("custom", Some(function)) => Ok(DrainBalancer::custom(Arc::new(PyAssign(function)))),
            ("cost_weighted", _) => DrainBalancer::cost_weighted().with_skip_ratio(self.skip_ratio),
            _ => DrainBalancer::throughput_weighted().with_skip_ratio(self.skip_ratio),
        }
    }
}

/// An assignment written in Python. Called attached, on the control thread or on a thread that asked for a run.
struct PyAssign(Py<PyAny>);

impl Assign for PyAssign {
    fn assign(&self, load: &[f64], owner: &[usize], threads: usize) -> Result<Option<Vec<usize>>, String> {
        Python::attach(|py| {
            let given = PyList::new(py, load).and_then(|load| {
                let owner = PyList::new(py, owner)?;
                PyTuple::new(py, [load.as_any(), owner.as_any(), threads.into_pyobject(py)?.as_any()])
            });
            let args = given.map_err(|memory| memory.to_string())?;
            let result = call_handler(self.0.bind(py), &args);
            release(args.into_any());
            let plan = result.map_err(|error| format!("the custom balancer raised {error}"))?;
            let wanted = plan.extract::<Option<Vec<i64>>>().map_err(|_| {
                let shown = plan.repr().map_or_else(|_| "something".to_owned(), |repr| repr.to_string());
                format!(
                    "the custom balancer returned {shown}: give a list with one drain thread per partition, or None"
                )
            });
            release(plan);
            // What is no thread stays none: the core refuses the plan, and says why.
            Ok(wanted?.map(|plan| plan.into_iter().map(|one| usize::try_from(one).unwrap_or(usize::MAX)).collect()))
        })
    }
}
