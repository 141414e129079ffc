//! The handlers of a queue, and the threads that call them.
//!
//! | file | what |
//! |---|---|
//! | `registry` | the types and handlers that a queue was given |
//! | `spec` | a handler to register |
//! | `py_handler` | one Python handler as the core calls it |
//! | `letters` | what a handler of dead letters gets |
//! | `retry_on` | the exceptions after which a batch is tried again |
//! | `failed_part` | a call that failed, perhaps only for a part of its batch |
//! | `desks` | the desks of handler instances |
//! | `host` | the interpreter as the host of drain threads |

mod desks;
mod failed_part;
mod host;
mod letters;
mod py_handler;
mod registry;
mod retry_on;
mod spec;

pub(crate) use desks::forget_desks;
pub(crate) use host::Interpreter;
pub(crate) use py_handler::coroutine_type;
pub(crate) use registry::{CommonCallbacks, HandlerRegistry};
pub(crate) use spec::{HandlerMethods, HandlerOptions};
