//! Calls into the interpreter, waits outside it, and forks of its process.
//!
//! | file | what |
//! |---|---|
//! | `guarded_call` | calls of the user's code that survive the end of the interpreter |
//! | `callbacks` | what the bindings ask of `batchqueue.queues.callbacks`: log lines, tracebacks |
//! | `pause` | how a Python caller waits: detached, in slices, checking for signals |
//! | `thread` | how a native thread becomes one of Python's |
//! | `timeout` | seconds or a `timedelta`, as callers give them |
//! | `fork` | which objects belong to the parent of a forked process |

mod callbacks;
mod fork;
mod guarded_call;
mod pause;
mod thread;
mod timeout;

pub(crate) use callbacks::{ask_of_thread, describe_error, log, thread_number};
pub(crate) use fork::{generation, run_fork_hooks, settle_in_child, watch_forks};
pub(crate) use guarded_call::{GuardedRef, guarded_call, release};
pub(crate) use pause::{InterpreterPause, NoPause, StoppablePause, deadline_of};
pub(crate) use thread::{prepare_threads, run_thread, use_stacks_of_python};
pub(crate) use timeout::Timeout;
