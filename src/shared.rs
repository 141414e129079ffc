//! What the producers, the drain threads and the control side of one queue share.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `route` | growth and handlers, under `control` | everybody |
//! | `retirements` | see `control/retire.rs` | drain threads |
//! | `closing` | closer, once, under `control` | drain threads |
//! | `unfinished` | closer (set), drain threads (count down) | drain threads |
//! | `expired` | a shutdown whose time ran out, once | drain threads |
//! | `flush_waiting` | flushes | drain threads |
//! | `running` | the last act of each drain thread | shutdowns |
//! | `threads[i].cycles`, `.cpu_ns`, `.longest_handoff_ns` | drain thread `i`, by plain stores | statistics |
//! | `threads[i].asked_to_hand_over` | control side (set), drain thread `i` (clear) | drain thread `i` |
//! | `closed` | closer and expiry (told) | drain threads between two tries of a batch |

use std::fmt;

use crate::config::{Config, Selector, available_cores};
use crate::control::balance::Balancing;
use crate::control::grow::Growth;
use crate::control::ownership::Handoffs;
use crate::control::retire::Retirements;
use crate::control::scheduler::{Pool, Waker};
use crate::flow::dispatch::DispatchLog;
use crate::flow::gate::Access;
use crate::flow::handler::{HandlerRef, Item};
use crate::flow::host::Host;
use crate::flow::partition::{Partition, Signal};
use crate::flow::route::{Route, TypeHandlers};
use crate::observe::ThreadTally;
use crate::rules::{Rule, rule_off};
use crate::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Condvar, Duration, Instant, Mutex, Ordering, fence,
    wait_for,
};
use crate::thread_context::drained_queue;

/// Who handles batches.
pub(crate) enum Consumption<T> {
    /// The handler of each type.
    ByHandler,
    /// One for all types.
    OneConsumer(Arc<TypeHandlers<T>>),
    /// One per drain thread, for all types.
    PerThread(Vec<Arc<TypeHandlers<T>>>),
}

/// What others see of one drain thread.
#[derive(Debug)]
pub(crate) struct ThreadSlot {
    pub(crate) waker: Waker,
    pub(crate) tally: ThreadTally,
    pub(crate) cycles: AtomicU64,
    pub(crate) cpu_ns: AtomicU64,
    /// Some partition may have been revoked from this thread since it last looked.
    pub(crate) asked_to_hand_over: AtomicBool,
    pub(crate) longest_handoff_ns: AtomicU64,
}

impl ThreadSlot {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            waker,
            tally: ThreadTally::new(),
            cycles: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            asked_to_hand_over: AtomicBool::new(false),
            longest_handoff_ns: AtomicU64::new(0),
        }
    }

    /// Called by the drain thread itself, with the time from revoke to assign.
    pub(crate) fn note_handoff(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a figure for statistics, written by this thread only.
        self.longest_handoff_ns
            .store(took.max(self.longest_handoff_ns.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Called by the drain thread itself.
    pub(crate) fn note_cpu_time(&self) {
        // Relaxed: a figure for statistics, ordered by nothing.
        self.cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
fn thread_cpu_ns() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

#[cfg(loom)]
fn thread_cpu_ns() -> u64 {
    0
}

/// How many drain threads or workers have not ended. It outlives the rest, so that the last act of
/// a thread is to count itself out, after everything it held is gone.
#[derive(Debug)]
pub(crate) struct Running {
    threads: Mutex<usize>,
    changed: Condvar,
}

impl Running {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: Mutex::new(threads), changed: Condvar::new() }
    }

    /// Counts a thread in, before it starts.
    pub(crate) fn count_in(&self) {
        *self.threads.lock() += 1;
    }

    pub(crate) fn count_out(&self) {
        *self.threads.lock() -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn is_none(&self) -> bool {
        *self.threads.lock() == 0
    }

    /// Waits until a drain thread ends or `limit` has passed; may return early.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let threads = self.threads.lock();
        if *threads > 0 {
            drop(wait_for(&self.changed, threads, limit));
        }
    }
}

/// What `control` guards: the order of growth, handoffs and close.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) growth: Growth,
    pub(crate) handoffs: Handoffs,
    /// Who may put items in; past `Open` the queue does not grow any more, and no partition is
    /// revoked.
    pub(crate) access: Access,
    /// Items that a shutdown left behind when its time ran out.
    pub(crate) abandoned: u64,
}

pub(crate) struct Shared<T: Item> {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) consumption: Consumption<T>,
    pub(crate) host: Arc<dyn Host<T>>,
    pub(crate) threads: Vec<ThreadSlot>,
    /// The pool that the queue's one drain task runs on; `None`: it has threads of its own.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) route: Route<T>,
    pub(crate) retirements: Retirements<T>,
    /// `None`: no balancer, or only one drain thread.
    pub(crate) balancing: Option<Balancing>,
    pub(crate) started: Instant,
    pub(crate) control: Mutex<Control>,
    pub(crate) closing: AtomicBool,
    pub(crate) unfinished: AtomicUsize,
    pub(crate) expired: AtomicBool,
    flush_waiting: AtomicUsize,
    flushed: (Mutex<()>, Condvar),
    pub(crate) closed: (Mutex<()>, Condvar),
    pub(crate) running: Arc<Running>,
    /// The instances whose `on_close` is due; filled when the first drain thread ends.
    to_close: Mutex<Option<Vec<HandlerRef<T>>>>,
    pub(crate) next_partition: AtomicUsize,
    /// Drain threads of this queue for each core of the process, rounded up.
    pub(crate) threads_per_core: u32,
    pub(crate) dispatch_log: DispatchLog,
}

impl<T: Item> Shared<T> {
    pub(crate) fn new(
        name: String,
        config: Config,
        consumption: Consumption<T>,
        host: Arc<dyn Host<T>>,
        wakers: Vec<Waker>,
        pool: Option<Arc<Pool>>,
        partitions: usize,
    ) -> Self {
        let threads: Vec<ThreadSlot> = wakers.into_iter().map(ThreadSlot::new).collect();
        let route = Route::new(&config);
        route.grow(&config, threads.len(), partitions);
        let running = Arc::new(Running::new(threads.len()));
        let threads_per_core =
            u32::try_from(threads.len().div_ceil(available_cores())).unwrap_or(u32::MAX);
        let balancing = config.balancer.clone().filter(|_| threads.len() > 1).map(Balancing::new);
        Self {
            name,
            config,
            consumption,
            host,
            threads,
            pool,
            route,
            retirements: Retirements::new(),
            balancing,
            started: Instant::now(),
            control: Mutex::new(Control {
                growth: Growth::default(),
                handoffs: Handoffs::default(),
                access: Access::Open,
                abandoned: 0,
            }),
            closing: AtomicBool::new(false),
            unfinished: AtomicUsize::new(0),
            expired: AtomicBool::new(false),
            flush_waiting: AtomicUsize::new(0),
            flushed: (Mutex::new(()), Condvar::new()),
            closed: (Mutex::new(()), Condvar::new()),
            running,
            to_close: Mutex::new(None),
            next_partition: AtomicUsize::new(0),
            threads_per_core,
            dispatch_log: DispatchLog::new(),
        }
    }

    // ---- waking
    // ----------------------------------------------------------------------------------------------

    /// After a put: wakes the thread inside the partition, as deep as `signal` reaches.
    #[inline]
    pub(crate) fn wake_inside(&self, partition: &Partition<T>, signal: Signal) {
        if signal == Signal::Nothing {
            return;
        }
        // SeqCst: pairs with the fence in `Sleeper::prepare`: either this thread sees it asleep, or
        // it sees the put.
        if !rule_off(Rule::PutFence) {
            fence(Ordering::SeqCst);
        }
        // The thread inside, not the one that will be: it is the one that can do something about it
        // now.
        let inside = self.route.owner(partition.index).load().inside();
        self.threads[inside].waker.wake(signal);
    }

    pub(crate) fn wake_all(&self) {
        // SeqCst: as in `wake_inside`.
        fence(Ordering::SeqCst);
        for slot in &self.threads {
            slot.waker.wake(Signal::Pressure);
        }
    }

    // ---- drain threads
    // ---------------------------------------------------------------------------------------

    /// Whether the calling thread is a drain thread of this queue.
    pub(crate) fn on_own_drain_thread(self: &Arc<Self>) -> bool {
        drained_queue() == Some(Arc::as_ptr(self) as usize)
    }

    /// Whether the drain threads have nothing left to do: all is finished, or the time ran out.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire: pairs with the Release in `expire`.
        if self.expired.load(Ordering::Acquire) {
            return true;
        }
        // Acquire: pairs with the AcqRel in `finish_partition`; all handlers' writes are visible before
        // `on_close`.
        self.closing.load(Ordering::Acquire) && self.unfinished.load(Ordering::Acquire) == 0
    }

    /// Whether thread `index` still has to finish a partition of a closing queue.
    pub(crate) fn is_closing_with_work_for(&self, index: usize) -> bool {
        let inside = |partition: usize| self.route.owner(partition).load().inside() == index;
        self.closing.load(Ordering::Acquire)
            && self
                .route
                .partitions()
                .any(|partition| inside(partition.index) && !partition.is_finished())
    }

    /// Whether items of one type may be in the hands of any drain thread, and not only of those
    /// that own its partitions.
    pub(crate) fn any_thread_delivers(&self) -> bool {
        self.config.selector != Selector::ByType
    }

    pub(crate) fn finish_partition(&self) {
        // AcqRel: whoever counts the last one down has seen what the others did before theirs.
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake_all();
        }
    }

    /// A handler instance that has not had its `on_close`, and is not a consumer; first those that
    /// nobody is inside.
    pub(crate) fn next_to_close(&self) -> Option<HandlerRef<T>> {
        let mut to_close = self.to_close.lock();
        let left = to_close.get_or_insert_with(|| {
            let instances = self.route.instances().into_iter().map(|idle| idle.handler);
            instances.filter(|handler| !self.consumes_all(handler)).collect()
        });
        let free = left.iter().position(|handler| !handler.token.is_held());
        if left.is_empty() { None } else { Some(left.swap_remove(free.unwrap_or(0))) }
    }

    // ---- close and flush
    // -------------------------------------------------------------------------------------

    pub(crate) fn flush_is_waiting(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.flush_waiting.load(Ordering::Relaxed) > 0
    }

    /// Between [`begin_flush`](Self::begin_flush) and [`end_flush`](Self::end_flush) no drain
    /// thread rests.
    pub(crate) fn begin_flush(&self) {
        self.flush_waiting.fetch_add(1, Ordering::Relaxed);
        self.wake_all();
    }

    pub(crate) fn end_flush(&self) {
        self.flush_waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits for a quiescent point, unless `done` already.
    pub(crate) fn wait_for_progress(&self, done: impl Fn() -> bool, limit: Option<Duration>) {
        let (lock, progress) = &self.flushed;
        let guard = lock.lock();
        if !done() {
            drop(wait_for(progress, guard, limit));
        }
    }

    /// After `closing` was set.
    pub(crate) fn notify_closed(&self) {
        let (lock, told) = &self.closed;
        let _guard = lock.lock();
        told.notify_all();
    }

    /// At a quiescent point, after the fence.
    pub(crate) fn notify_progress(&self) {
        if self.flush_is_waiting() && !rule_off(Rule::NotifyFlush) {
            let (lock, progress) = &self.flushed;
            let _guard = lock.lock();
            progress.notify_all();
        }
    }
}

impl<T: Item> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
