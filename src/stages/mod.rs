//! What a stage of a pipeline holds and what it does with its time: the state behind the classes of
//! Python that every chunk passes several times.
//!
//! All of it is plain data. The bindings keep it behind a lock and read the clock; Python waits.

pub(crate) mod gate;
pub(crate) mod meters;
#[cfg(all(test, not(loom)))]
mod tests;
