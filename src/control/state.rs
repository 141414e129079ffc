//! The state of a queue's control side: one component per concern, which documents who writes and
//! who reads its fields.

use std::fmt;

use rustc_hash::FxHashMap;

use crate::config::{Config, DrainBalancer};
use crate::control::log_helper::{HostLog, LogHelper};
use crate::control::meter::Meter;
use crate::control::types::{Growth, KnownTypes};
use crate::flow::handler::Host;
use crate::flow::handler::dead_letters::DeadLetterBox;
use crate::flow::handler::slow_calls::SLOW_CALL;
use crate::flow::partition::Access;
use crate::flow::route::retirements::Retirement;
use crate::flow::route::type_handlers::Consumption;
use crate::flow::state::{Flow, Steering, drop_inside};
use crate::flow::turn::task::DrainTask;
use crate::item::Item;
use crate::observe::Throttle;
use crate::sync::{
    Arc, AtomicU64, AtomicUsize, Condvar, Duration, Instant, Mutex, OnceLock, Ordering,
};
use crate::threads::agenda::{OwnVisits, Visits};
use crate::threads::context::QueueLog;
use crate::threads::park::Sleeper;
use crate::threads::pool::Pool;
use crate::threads::slots::ThreadSlots;

/// The control side of one queue: who drains what, when, and until when. Drain threads call it
/// through [`Steering`].
///
/// | field | written by | read by |
/// |---|---|---|
/// | `state` | control side, under its lock, which is *the control lock* | control side |
/// | `departures` | see [`Departures`] | drain threads |
/// | `supervision` | see [`Supervision`] | supervisor, statistics |
/// | `watch` | the start of the queue, once | the last drain thread that ends |
/// | `balancing` | see [`Balancing`] | control side, statistics |
/// | `log_helper` | see `control/log_helper.rs` | all threads that log or wait for the log |
/// | `inline` | callers that drain the queue; set once, at its start | callers |
pub(crate) struct Control<T: Item> {
    pub(crate) flow: Arc<Flow<T>>,
    pub(crate) state: Mutex<ControlState>,
    pub(crate) departures: Departures,
    pub(crate) supervision: Supervision,
    /// The visits of the watchdog.
    pub(crate) watch: OwnVisits,
    /// `None` without a balancer, or with only one drain thread.
    pub(crate) balancing: Option<Balancing>,
    pub(crate) log_helper: LogHelper,
    /// The drain task, if the callers drain the queue.
    pub(crate) inline: InlineDrain<T>,
}

/// The state that the control lock guards, which orders growth, handoffs and close.
#[derive(Debug)]
pub(crate) struct ControlState {
    pub(crate) growth: Growth,
    pub(crate) types: KnownTypes,
    /// The threads that may put items in. Past `Open`, the queue does not grow and plans are not
    /// carried out.
    pub(crate) access: Access,
    /// Items that an expired shutdown left behind.
    pub(crate) abandoned: u64,
    /// The longest move that its caller completed.
    pub(crate) longest_handoff: Duration,
}

impl<T: Item> Control<T> {
    pub(crate) fn new(
        name: String,
        config: Config,
        consumption: Consumption<T>,
        dead_letter: Option<Arc<DeadLetterBox<T>>>,
        host: Arc<dyn Host<T>>,
        threads: ThreadSlots,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        let balancing = config.balancer.clone().filter(|_| threads.len() > 1).map(Balancing::new);
        let supervision = Supervision::new(&config, &threads);
        let log_helper = LogHelper::new(format!("queue {name}"), HostLog(host.clone()));
        let log: Arc<dyn QueueLog> = Arc::new(log_helper.clone());
        let flow = Flow::new(name, config, consumption, dead_letter, (host, log), threads, pool);
        Self {
            flow: Arc::new(flow),
            state: Mutex::new(ControlState {
                growth: Growth::default(),
                types: KnownTypes::default(),
                access: Access::Open,
                abandoned: 0,
                longest_handoff: Duration::ZERO,
            }),
            departures: Departures::default(),
            supervision,
            watch: OwnVisits::default(),
            balancing,
            log_helper,
            inline: InlineDrain::default(),
        }
    }

    /// Returns the task of one drain thread.
    pub(crate) fn drain_task(self: Arc<Self>, index: usize, sleeper: Sleeper) -> DrainTask<T> {
        DrainTask::new(index, self.flow.clone(), self, sleeper)
    }

    /// Drops a reference. If it is the last, the queue's items and handlers are dropped inside
    /// their host.
    pub(crate) fn let_go(control: Arc<Self>) {
        let host = control.flow.host.clone();
        drop_inside(&*host, control);
    }
}

impl<T: Item> fmt::Debug for Control<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("flow", &self.flow).finish_non_exhaustive()
    }
}

/// How many leaving types an idle drain thread checks.
const CHECKS_WHEN_IDLE: usize = 64;

/// The number of types that are leaving: written by the control side under the control lock, read
/// by drain threads after an empty cycle.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    pending: AtomicUsize,
}

impl Departures {
    pub(crate) fn are_pending(&self) -> bool {
        // Relaxed: a thread that sees an old value checks in a later cycle.
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Called under the control lock.
    pub(crate) fn note_pending(&self, types: usize) {
        // Relaxed: as in `are_pending`.
        self.pending.store(types, Ordering::Relaxed);
    }
}

/// The state of a type in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(any(loom, not(any(feature = "python", test))), allow(dead_code))] // for the bindings
pub(crate) enum Knowledge {
    Handled,
    /// Its handler was removed, but the type has not gone yet.
    Leaving,
    Nothing,
}

/// After this time without a turn, visits stop. A thread that was away gets its partitions back
/// once it has been reachable for this long.
pub(crate) const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The supervisor's state of one queue, kept between visits.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `seen` | supervisor; drain threads before a slow call, or in one without items | the writers |
/// | `taken_over` | supervisor | statistics |
#[derive(Debug)]
pub(crate) struct Supervision {
    pub(crate) is_on: bool,
    /// How often the queue is visited while it has turns.
    pub(crate) tick: Duration,
    pub(crate) seen: Mutex<Seen>,
    /// The number of take-overs so far.
    taken_over: AtomicU64,
    pub(crate) log: Throttle<(usize, String)>,
}

impl Supervision {
    pub(crate) fn new(config: &Config, threads: &ThreadSlots) -> Self {
        let is_on = threads.may_be_taken_over();
        let seen = |thread| SeenThread { is_running: thread < threads.len(), ..Default::default() };
        let threads: Vec<_> = (0..threads.most()).map(seen).collect();
        let tick = config.takeover_after;
        Self {
            is_on,
            tick,
            seen: Mutex::new(Seen { threads, ..Seen::default() }),
            taken_over: AtomicU64::new(0),
            log: Throttle::new(),
        }
    }

    /// Returns the number of ticks in a time, rounded up, at least 2.
    pub(crate) fn ticks(&self, time: Duration) -> u32 {
        let ticks = time.as_nanos().div_ceil(self.tick.as_nanos().max(1));
        u32::try_from(ticks).unwrap_or(u32::MAX).max(2)
    }

    pub(crate) fn count_taken_over(&self) {
        // Relaxed: as in `taken_over`.
        self.taken_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn taken_over(&self) -> u64 {
        // Relaxed: a statistic that orders nothing.
        self.taken_over.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) threads: Vec<SeenThread>,
    pub(crate) idle_ticks: u32,
    /// The partitions that were taken over.
    pub(crate) loans: FxHashMap<usize, Loan>,
}

#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(crate) struct SeenThread {
    pub(crate) turns: u64,
    pub(crate) cycles: u64,
    pub(crate) is_running: bool,
    /// Whether it was neither resting nor asleep.
    pub(crate) is_awake: bool,
    /// Whether its call is long, so that it may not return soon.
    pub(crate) is_long: bool,
    pub(crate) is_away: bool,
    /// The number of ticks for which a spare thread has had no partition.
    pub(crate) surplus_ticks: u32,
    /// The number of ticks for which the thread has not been away.
    pub(crate) here_ticks: u32,
    /// The number of partitions lost since the thread went away.
    pub(crate) lost: usize,
}

/// The threads that a partition was taken over from, and by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loan {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Seen {
    pub(crate) fn is_away(&self, thread: usize) -> bool {
        self.threads[thread].is_away
    }

    pub(crate) fn is_here(&self, thread: usize) -> bool {
        self.threads[thread].is_running && !self.threads[thread].is_away
    }

    pub(crate) fn is_any_away(&self) -> bool {
        self.threads.iter().any(|thread| thread.is_away)
    }

    /// Whether all threads are in long calls.
    pub(crate) fn are_all_long(&self) -> bool {
        !self.threads.iter().any(|thread| thread.is_running && !thread.is_long)
    }
}

/// The drain task of an inline queue. One caller at a time runs it.
pub(crate) struct InlineDrain<T: Item>(pub(crate) OnceLock<InlineTask<T>>);

pub(crate) struct InlineTask<T: Item> {
    pub(crate) place: Mutex<TaskPlace<T>>,
    pub(crate) returned: Condvar,
}

pub(crate) struct TaskPlace<T: Item> {
    /// `None` while a caller has the task, and once the queue has ended.
    pub(crate) task: Option<DrainTask<T>>,
    pub(crate) has_ended: bool,
}

impl<T: Item> Default for InlineDrain<T> {
    /// Returns the empty value that a queue with threads has.
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

// The calls of drain threads into the control side.

impl<T: Item> Steering<T> for Control<T> {
    #[cold]
    fn begin_slow_call(self: Arc<Self>, thread: usize) {
        // If a visit is in progress, the next one does this.
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
        // An idle queue has such calls forever, so they request less: one visit a second. Ordered
        // by the lock of the tally, which `disarm` takes after it has cleared the mark.
        if !self.flow.arming.has(Visits::Rare) {
            self.supervision.seen.lock().idle_ticks = self.supervision.ticks(IDLE_AFTER) - 2;
            self.flow.arming.ask(Visits::Rare, IDLE_AFTER);
        }
    }

    fn ended_retirements(&self, all: bool) -> Vec<Retirement<T>> {
        if !self.flow.retirements.are_pending() {
            return Vec::new();
        }
        // Under the control lock no handler loses a type: an instance that serves none and is in no
        // other retirement has had its last batch, and no other thread can reach the same
        // conclusion.
        let _state = self.state.lock();
        self.flow.retirements.take_idle(
            all,
            |handler| self.flow.serves(handler),
            &self.flow.watcher(),
        )
    }

    fn end_departures_when_idle(&self) {
        // Not under loom, which would explore empty cycles without end.
        if cfg!(loom) || !self.departures.are_pending() {
            return;
        }
        // Another thread may hold the lock for long.
        if let Some(mut state) = self.state.try_lock() {
            self.end_departures(&mut state, CHECKS_WHEN_IDLE);
        }
    }

    fn end_watch(&self) {
        // Only the last thread ends the watch: one that hangs stays watched.
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

/// Totals over all balancer runs so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BalanceFigures {
    pub(crate) rebalances: u64,
    pub(crate) moves: u64,
    /// The ratio of the largest thread load to the smallest, in the interval before the last run.
    pub(crate) load_ratio: f64,
}

/// The balancer of a queue and its state between runs.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `meter` | the run in progress | the run in progress |
/// | `figures` | the run in progress | statistics |
/// | `*_log` | runs | runs |
/// | `running` | control thread, helper threads | the writers |
#[derive(Debug)]
pub(crate) struct Balancing {
    pub(crate) balancer: DrainBalancer,
    /// Locked for a whole run: concurrent runs would each plan from part of an interval.
    pub(crate) meter: Mutex<Meter>,
    pub(crate) figures: Mutex<BalanceFigures>,
    pub(crate) oversized_log: Throttle<usize>,
    pub(crate) refused_log: Throttle<()>,
    pub(crate) hung_log: Throttle<()>,
    running: Mutex<Running>,
}

/// The run of a custom balancer on a helper thread.
#[derive(Debug, Default)]
struct Running {
    since: Option<Instant>,
    /// Whether another run came due during this one.
    again: bool,
}

impl Balancing {
    pub(crate) fn new(balancer: DrainBalancer) -> Self {
        Self {
            balancer,
            meter: Mutex::new(Meter::new()),
            figures: Mutex::new(BalanceFigures { rebalances: 0, moves: 0, load_ratio: 1.0 }),
            oversized_log: Throttle::new(),
            refused_log: Throttle::new(),
            hung_log: Throttle::new(),
            running: Mutex::default(),
        }
    }

    /// Begins a run on a helper thread. If one is already in progress, returns when it began.
    pub(crate) fn begin_run(&self) -> Option<Instant> {
        let mut running = self.running.lock();
        let since = running.since;
        running.again = since.is_some();
        running.since.get_or_insert_with(Instant::now);
        since
    }

    /// Ends the run. Returns whether another one came due during it.
    pub(crate) fn end_run(&self) -> bool {
        std::mem::take(&mut *self.running.lock()).again
    }

    pub(crate) fn figures(&self) -> BalanceFigures {
        *self.figures.lock()
    }
}
