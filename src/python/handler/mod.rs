//! The handlers of a queue, and the threads that call them.
//!
//! | file | what |
//! |---|---|
//! | `registry` | the handlers that a queue was given, and which of them a class goes to |
//! | `py_handler` | one Python handler as the core calls it: results, dead letters, failed parts |
//! | `host` | the interpreter as the host of drain threads |

pub(crate) mod host;
pub(crate) mod py_handler;
pub(crate) mod registry;

pub(crate) use crate::python::handler::host::Interpreter;
pub(crate) use crate::python::handler::py_handler::coroutine_type;
pub(crate) use crate::python::handler::registry::{
    HandlerMethods, HandlerOptions, HandlerRegistry, forget_locks,
};
