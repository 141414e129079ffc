//! The control thread: one per process, which runs the balancers of all queues.
//!
//! Balancers do not run on drain threads: in a saturated pool, a balancer would wait for a free
//! worker forever. The thread starts with the first queue that has a balancer.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::balance::plan::{
    hold_back, load_ratio, moves, oversized, plan_around, spread, thread_loads,
};
use crate::config::Selector;
use crate::control::log_helper::Line;
use crate::control::meter::{Measure, Meter};
use crate::control::state::{Balancing, Control};
use crate::flow::partition::Access;
use crate::flow::route::TypeRoute;
use crate::item::Item;
use crate::observe::STUCK_AFTER;
use crate::sync::{Arc, Duration, Forgettable, Instant, Weak, thread_local};
use crate::threads::agenda::{Agenda, Duty, spawn_helper};
use crate::threads::slots::ThreadSlot;

/// A custom balancer that has not returned for this long, and for five intervals, is logged.
const HUNG_AFTER: Duration = Duration::from_secs(5);

static CONTROL: Forgettable<Agenda<Balance>> = Forgettable::new();

struct Balance;

/// A queue that has a balancer.
trait Balanced: Send + Sync {
    /// Runs the balancer. Returns the delay until the next run, or `None` if it runs on request
    /// only.
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

/// Unregisters a closing queue, so that its balancer no longer runs.
pub(crate) fn unregister<T: Item>(control: &Control<T>) {
    CONTROL.get().unregister(address(control));
}

/// Returns the key of a queue in the agenda.
fn address<T: Item>(control: &Control<T>) -> usize {
    std::ptr::from_ref(control) as usize
}

/// Waits for the control thread when the process exits; see [`Agenda::wait_ended`].
#[cfg(feature = "python")]
pub(crate) fn wait_ended(deadline: Option<Instant>) {
    CONTROL.get().wait_ended(deadline);
}

/// Resets the agenda in a forked child, where the thread does not exist and its lock may never be
/// released.
#[cfg(feature = "python")]
pub(crate) fn forget() {
    CONTROL.forget();
}

/// A run of a custom balancer, ended on drop.
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

    /// Runs a custom balancer, user code that may hang, on a helper thread. It is not run again
    /// until it returns.
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

    /// Returns `None` if the interval is zero: the balancer then runs on request only.
    fn balance_interval(&self) -> Option<Duration> {
        Some(self.flow.config.rebalance_interval).filter(|interval| !interval.is_zero())
    }

    /// Requests a run of the balancer, for a caller that must not wait.
    pub(crate) fn rebalance_soon(&self) {
        if self.balancing.is_some() && self.state.lock().access == Access::Open {
            CONTROL.get().request(address(self), Instant::now());
        }
    }
}

// One run of a queue's balancer: read the meter, plan, move.

/// A partition is logged as oversized if it exceeds a thread's fair share by this factor.
const OVERSIZED_BY: f64 = 1.05;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local)] // loom's macro has no const form
    /// Whether this thread is inside a balancer, which may be user code.
    static BALANCES: Cell<bool> = Cell::new(false);
}

struct InsideBalancer(());

impl InsideBalancer {
    /// Returns `None` if this thread is already inside a balancer.
    fn enter() -> Option<Self> {
        if BALANCES.with(|balances| balances.replace(true)) { None } else { Some(Self(())) }
    }
}

impl Drop for InsideBalancer {
    fn drop(&mut self) {
        BALANCES.with(|balances| balances.set(false));
    }
}

/// The outcome of one run.
struct Decision {
    /// The wanted thread of each partition.
    plan: Vec<usize>,
    load: Vec<f64>,
    owner: Vec<usize>,
}

impl<T: Item> Control<T> {
    /// Runs the balancer on the loads since its last run. Returns the number of partitions whose
    /// wanted owner changed.
    ///
    /// The plan is made outside the control lock, so producers and drain threads are not affected
    /// and a custom balancer may take long.
    pub(crate) fn rebalance(self: &Arc<Self>) -> usize {
        let mut lines = Vec::new();
        let begun = self.run_balancer(&mut lines);
        for line in lines {
            line.log(&*self.flow.host);
        }
        begun
    }

    /// Implements [`rebalance`](Self::rebalance); adds lines for the log to `lines`.
    fn run_balancer(self: &Arc<Self>, lines: &mut Vec<Line>) -> usize {
        let Some(balancing) = &self.balancing else { return 0 };
        let Some(_inside) = InsideBalancer::enter() else { return 0 };
        let mut meter = balancing.meter.lock();
        let Some(decision) = self.decide(balancing, &mut meter, lines) else { return 0 };
        let begun = {
            let mut state = self.state.lock();
            let wanted = moves(&decision.owner, &decision.plan).into_iter();
            wanted.filter(|step| self.hand_over(&mut state, step.partition, step.to)).count()
        };
        balancing.figures.lock().moves += begun as u64;
        self.forget_loans();
        drop(meter);
        if begun > 0 {
            let delta = |owner: &[usize]| {
                spread(&thread_loads(&decision.load, owner, self.flow.threads.len())) * 100.0
            };
            lines.push(Line::Info(format!(
                "queue {}: rebalanced {begun} partitions, max thread load delta: {:.0}% -> {:.0}%",
                self.flow.name,
                delta(&decision.owner),
                delta(&decision.plan)
            )));
        }
        begun
    }

    /// Measures and plans. Returns `None` if all partitions stay where they are.
    fn decide(
        &self,
        balancing: &Balancing,
        meter: &mut Meter,
        lines: &mut Vec<Line>,
    ) -> Option<Decision> {
        let threads = self.flow.threads.len();
        let by_load = balancing.balancer.is_load_weighted();
        let measure = if by_load { Measure::Busy } else { Measure::Attempts };
        let calls = || {
            let running = self.flow.threads.iter().filter(|slot| slot.has_run());
            running.filter_map(|slot| slot.tally.counts().calling).collect()
        };
        let reading = meter.read(&self.flow.route, measure, calls);
        let load = reading.load().to_vec();
        // The wanted owners: a partition in a handoff counts for its new owner, and one on a spare
        // thread for the thread that will get it back.
        let owner = self.planned_owners(load.len());
        {
            let mut figures = balancing.figures.lock();
            figures.rebalances += 1;
            figures.load_ratio = load_ratio(&thread_loads(&load, &owner, threads));
        }
        let away = self.threads_away();
        let busy = self.flow.threads.permanent().map(ThreadSlot::busy).collect();
        let busy = meter.busy_shares(busy, Instant::now());
        let is_custom = balancing.balancer.is_custom();
        let plan = if is_custom {
            meter.advance(reading);
            self.plan_custom(balancing, &load, &owner)
        } else if meter.weigh(reading, &owner, threads) {
            self.report_oversized(balancing, &load, lines);
            let plan = |load: &[f64], owner: &[usize], threads| {
                balancing.balancer.plan(load, owner, threads)
            };
            plan_around(&away, &load, &owner, plan)
        } else {
            return None;
        };
        let mut plan = match plan {
            Ok(plan) => plan?,
            Err(problem) => {
                if let Some(times) = balancing.refused_log.items_due((), 1, Instant::now()) {
                    let queue = &self.flow.name;
                    lines.push(Line::Warning(format!(
                        "queue {queue}: {times} plans of the balancer were refused: {problem}"
                    )));
                }
                return None;
            }
        };
        hold_back(&mut plan, &owner, &away, if is_custom { &[] } else { &busy });
        Some(Decision { plan, load, owner })
    }

    /// Returns which threads have been in one call for so long that they may never return. They are
    /// assigned no partitions.
    fn threads_away(&self) -> Vec<bool> {
        let interval = self.flow.config.rebalance_interval;
        let limit = if interval.is_zero() { STUCK_AFTER } else { STUCK_AFTER.min(interval / 2) };
        let is_away = |since: Instant| since.elapsed() > limit;
        self.flow
            .threads
            .permanent()
            .map(|slot| slot.tally.counts().calling.is_some_and(|(_, since)| is_away(since)))
            .collect()
    }

    fn plan_custom(
        &self,
        balancing: &Balancing,
        load: &[f64],
        owner: &[usize],
    ) -> Result<Option<Vec<usize>>, String> {
        let mut plan = Ok(None);
        self.flow.host.enter(&mut || {
            // The thread serves other queues too: a panic in one balancer must not end it.
            let asked = catch_unwind(AssertUnwindSafe(|| {
                balancing.balancer.plan(load, owner, self.flow.threads.len())
            }));
            plan = asked.unwrap_or_else(|_| Err("the balancer panicked".to_owned()));
        });
        plan
    }

    /// Logs a partition that is too heavy for any plan to even out.
    #[allow(clippy::cast_precision_loss)]
    fn report_oversized(&self, balancing: &Balancing, load: &[f64], lines: &mut Vec<Line>) {
        let threads = self.flow.threads.len();
        let Some(partition) = oversized(load, threads) else { return };
        let (share, fair) = (load[partition] / load.iter().sum::<f64>(), 1.0 / threads as f64);
        if share < fair * OVERSIZED_BY
            || balancing.oversized_log.items_due(partition, 1, Instant::now()).is_none()
        {
            return;
        }
        let by_type = self.flow.config.selector == Selector::ByType;
        let registered = self.flow.route.types().filter_map(TypeRoute::registered);
        let names: Vec<String> = registered
            .filter(|registered| by_type && registered.partitions.contains(&partition))
            .map(|registered| registered.name.to_string())
            .collect();
        let types =
            if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let remedy = if by_type {
            "spread its type over several partitions with add_handler_factory"
        } else {
            "choose keys or partitions that spread more evenly"
        };
        lines.push(Line::Warning(format!(
            "queue {}: partition {partition}{types} has {:.0}% of the load, more than the {:.0}% \
             of one of {threads} drain threads: {remedy}",
            self.flow.name,
            share * 100.0,
            fair * 100.0
        )));
    }
}
