//! One run of a queue's balancer: read the meter, plan, move.

use std::cell::Cell;

use crate::config::Selector;
use crate::control::balance::DrainBalancer;
use crate::control::balance::control_thread;
use crate::control::balance::meter::{Meter, weigh_by_cost};
use crate::control::balance::plan::{extremes, load_ratio, moves, oversized, spread, thread_loads};
use crate::faults::{self, Fault};
use crate::flow::handler::Item;
use crate::observe::Throttle;
use crate::shared::Shared;
use crate::sync::{Arc, Instant, Mutex, thread_local};

/// A partition must exceed a thread's fair share by so much to be named in the log.
const OVERSIZED_BY: f64 = 1.05;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local)] // loom's twin has no such form
    /// Whether this thread is inside a balancer, which may be the user's code.
    static BALANCES: Cell<bool> = Cell::new(false);
}

struct InsideBalancer(());

impl InsideBalancer {
    /// `None`: this thread is inside one already.
    fn enter() -> Option<Self> {
        if BALANCES.with(|balances| balances.replace(true)) { None } else { Some(Self(())) }
    }
}

impl Drop for InsideBalancer {
    fn drop(&mut self) {
        BALANCES.with(|balances| balances.set(false));
    }
}

/// What is known of the runs so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BalanceFigures {
    pub(crate) rebalances: u64,
    pub(crate) moves: u64,
    /// Largest thread load over smallest, in the interval before the last run.
    pub(crate) load_ratio: f64,
}

/// The balancing of one queue.
#[derive(Debug)]
pub(crate) struct Balancing {
    pub(crate) balancer: DrainBalancer,
    /// Held for a whole run: two at once would both plan from half an interval.
    meter: Mutex<Meter>,
    figures: Mutex<BalanceFigures>,
    oversized_log: Throttle<usize>,
    refused_log: Throttle<()>,
}

impl Balancing {
    pub(crate) fn new(balancer: DrainBalancer) -> Self {
        Self {
            balancer,
            meter: Mutex::new(Meter::default()),
            figures: Mutex::new(BalanceFigures { rebalances: 0, moves: 0, load_ratio: 1.0 }),
            oversized_log: Throttle::new(),
            refused_log: Throttle::new(),
        }
    }

    pub(crate) fn figures(&self) -> BalanceFigures {
        if faults::off(Fault::StatsWait) {
            drop(self.meter.lock());
        }
        *self.figures.lock()
    }
}

/// Whether chance alone may have made the threads as different as they are. Attempts are counts: the difference of two of
/// them has, if their rates are equal, about the square root of their sum as standard deviation (Poisson). Without this
/// a queue with little traffic would move partitions at every run.
fn is_noise(attempts: &[f64], owner: &[usize], threads: usize) -> bool {
    const DEVIATIONS: f64 = 3.0;
    let (smallest, largest) = extremes(&thread_loads(attempts, owner, threads));
    largest - smallest < DEVIATIONS * (largest + smallest).sqrt()
}

impl<T: Item> Shared<T> {
    /// Runs the balancer on the time since its last run. Returns how many partitions have another wanted owner now.
    ///
    /// The plan is made outside the control lock: producers and drain threads notice nothing, and a balancer of the user's
    /// may take its time.
    pub(crate) fn rebalance(self: &Arc<Self>) -> usize {
        let Some(balancing) = &self.balancing else { return 0 };
        let Some(_inside) = InsideBalancer::enter() else { return 0 };
        let mut meter = balancing.meter.lock();
        let threads = self.threads.len();
        let attempts = meter.read(&self.route);
        let mut load = attempts.clone();
        if balancing.balancer.is_cost_weighted() {
            weigh_by_cost(&mut load, &self.route);
        }
        // The wanted owners: a partition that is on its way counts where it goes.
        let owner: Vec<usize> = (0..load.len()).map(|one| self.route.owner(one).load().wanted()).collect();
        let loads = thread_loads(&load, &owner, threads);
        {
            let mut figures = balancing.figures.lock();
            figures.rebalances += 1;
            figures.load_ratio = load_ratio(&loads);
        }
        let is_noise = is_noise(&attempts, &owner, threads) && !faults::off(Fault::ChurnOnNoise);
        let plan = if is_noise && !balancing.balancer.is_custom() {
            Ok(None)
        } else {
            self.plan(balancing, &load, &owner, threads)
        };
        let plan = match plan {
            Ok(Some(plan)) => plan,
            Ok(None) => {
                self.report_oversized(balancing, &load, threads);
                return 0;
            }
            Err(problem) => {
                if let Some(times) = balancing.refused_log.note((), 1, Instant::now()) {
                    self.host
                        .log(&format!("queue {}: {times} plans of the balancer were refused: {problem}", self.name));
                }
                return 0;
            }
        };
        let begun = {
            let mut control = self.control.lock();
            let wanted = moves(&owner, &plan).into_iter();
            let begun = wanted.filter(|one| self.hand_over(&mut control, one.partition, one.to)).count();
            if let Some(deadline) = control.handoffs.next_deadline() {
                control_thread::look_again(self, deadline);
            }
            begun
        };
        balancing.figures.lock().moves += begun as u64;
        drop(meter);
        if begun > 0 {
            let (before, after) = (spread(&loads), spread(&thread_loads(&load, &plan, threads)));
            self.host.inform(&format!(
                "queue {}: rebalanced {begun} partitions, max thread load delta: {:.0}% -> {:.0}%",
                self.name,
                before * 100.0,
                after * 100.0
            ));
        }
        self.report_oversized(balancing, &load, threads);
        begun
    }

    fn plan(
        &self,
        balancing: &Balancing,
        load: &[f64],
        owner: &[usize],
        threads: usize,
    ) -> Result<Option<Vec<usize>>, String> {
        if !balancing.balancer.is_custom() {
            return balancing.balancer.plan(load, owner, threads);
        }
        let mut plan = Ok(None);
        self.host.enter(&mut || plan = balancing.balancer.plan(load, owner, threads));
        plan
    }

    /// Names a partition that no plan can help.
    #[allow(clippy::cast_precision_loss)]
    fn report_oversized(&self, balancing: &Balancing, load: &[f64], threads: usize) {
        let Some(partition) = oversized(load, threads) else { return };
        let (share, fair) = (load[partition] / load.iter().sum::<f64>(), 1.0 / threads as f64);
        if share < fair * OVERSIZED_BY || balancing.oversized_log.note(partition, 1, Instant::now()).is_none() {
            return;
        }
        let names: Vec<String> = self
            .route
            .types()
            .filter(|one| self.config.selector == Selector::ByType && one.partitions.contains(&partition))
            .filter_map(|one| Some(one.registered()?.name.to_string()))
            .collect();
        let types = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        self.host.log(&format!(
            "queue {}: partition {partition}{types} has {:.0}% of the load, more than the {:.0}% of one of {threads} drain \
             threads: spread its type over several partitions with add_handler_factory",
            self.name,
            share * 100.0,
            fair * 100.0
        ));
    }
}
