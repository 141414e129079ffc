//! Handler calls that carry no items: `on_idle` after an empty cycle, and `on_close` once, after
//! the last batch.

use crate::flow::desk::call::call;
use crate::flow::handler::HandlerRef;
use crate::flow::handler::consumption::Consumption;
use crate::flow::handler::dispatch_log::SideCall;
use crate::flow::turn::task::DrainTask;
use crate::item::Item;
use crate::observe::Calling;
use crate::sync::Instant;
use crate::thread_context::HandlerScope;

impl<T: Item> DrainTask<T> {
    /// Calls `on_close` of replaced or removed handlers that no thread is inside any more; or, at
    /// the end of the queue, of all of them, which only other queues are inside then.
    pub(super) fn retire_handlers(&mut self, at_end: bool) {
        let mut ended = self.steering.ended_retirements(at_end);
        if ended.is_empty() {
            return;
        }
        let flow = self.flow.clone();
        flow.host.enter(&mut || {
            for retirement in ended.drain(..) {
                for handler in &retirement.to_close {
                    self.call_on_close_of(handler);
                }
                if let Some(line) = retirement.end(&flow.name) {
                    flow.warn(line);
                }
            }
        });
    }

    pub(super) fn call_on_idle(&mut self) {
        let flow = self.flow.clone();
        self.has_idle_handlers = false;
        if let Consumption::ByHandler = flow.consumption {
            let thread = self.index;
            let idle_handlers = flow.route.idle_handlers(|home| flow.owns(thread, home));
            if idle_handlers.is_empty() {
                return;
            }
            self.has_idle_handlers = true;
            flow.host.enter(&mut || {
                for idle in idle_handlers.iter().filter(|idle| flow.owns(thread, idle.home)) {
                    // There may be many, and a caller may wait for the end of a removed one.
                    if flow.retirements.are_pending() {
                        self.retire_handlers(false);
                    }
                    // At the desk: a removal sees this thread there, or has changed the list.
                    let is_listed = || flow.route.lists_idle(&idle.handler);
                    self.call_on_idle_of(&idle.handler, is_listed);
                }
            });
        } else if let Some(consumer) = flow.consumption.side_called_by(self.index)
            && consumer.handler.has_on_idle()
        {
            self.has_idle_handlers = true;
            flow.host.enter(&mut || self.call_on_idle_of(&consumer, || true));
        }
    }

    /// Makes the last call of each handler. The remaining threads take handlers from a shared list,
    /// so none of them waits for a thread that hangs.
    pub(super) fn close_handlers(&mut self) {
        let flow = self.flow.clone();
        flow.host.enter(&mut || {
            if let Some(consumer) = flow.consumption.side_called_by(self.index) {
                self.call_on_close_of(&consumer);
            }
            // Handlers beside a consumer get no items, but they were added, so they are closed too.
            while let Some(handler) = flow.ending.next_to_close(|| self.handlers_to_close()) {
                self.call_on_close_of(&handler);
            }
        });
    }

    /// All instances that serve a type, but for the queue's consumers.
    fn handlers_to_close(&self) -> Vec<HandlerRef<T>> {
        let keeper = self.flow.dead_letters.of_queue.as_ref().map(|of_queue| &of_queue.handler);
        let others = self.flow.route.instances().into_iter().map(|idle| idle.handler);
        let others = others.filter(|handler| keeper.is_none_or(|keeper| !keeper.is(handler)));
        let instances = others.chain(keeper.cloned());
        instances.filter(|handler| !self.flow.consumption.includes(handler)).collect()
    }

    /// Calls `on_idle` if no thread is inside the handler, and it `is_listed` still.
    fn call_on_idle_of(&mut self, handler: &HandlerRef<T>, is_listed: impl FnOnce() -> bool) {
        if !handler.desk.try_enter(self.flow.address()) {
            return; // Another thread is inside, so the handler is not idle.
        }
        // Another thread that held the desk before may have closed the handler.
        if !self.flow.ending.is_expired() && is_listed() {
            self.call_alone(handler, SideCall::OnIdle);
        }
        self.leave(handler);
    }

    /// Calls `on_close`. Waits for a thread that is inside the handler for another queue.
    fn call_on_close_of(&mut self, handler: &HandlerRef<T>) {
        self.flow.enter_in_turn(&handler.desk);
        self.serve_letters_of(handler);
        self.call_alone(handler, SideCall::OnClose);
        self.leave(handler);
    }

    /// After a side call. Jobs that were posted meanwhile are submitted again.
    fn leave(&self, handler: &HandlerRef<T>) {
        self.flow.release(&handler.desk, false);
    }

    /// At the handler's desk.
    fn call_alone(&mut self, handler: &HandlerRef<T>, method: SideCall) {
        let name = handler.handler.name();
        let tally = &self.slot().tally;
        tally.side_call(Some((Calling::Named(name.as_str().into()), Instant::now())));
        self.steering.watch_side_call();
        let holding = HandlerScope::of(&handler.desk);
        let _compensation = self.flow.compensate_for(handler);
        let result = call(&name, || match method {
            SideCall::OnIdle => handler.handler.on_idle(),
            SideCall::OnClose => handler.handler.on_close(),
        });
        drop(holding);
        tally.side_call(None);
        if let Err(failure) = result
            && !failure.reported
            && let Some(times) = self.flow.dispatch_log.note_side_call(method, &name)
        {
            let queue = &self.flow.name;
            self.flow.warn(format!(
                "queue {queue}: {method:?} of handler {name} failed {times} times: {failure}"
            ));
        }
    }
}
