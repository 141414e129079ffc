//! The control thread: one per process, which runs the balancers of all queues.
//!
//! Balancers do not run on drain threads: in a saturated pool, a balancer that waits for a free
//! worker never runs. The thread starts with the first queue that has one.

use crate::control::agenda::{Agenda, Duty};
use crate::control::balance::Balancing;
use crate::control::helpers::spawn_helper;
use crate::control::log_helper::Line;
use crate::flow::partition::gate::Access;
use crate::item::Item;
use crate::shared::Control;
use crate::sync::{Arc, Duration, Forgettable, Instant, Weak};

/// A custom balancer that has not returned for this long, or for five intervals, is logged.
const HUNG_AFTER: Duration = Duration::from_secs(5);

static CONTROL: Forgettable<Agenda<Balance>> = Forgettable::new();

struct Balance;

/// A queue that has a balancer.
trait Balanced: Send + Sync {
    /// Runs the balancer. Returns after what time it runs again.
    fn balance(self: Arc<Self>) -> Option<Duration>;
}

impl Duty for Balance {
    type Queue = dyn Balanced;

    const THREAD: &'static str = "batchqueue-control";

    fn visit(queue: Arc<dyn Balanced>) -> Option<Duration> {
        queue.balance()
    }
}

impl<T: Item> Balanced for Control<T> {
    fn balance(self: Arc<Self>) -> Option<Duration> {
        let interval = self.balance_interval();
        if self.balancing.as_ref().is_some_and(|balancing| balancing.balancer.is_custom()) {
            self.balance_on_helper();
        } else {
            self.balance_here();
            Self::let_go(self);
        }
        interval
    }
}

/// Registers a queue that has a balancer.
pub(crate) fn register<T: Item>(control: &Arc<Control<T>>) -> std::io::Result<()> {
    let queue: Weak<Control<T>> = Arc::downgrade(control);
    let agenda = CONTROL.get();
    agenda.register(queue, control.balance_interval());
    agenda.start()
}

/// Unregisters a closing queue: its balancer does not run any more.
pub(crate) fn unregister<T: Item>(control: &Control<T>) {
    CONTROL.get().unregister(address(control));
}

/// By which the agenda knows a queue.
fn address<T: Item>(control: &Control<T>) -> usize {
    std::ptr::from_ref(control) as usize
}

/// For the end of the process; see [`Agenda::wait_ended`].
#[cfg(feature = "python")]
pub(crate) fn wait_ended(deadline: Option<Instant>) {
    CONTROL.get().wait_ended(deadline);
}

/// For a forked child: the thread does not exist here, and its lock may be held for ever.
#[cfg(feature = "python")]
pub(crate) fn forget() {
    CONTROL.forget();
}

/// A run of a custom balancer, which ends when this is dropped.
struct Run<T: Item>(Option<Arc<Control<T>>>);

impl<T: Item> Drop for Run<T> {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        if queue.balancing.as_ref().is_some_and(Balancing::end_run) {
            CONTROL.get().request(address(&queue), Instant::now());
        }
        Control::let_go(queue);
    }
}

impl<T: Item> Control<T> {
    fn balance_here(self: &Arc<Self>) {
        let mut lines = Vec::new();
        self.run_balancer(&mut lines);
        for line in lines {
            self.log_helper.log(line);
        }
    }

    /// A custom balancer is user code, which may hang. It has no further run until it returns.
    fn balance_on_helper(self: Arc<Self>) {
        let Some(balancing) = &self.balancing else { return };
        if let Some(since) = balancing.begin_run() {
            self.report_hung_balancer(balancing, since);
            return Self::let_go(self);
        }
        let run = Run(Some(self));
        // If the system has no thread left, the next run tries again.
        let _ = spawn_helper("batchqueue-control-run", move || {
            if let Some(queue) = &run.0 {
                queue.balance_here();
            }
        });
    }

    fn report_hung_balancer(&self, balancing: &Balancing, since: Instant) {
        let limit = HUNG_AFTER.max(5 * self.flow.config.rebalance_interval);
        if since.elapsed() > limit && balancing.hung_log.items_due((), 1, Instant::now()).is_some()
        {
            let line = Line::Warning(format!(
                "queue {}: the balancer has not returned for {} s; it has no further run until it \
                 does",
                self.flow.name,
                since.elapsed().as_secs()
            ));
            self.log_helper.log(line);
        }
    }

    /// With an interval of zero, the balancer runs on request only.
    fn balance_interval(&self) -> Option<Duration> {
        Some(self.flow.config.rebalance_interval).filter(|interval| !interval.is_zero())
    }

    /// [`rebalance`](Self::rebalance) for a caller that must not wait.
    pub(crate) fn rebalance_soon(&self) {
        if self.balancing.is_some() && self.state.lock().access == Access::Open {
            CONTROL.get().request(address(self), Instant::now());
        }
    }
}
