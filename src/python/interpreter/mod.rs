//! Calls into the interpreter, waits outside it, and forks of its process.
//!
//! | file | what |
//! |---|---|
//! | `guarded_call` | calls of the user's code that survive the end of the interpreter |
//! | `callbacks` | what the bindings ask of `batchqueue._callbacks`: log lines, tracebacks |
//! | `pause` | how a Python caller waits: detached, in slices, checking for signals |
//! | `fork` | which objects belong to the parent of a forked process |

mod callbacks;
mod fork;
mod guarded_call;
mod pause;

pub(crate) use callbacks::{describe_error, log};
pub(crate) use fork::{enter_child, generation};
pub(crate) use guarded_call::{GuardedRef, guarded_call, release};
pub(crate) use pause::{InterpreterPause, NoPause, StoppablePause, deadline_of};
