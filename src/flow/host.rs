//! The world that handlers live in. Rust handlers need none; Python handlers need the interpreter.

use crate::item::{Item, TypeKey};

/// Wraps what drain threads do, so that the core never names an interpreter.
pub trait Host<T: Item>: Send + Sync + 'static {
    /// Runs the whole life of one drain thread.
    fn live(&self, body: &mut (dyn FnMut() + Send)) {
        body();
    }

    /// Runs everything that looks into items or calls handlers: once per cycle with work, unless no
    /// handler [needs](crate::Handler::needs_host) it. May be called inside itself.
    fn enter(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs several cycles, each with its own [`enter`](Self::enter), which costs less inside.
    fn stay(&self, body: &mut dyn FnMut()) {
        body();
    }

    /// Runs what needs no host: a wait for another thread, a handler that can do without. Mostly
    /// from inside [`enter`](Self::enter).
    fn leave(&self, wait: &mut (dyn FnMut() + Send)) {
        wait();
    }

    /// Tells the operator of something that may need a hand.
    fn log(&self, line: &str) {
        log::warn!(target: "batchqueue", "{line}");
    }

    /// Tells the operator of something that went as it should.
    fn inform(&self, line: &str) {
        log::info!(target: "batchqueue", "{line}");
    }

    /// Why an item may have no handler although there are some, for the log. Called inside
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
