//! Handler calls that carry no items: `on_idle` after an empty cycle, and `on_close` once, after
//! the last batch.

use crate::flow::consumption::Consumption;
use crate::flow::dispatch::call;
use crate::flow::dispatch_log::SideCall;
use crate::flow::drain::DrainTask;
use crate::flow::handler::HandlerRef;
use crate::flow::route::IdleHandler;
use crate::item::Item;
use crate::observe::Calling;
use crate::shared::Shared;
use crate::sync::{Arc, Instant, Ordering, fence};
use crate::thread_context::HandlerScope;

impl<T: Item> DrainTask<T> {
    /// Calls `on_close` of replaced or removed handlers if this thread is the last that had to pass
    /// a quiescent point.
    pub(super) fn retire_handlers(&mut self) {
        let mut ended = self.shared.ended_retirements(self.index);
        if ended.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        shared.host.enter(&mut || {
            for retirement in ended.drain(..) {
                for handler in &retirement.to_close {
                    self.call_alone(handler, SideCall::OnClose);
                }
                retirement.end();
            }
        });
    }

    pub(super) fn call_on_idle(&mut self) {
        let shared = self.shared.clone();
        self.has_idle_handlers = false;
        if let Consumption::ByHandler = shared.consumption {
            let idle_handlers = shared.route.idle_handlers();
            if !idle_handlers.iter().any(|idle| shared.owns(self.index, idle.home)) {
                return;
            }
            self.has_idle_handlers = true;
            shared.host.enter(&mut || {
                for idle in &*idle_handlers {
                    if shared.owns(self.index, idle.home) {
                        self.call_on_idle_of(&shared, &idle_handlers, idle);
                    }
                }
            });
        } else if let Some(consumer) = shared.consumption.side_called_by(self.index)
            && consumer.handler.has_on_idle()
        {
            self.has_idle_handlers = true;
            shared.host.enter(&mut || self.call_alone(&consumer, SideCall::OnIdle));
        }
    }

    /// Calls `on_idle` inside the handler's home partition, unless the list of handlers has changed
    /// since: then the next empty cycle does.
    fn call_on_idle_of(
        &mut self,
        shared: &Shared<T>,
        listed: &Arc<Vec<IdleHandler<T>>>,
        idle: &IdleHandler<T>,
    ) {
        let Some(_turn) = shared.enter(self.index, idle.home) else { return };
        // SeqCst: pairs with the fence of `retire`, between its change of the list and its read of
        // the owner word: either this thread sees the change, or the removal waits for it.
        fence(Ordering::SeqCst);
        if Arc::ptr_eq(&shared.route.idle_handlers(), listed) {
            self.call_alone(&idle.handler, SideCall::OnIdle);
        }
    }

    /// Makes the last call of each handler. The remaining threads take handlers from a shared list,
    /// so none of them waits for a thread that hangs.
    pub(super) fn close_handlers(&mut self) {
        let shared = self.shared.clone();
        shared.host.enter(&mut || {
            if let Some(consumer) = shared.consumption.side_called_by(self.index) {
                self.call_alone(&consumer, SideCall::OnClose);
            }
            // Handlers beside a consumer get no items, but they were added, so they are closed too.
            while let Some(handler) = shared.ending.next_to_close(|| self.handlers_to_close()) {
                self.call_alone(&handler, SideCall::OnClose);
            }
        });
    }

    /// All instances that serve a type, but for the queue's consumers.
    fn handlers_to_close(&self) -> Vec<HandlerRef<T>> {
        let instances = self.shared.route.instances().into_iter().map(|idle| idle.handler);
        instances.filter(|handler| !self.shared.consumption.includes(handler)).collect()
    }

    fn call_alone(&mut self, handler: &HandlerRef<T>, method: SideCall) {
        let token = handler.token.clone();
        let entered = token.try_enter();
        if entered.is_none() && method == SideCall::OnIdle {
            return; // Another thread is inside, so the handler is not idle.
        }
        let _entered = entered.or_else(|| self.shared.enter_in_turn(&token));
        // Another thread that held the token before may have closed the handler.
        if method == SideCall::OnIdle && self.shared.ending.is_expired() {
            return;
        }
        let name = handler.handler.name();
        let tally = &self.slot().tally;
        tally.side_call(Some((Calling::Named(name.as_str().into()), Instant::now())));
        let holding = HandlerScope::of(&handler.token);
        let _compensation = self.shared.compensate_for(handler);
        let result = call(&name, || match method {
            SideCall::OnIdle => handler.handler.on_idle(),
            SideCall::OnClose => handler.handler.on_close(),
        });
        drop(holding);
        tally.side_call(None);
        if let Err(failure) = result
            && !failure.reported
            && let Some(times) = self.shared.dispatch_log.note_side_call(method, &name)
        {
            let queue = &self.shared.name;
            self.lines.push(format!(
                "queue {queue}: {method:?} of handler {name} failed {times} times: {failure}"
            ));
        }
    }
}
