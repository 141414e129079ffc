//! The drain threads of a queue: how they sleep and how they are woken.

mod park;

pub(crate) use park::{SleepAttempt, SleepKind, Sleeper, Waker, sleeper};
