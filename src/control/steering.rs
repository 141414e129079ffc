//! What drain threads ask of the control side.

use crate::control::agenda::Visits;
use crate::control::departure::CHECKS_WHEN_IDLE;
use crate::control::retirements::Retirement;
use crate::control::slow_calls::SLOW_CALL;
use crate::flow::state::Steering;
use crate::item::Item;
use crate::shared::{Control, QUIET};
use crate::sync::Arc;

impl<T: Item> Steering<T> for Control<T> {
    #[cold]
    fn begin_slow_call(self: Arc<Self>, thread: usize) {
        // During a visit, this is left to the next one.
        if self.supervision.is_on
            && self.supervision.tick <= SLOW_CALL
            && let Some(mut seen) = self.supervision.seen.try_lock()
        {
            let thread = &mut seen.threads[thread];
            (thread.is_away, thread.is_long, thread.here_ticks) = (true, true, 0);
            self.take_over(&mut seen);
        }
    }

    fn watch_side_call(&self) {
        // An idle queue has such calls for ever, so they ask for less: for one look in a second.
        // Ordered by the lock of the tally, which `disarm` takes after it has cleared the mark.
        if !self.flow.arming.has(Visits::Rare) {
            self.supervision.seen.lock().quiet_ticks = self.supervision.ticks(QUIET) - 2;
            self.flow.arming.ask(Visits::Rare, QUIET);
        }
    }

    fn ended_retirements(&self, all: bool) -> Vec<Retirement<T>> {
        if !self.flow.retirements.are_pending() {
            return Vec::new();
        }
        // Under the control lock no handler loses a type: an instance that serves none, and is in
        // no other retirement, has had its last batch, and no other thread comes to that result.
        let _state = self.state.lock();
        self.flow.retirements.take_quiet(
            all,
            |handler| self.flow.serves(handler),
            &self.flow.watcher(),
        )
    }

    fn end_departures_when_idle(&self) {
        // Not in loom, which has no end of empty cycles to explore.
        if cfg!(loom) || !self.departures.are_pending() {
            return;
        }
        // Another thread that holds the lock may do so for long.
        if let Some(mut state) = self.state.try_lock() {
            self.end_departures(&mut state, CHECKS_WHEN_IDLE);
        }
    }

    fn end_watch(&self) {
        // A thread that hangs is watched as long as it does.
        if !cfg!(loom) && self.flow.ending.running().begin_end() {
            self.watch.end();
        }
    }

    fn close_after_panic(&self) {
        let name = &self.flow.name;
        self.flow.warn(format!(
            "queue {name}: a drain thread panicked outside of its handlers; the queue shuts down"
        ));
        self.close();
        self.expire();
    }

    fn let_go(self: Arc<Self>) {
        Self::let_go(self);
    }
}
