//! What the producers, the drain threads and the control side of one queue share: one component for
//! each concern, which keeps its own fields and says who writes and who reads them.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `route` | growth and handlers, under `control`; see `flow/route.rs` | all threads |
//! | `threads` | see `control/thread_slots.rs` | all threads |
//! | `ending` | see `control/ending.rs` | drain threads, shutdowns |
//! | `dead_letters` | see `flow/handler/dead_letters.rs` | drain threads, flushes |
//! | `flushes` | see `control/flushes.rs` | drain threads, flushes |
//! | `retirements` | see `control/retirements.rs` | drain threads |
//! | `departures` | see `control/departure.rs` | drain threads |
//! | `serving` | see `control/serving.rs` | control side, drain threads |
//! | `supervision` | see `control/supervision.rs` | drain threads, statistics |
//! | `slow_calls` | see `control/slow_calls.rs` | drain threads, supervisor |
//! | `watchdog` | see `control/watchdog.rs` | producers that wait, supervisor |
//! | `balancing` | see `control/balance/balancing.rs` | control side, statistics |
//! | `control` | control side, under its lock | the same |
//! | `next_partition` | producers, with a selector that goes in turn | the same |

use std::fmt;

use crate::config::{Config, available_cores};
use crate::control::agenda::OwnVisits;
use crate::control::balance::Balancing;
use crate::control::departure::Departures;
use crate::control::ending::Ending;
use crate::control::flushes::Flushes;
use crate::control::growth::Growth;
use crate::control::known_types::KnownTypes;
use crate::control::log_helper::{HostLog, LogHelper};
use crate::control::retirements::Retirements;
use crate::control::scheduler::Pool;
use crate::control::scheduler::Signal;
use crate::control::scheduler::inline::InlineDrain;
use crate::control::serving::Serving;
use crate::control::slow_calls::SlowCalls;
use crate::control::supervision::Supervision;
use crate::control::thread_slots::ThreadSlots;
use crate::control::waits::WaitingProducers;
use crate::flow::handler::consumption::Consumption;
use crate::flow::handler::dead_letters::{DeadLetterBox, DeadLetterBoxes};
use crate::flow::handler::dispatch_log::DispatchLog;
use crate::flow::handler::host::Host;
use crate::flow::partition::Partition;
use crate::flow::partition::gate::Access;
use crate::flow::partition::segment::PutTime;
use crate::flow::route::Route;
use crate::item::Item;
use crate::sync::{Arc, AtomicUsize, Duration, Instant, Mutex};

/// What `control` guards: the order of growth, handoffs and close.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) growth: Growth,
    pub(crate) types: KnownTypes,
    /// Who may put items in; past `Open` the queue does not grow, and no plan is carried out.
    pub(crate) access: Access,
    /// Items that an expired shutdown left behind.
    pub(crate) abandoned: u64,
    /// The longest of the moves that were complete when their caller returned.
    pub(crate) longest_handoff: Duration,
}

pub(crate) struct Shared<T: Item> {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) consumption: Consumption<T>,
    pub(crate) dead_letters: DeadLetterBoxes<T>,
    pub(crate) host: Arc<dyn Host<T>>,
    pub(crate) threads: ThreadSlots,
    /// The drain task, if the callers drain the queue.
    pub(crate) inline: InlineDrain<T>,
    /// The pool that the queue's one drain task runs on; `None` if it has dedicated threads.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) route: Route<T>,
    pub(crate) retirements: Retirements<T>,
    pub(crate) serving: Serving,
    pub(crate) departures: Departures,
    pub(crate) supervision: Supervision,
    pub(crate) slow_calls: SlowCalls,
    /// `None` without a balancer, or with only one drain thread.
    pub(crate) balancing: Option<Balancing>,
    pub(crate) started: Instant,
    pub(crate) control: Mutex<Control>,
    pub(crate) ending: Ending<T>,
    pub(crate) flushes: Flushes,
    pub(crate) next_partition: AtomicUsize,
    /// Drain threads of this queue for each core of the process, rounded up.
    pub(crate) threads_per_core: u32,
    pub(crate) dispatch_log: DispatchLog,
    pub(crate) log_helper: LogHelper,
    /// Those of the watchdog.
    pub(crate) watch: OwnVisits,
    pub(crate) waiting_producers: WaitingProducers,
}

impl<T: Item> Shared<T> {
    pub(crate) fn new(
        name: String,
        config: Config,
        consumption: Consumption<T>,
        dead_letter: Option<Arc<DeadLetterBox<T>>>,
        host: Arc<dyn Host<T>>,
        threads: ThreadSlots,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        PutTime::start();
        let route = Route::new(&config);
        route.grow(&config, threads.len(), config.partitions.resolve(threads.len(), 0.0));
        let threads_per_core =
            u32::try_from(threads.len().div_ceil(available_cores())).unwrap_or(u32::MAX);
        let balancing = config.balancer.clone().filter(|_| threads.len() > 1).map(Balancing::new);
        let (supervision, slow_calls) =
            (Supervision::new(&config, &threads), SlowCalls::new(threads.most()));
        let log_helper = LogHelper::new(format!("queue {name}"), HostLog(host.clone()));
        Self {
            name,
            config,
            consumption,
            dead_letters: DeadLetterBoxes::new(dead_letter),
            host,
            ending: Ending::new(threads.len()),
            threads,
            inline: InlineDrain::default(),
            pool,
            route,
            retirements: Retirements::new(),
            serving: Serving::default(),
            departures: Departures::default(),
            supervision,
            slow_calls,
            balancing,
            started: Instant::now(),
            control: Mutex::new(Control {
                growth: Growth::default(),
                types: KnownTypes::default(),
                access: Access::Open,
                abandoned: 0,
                longest_handoff: Duration::ZERO,
            }),
            flushes: Flushes::new(),
            next_partition: AtomicUsize::new(0),
            threads_per_core,
            dispatch_log: DispatchLog::new(),
            log_helper,
            watch: OwnVisits::default(),
            waiting_producers: WaitingProducers::default(),
        }
    }

    /// After a put: wakes the thread inside the partition, as deep as `signal` reaches.
    #[inline]
    pub(crate) fn wake_inside(&self, partition: &Partition<T>, signal: Signal) {
        self.threads.wake_inside(&self.route, partition, signal);
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
