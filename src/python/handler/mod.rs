//! The handlers of a queue, and the threads that call them.
//!
//! | file | what |
//! |---|---|
//! | `registry` | the types and handlers that a queue was given |
//! | `py_handler` | one Python handler as the core calls it |
//! | `token` | the entry tokens of handler instances |
//! | `host` | the interpreter as the host of drain threads |

mod host;
mod py_handler;
mod registry;
mod token;

pub(crate) use host::Interpreter;
pub(crate) use py_handler::coroutine_type;
pub(crate) use registry::{CommonCallbacks, HandlerMethods, HandlerRegistry};
pub(crate) use token::forget_tokens;
