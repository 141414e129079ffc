//! The host that handlers run in. Rust handlers need none; Python handlers need the interpreter.

use crate::item::{Item, TypeKey};

/// Wraps the work of drain threads, so that the core never refers to an interpreter.
pub trait Host<T: Item>: Send + Sync + 'static {
    /// Runs a drain thread from start to end.
    fn live(&self, body: &mut (dyn FnMut() + Send)) {
        body();
    }

    /// Runs everything that reads items or calls handlers: once per cycle with work, unless no
    /// handler [needs](crate::Handler::needs_host) it. Calls may be nested.
    fn enter(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs several cycles, each with a nested [`enter`](Self::enter), which makes that cheaper.
    fn stay(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs what needs no host: a wait for another thread, or a handler that does not need it.
    /// Usually called inside [`enter`](Self::enter).
    fn leave(&self, wait: &mut (dyn FnMut() + Send)) {
        wait();
    }

    /// Logs a line about something that may need the operator's attention.
    fn log(&self, line: &str) {
        log::warn!(target: "batchqueue", "{line}");
    }

    /// Logs a line about normal operation.
    fn inform(&self, line: &str) {
        log::info!(target: "batchqueue", "{line}");
    }

    /// A hint for the log: why an item may have no handler although others do. Called inside
    /// [`enter`](Self::enter).
    fn unhandled_hint(&self, _item: &T, _has_handler: &dyn Fn(TypeKey) -> bool) -> Option<String> {
        None
    }

    /// The name of an item's type for the log. Called inside [`enter`](Self::enter), or by a
    /// producer.
    fn type_name(&self, item: &T) -> String {
        format!("type {}", item.type_key().0)
    }
}

/// The host of Rust handlers.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoHost;

impl<T: Item> Host<T> for NoHost {}
