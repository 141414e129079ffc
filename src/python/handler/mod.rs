//! The handlers of a queue, and the threads that call them.
//!
//! | file | what |
//! |---|---|
//! | `registry` | the types and handlers that a queue was given |
//! | `known` | what a registry knows of each of them |
//! | `resolution` | which handler the items of a class go to: base classes, the default |
//! | `spec` | a handler to register |
//! | `py_handler` | one Python handler as the core calls it |
//! | `opening` | `on_open`, which comes before the first batch |
//! | `letters` | what a handler of dead letters gets |
//! | `retry_on` | the exceptions after which a batch is tried again |
//! | `failed_part` | a call that failed, perhaps only for a part of its batch |
//! | `results` | the results of submitted items |
//! | `desks` | the desks of handler instances |
//! | `host` | the interpreter as the host of drain threads |

mod desks;
mod failed_part;
mod host;
mod known;
mod letters;
mod opening;
mod py_handler;
mod registry;
mod resolution;
mod results;
mod retry_on;
mod spec;

pub(crate) use desks::forget_desks;
pub(crate) use host::Interpreter;
pub(crate) use py_handler::coroutine_type;
pub(crate) use registry::{CommonCallbacks, HandlerRegistry};
pub(crate) use spec::{HandlerMethods, HandlerOptions};
