//! The host that handlers run in. Rust handlers need none; Python handlers need the interpreter.

use crate::control::scheduler::ThreadBody;
use crate::flow::handler::Batch;
use crate::item::{Item, TypeKey};

/// Wraps the work of drain threads, so that the core never refers to an interpreter.
pub trait Host<T: Item>: Send + Sync + 'static {
    /// Runs a drain thread from start to end. The host may have ended, and not run `body`.
    fn live(&self, body: ThreadBody) {
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

    /// A number by which the host knows the calling thread.
    fn thread_number(&self) -> u64 {
        0
    }

    /// What a thread is called, if the host knows it. May wait for the host.
    fn thread_name(&self, _number: u64) -> Option<String> {
        None
    }

    /// The calls that a thread is inside of, if the host knows them. May wait for the host.
    fn thread_stack(&self, _number: u64) -> Option<String> {
        None
    }

    /// A hint for the log: why an item may have no handler although others do. Called inside
    /// [`enter`](Self::enter).
    fn unhandled_hint(&self, _item: &T, _has_handler: &dyn Fn(TypeKey) -> bool) -> Option<String> {
        None
    }

    /// The items of a batch are about to be dropped, or to go to a handler of dead letters, because
    /// no handler gets them, or gets them again. Called inside [`enter`](Self::enter).
    fn note_unhandled(&self, _items: &Batch<T>, _were_tried: bool) {}

    /// The time of a shutdown is over, and all that is not settled was abandoned. Called without a
    /// lock.
    fn note_abandoned(&self) {}

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
