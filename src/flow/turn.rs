//! The turns of a drain thread. In a turn it enters a partition, takes, groups by type, submits,
//! and leaves with at most one job in flight. No handler runs inside a partition.

pub(crate) mod cycle;
pub(crate) mod idle_policy;
pub(crate) mod sleep;
pub(crate) mod task;
#[cfg(all(test, not(loom)))]
mod timing_tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::flow::call::{Caller, InFlight, Round};
use crate::flow::handler::lock::{JobPlace, Recall, Submitted};
use crate::flow::partition::Partition;
use crate::flow::partition::lane::Since;
use crate::flow::partition::lanes::Lanes;
use crate::flow::partition::take::TakenItems;
use crate::flow::route::type_handlers::{Consumption, Target};
use crate::flow::segments::{KEPT_CAPACITY, Segment, TakenSegments};
use crate::flow::state::Flow;
use crate::flow::turn::task::{DrainTask, is_host_free, to_take};
use crate::item::{Item, TypeKey};
use crate::sync::{Arc, Deadline, Duration, Instant, Weak, time_since};

/// The number of items that a quick cycle takes even if the batch limit is lower, because the end
/// of a cycle costs as much as several batches.
const ITEMS_IN_QUICK_CYCLE: usize = 10_000;

/// The time after which a cycle no longer counts as quick.
const QUICK_CYCLE: Duration = Duration::from_millis(1);

/// The result of one turn, and what it left to do.
struct Visit<T> {
    taken: usize,
    /// Whether the take used up its budget.
    is_full: bool,
    in_flight: Option<InFlight<T>>,
    /// The number of further lanes of the partition that are ready.
    ready: usize,
}

/// The work of a turn in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Takes up to this many items, rounded up to a segment, and submits.
    Take(usize),
    /// Submits what earlier turns took.
    Submit,
}

impl<T: Item> DrainTask<T> {
    /// Runs turns until enough is taken or every partition has had its turn.
    pub(crate) fn take_turns(
        &mut self,
        flow: &Arc<Flow<T>>,
        first: usize,
        closing: bool,
        began: Instant,
    ) -> Round {
        let mut round = Round::default();
        let (thread, hosted) = (self.index, self.was_hosted);
        let others =
            to_take(flow, thread, self.last_served, closing).filter(|&index| index != first);
        let most = flow.config.max_batch_items;
        // Not in loom, which has no clock.
        let most_in_cycle = if cfg!(loom) { most } else { most.max(ITEMS_IN_QUICK_CYCLE) };
        let mut passed_over = false;
        for index in std::iter::once(first).chain(others) {
            if !closing && is_host_free(flow, thread, index) == hosted {
                // The next cycle starts with this partition, whatever else this one takes.
                passed_over = true;
                continue;
            }
            let calls = round.calls;
            // A partition with more than a batch is served until it has less: otherwise producers
            // that found it full would soon find it full again. Not on a shared pool, where other
            // queues wait for the thread.
            let is_late = || time_since(began) >= QUICK_CYCLE;
            let is_over = loop {
                let budget = most.min(most_in_cycle - round.taken);
                let is_full = self.serve(flow, index, budget, closing, &mut round);
                let items = round.taken.max(round.called);
                let is_over = items >= most && (items >= most_in_cycle || is_late());
                // With a lower limit than the queue's, a handler may be late with fewer items.
                if is_over || !is_full || self.sleeper.is_on_pool() || is_late() {
                    break is_over;
                }
            };
            if round.calls > calls && !passed_over {
                self.last_served = index;
            }
            if is_over {
                break;
            }
        }
        round
    }

    /// Takes up to `budget` items from a partition and calls their handlers. Returns whether the
    /// budget was used up and a handler was called.
    fn serve(
        &mut self,
        flow: &Arc<Flow<T>>,
        index: usize,
        budget: usize,
        closing: bool,
        round: &mut Round,
    ) -> bool {
        let mut visit = self.turn(flow, index, Step::Take(budget), closing);
        round.taken += visit.taken;
        round.takes += usize::from(visit.taken > 0);
        let (is_full, calls) = (visit.is_full, round.calls);
        // Each lane that is ready now gets served. Lanes that become ready meanwhile wait for the
        // next cycle: the end of the last call has set the bit.
        let mut left = visit.ready;
        while let Some(in_flight) = visit.in_flight {
            self.call(flow, in_flight, round);
            if left == 0 {
                break;
            }
            left -= 1;
            visit = self.turn(flow, index, Step::Submit, closing);
        }
        is_full && round.calls > calls
    }

    fn call(&mut self, flow: &Arc<Flow<T>>, in_flight: InFlight<T>, round: &mut Round) {
        let (thread, last_served, timers) = (self.index, self.last_served, &self.timers);
        let has_work = || {
            timers.is_due()
                || flow.retirements.are_pending()
                || flow.slow_calls.has_tickets()
                || to_take(flow, thread, last_served, false).next().is_some()
        };
        let mut caller = Caller {
            flow,
            steering: &self.steering,
            thread,
            tally: &flow.threads[thread].tally,
            segment_cache: &mut self.segment_cache,
            inside_host: self.was_hosted,
        };
        caller.call_all(in_flight, round, has_work);
        self.return_slow_permit();
    }

    /// Returns the permit for slow calls, if this thread has it.
    fn return_slow_permit(&mut self) {
        if std::mem::take(&mut self.has_slow_permit) {
            self.flow.end_slow(self.index);
        }
    }

    /// Enters a partition, takes, submits, and leaves.
    fn turn(&mut self, flow: &Arc<Flow<T>>, index: usize, step: Step, closing: bool) -> Visit<T> {
        let nothing = Visit { taken: 0, is_full: false, in_flight: None, ready: 0 };
        let Some(turn) = flow.enter(self.index, index) else { return nothing };
        let partition = flow.route.partition(index);
        if step != Step::Submit {
            partition.begin_take();
        }
        let mut lanes = partition.lanes.lock();
        let held_before = lanes.held();
        let mut patience = Patience::new(closing);
        let taken = match step {
            Step::Take(budget) => {
                self.make_due_ready(partition, &mut lanes, closing);
                let taken = self.take(flow, partition, &mut lanes, budget);
                flow.end_linger(partition, &mut lanes, &mut patience);
                taken
            }
            Step::Submit => TakenItems::default(),
        };
        let in_flight = self.submit(flow, &mut lanes, index, patience);
        let ready = lanes.count_ready();
        if closing && !lanes.is_empty() {
            // The partition is finished once its lanes have ended.
            lanes.note_stopped();
        }
        partition.note_lanes(lanes.lane_use());
        partition.make_room(&mut lanes, taken.may_be_awaited || held_before > 0);
        if lanes.next_due().is_some() {
            self.set_timer(partition, &lanes);
        }
        let is_finished = closing && lanes.is_empty() && partition.finish();
        drop(lanes);
        if is_finished && flow.ending.finish_partition() {
            flow.threads.wake_all();
        }
        drop(turn);
        if in_flight.is_none() {
            self.return_slow_permit();
        }
        Visit { taken: taken.items, is_full: taken.is_full, in_flight, ready }
    }

    /// Makes lanes ready whose deadline has come. While closing, ends all lingering.
    fn make_due_ready(&self, partition: &Partition<T>, lanes: &mut Lanes<T>, closing: bool) {
        if lanes.next_due().is_none() {
            return;
        }
        lanes.make_due_ready();
        if closing {
            lanes.end_linger();
        }
        if self.flow.is_last_try(partition, lanes, Duration::ZERO) {
            lanes.begin_last_tries(self.flow.ending.deadlines.news());
        }
    }

    /// Sets the timer that brings the thread back when the partition's next lane is due.
    fn set_timer(&mut self, partition: &Partition<T>, lanes: &Lanes<T>) {
        let due = match self.flow.last_try(partition, lanes) {
            Some(last_try) => lanes.next_due_before(last_try),
            None => lanes.next_due(),
        };
        if let Some(due) = due {
            self.timers.set(partition.index, due);
        }
    }

    /// Takes items into the lanes of their types.
    fn take(
        &mut self,
        flow: &Flow<T>,
        partition: &Partition<T>,
        lanes: &mut Lanes<T>,
        budget: usize,
    ) -> TakenItems {
        let mut budget = budget;
        if flow.has_one_type(partition) {
            let (batch, most) = (partition.largest_batch(), flow.config.max_batch_items);
            if batch > most {
                // Its handler may get more in one call than a cycle takes of other types.
                budget = batch;
            }
            if !lanes.is_empty() {
                // Fill up what the last batch had no room for.
                let Some(room) = lanes.room_in_only(batch.max(most)) else {
                    lanes.note_stopped();
                    return TakenItems::default();
                };
                budget = budget.min(room);
            }
        }
        let before = partition.taken();
        let mut segments = TakenSegments::new();
        let taken = partition.take(budget, &mut segments, &mut self.segment_cache);
        self.sort(flow, partition, lanes, segments, before);
        taken
    }

    /// Submits the ready lanes up to the first whose handler lock is free, and puts its job in
    /// flight.
    fn submit(
        &mut self,
        flow: &Arc<Flow<T>>,
        lanes: &mut Lanes<T>,
        partition: usize,
        mut patience: Patience,
    ) -> Option<InFlight<T>> {
        while let Some(lane) = lanes.next_ready() {
            let key = lanes.key(lane);
            if lanes.is_dead(lane) {
                flow.post_again(lanes, JobPlace { partition, lane });
                continue;
            }
            let thread = lanes.tried_by(lane).unwrap_or(self.index);
            // Looked up after the take, because an item enters a partition only after its handler
            // was published; and under the lock of the lanes, because a removal takes that lock
            // afterwards.
            let target = flow
                .target_of(key, partition, thread)
                .or_else(|| Flow::outstanding_target(lanes, lane, partition));
            let Some(target) = target else {
                let job = lanes.take_job(partition, lane, usize::MAX, 0);
                return Some(InFlight { target: None, job, key });
            };
            let its = flow.route.partition(partition);
            if flow.lingers(its, lanes, lane, &target, &mut patience) {
                continue;
            }
            let place = JobPlace { partition, lane };
            if !self.may_call(&target, place) {
                lanes.post(lane, flow.slow_calls.address(), None);
                continue;
            }
            let lock = &target.handler().lock;
            let queue = || {
                let queue: Weak<dyn Recall> = Arc::<Flow<T>>::downgrade(flow);
                queue
            };
            match lock.submit(target.registered.purpose(), place, queue, flow.address()) {
                Submitted::Entered => {
                    let most = target.registered.settings.max_batch_items;
                    let job = lanes.take_job(partition, lane, most, lock.address());
                    return Some(InFlight { target: Some(target), job, key });
                }
                Submitted::Posted(until) => lanes.post(lane, lock.address(), until),
            }
        }
        None
    }

    /// Whether the thread may call a handler. With several threads, a slow handler needs a permit;
    /// if there is none, the job gets a ticket.
    #[inline]
    fn may_call(&mut self, target: &Target<T>, place: JobPlace) -> bool {
        let flow = &self.flow;
        if !target.handler().lock.is_slow()
            || flow.threads.len() == 1
            || !matches!(flow.consumption, Consumption::ByHandler)
        {
            return true;
        }
        self.has_slow_permit |= flow.admit_slow(self.index, place);
        self.has_slow_permit
    }
}

// Sort: moves the items that a turn has taken into the lanes of their types.
//
// The type of an item, and its weight in a segment of several types, come from user code, which
// runs under the lock of the lanes here. It is called before a lane changes; if it panics, the item
// goes into the lane of a type that has no handler.

/// The key of items whose type could not be read.
const UNKNOWN: TypeKey = TypeKey(usize::MAX);

impl<T: Item> DrainTask<T> {
    /// Adds segments to the lanes. `before` is the number of items taken from the partition
    /// earlier.
    fn sort(
        &mut self,
        flow: &Flow<T>,
        partition: &Partition<T>,
        lanes: &mut Lanes<T>,
        segments: TakenSegments<T>,
        before: u64,
    ) {
        let by_handler = matches!(flow.consumption, Consumption::ByHandler);
        // Read after the take, which delivers the mark along with the first item of a second type.
        let has_one_type = flow.has_one_type(partition);
        for Segment { items, weight, put_at } in segments {
            let since = Since { taken: before, put_at };
            let key =
                if by_handler { type_of(&items, has_one_type) } else { Some(TypeKey::CONSUMER) };
            if let Some(key) = key {
                let lane = lanes.lane_of(key, since);
                lanes.add_segment(lane, items, weight);
            } else {
                self.sort_items(lanes, items, weight, since);
            }
        }
    }

    fn sort_items(
        &mut self,
        lanes: &mut Lanes<T>,
        mut segment: Vec<T>,
        weight: usize,
        since: Since,
    ) {
        let is_weighted = weight > segment.len();
        let (mut unknown, mut left) = (Vec::new(), weight);
        let (mut items, mut sorter) = (segment.drain(..), lanes.sorter(since));
        loop {
            let done = catch_unwind(AssertUnwindSafe(|| {
                while let Some(item) = items.as_slice().first() {
                    let (key, weight) =
                        (item.type_key(), if is_weighted { item.weight() } else { 1 });
                    let Some(item) = items.next() else { break };
                    left = left.saturating_sub(weight);
                    let room = || self.segment_cache.segment(KEPT_CAPACITY / 4);
                    sorter.add(key, item, weight, room);
                }
            }));
            if done.is_ok() {
                break;
            }
            unknown.extend(items.next());
        }
        drop(items);
        drop(sorter);
        self.segment_cache.keep(segment);
        if !unknown.is_empty() {
            let lane = lanes.lane_of(UNKNOWN, since);
            lanes.add_segment(lane, unknown, left);
        }
    }
}

/// Returns the type of all items of a segment, or `None` if there are several or one is unknown.
fn type_of<T: Item>(segment: &[T], has_one_type: bool) -> Option<TypeKey> {
    let find = || {
        let first = segment.first()?.type_key();
        let is_one = has_one_type || segment.iter().all(|item| item.type_key() == first);
        is_one.then_some(first)
    };
    catch_unwind(AssertUnwindSafe(find)).unwrap_or(None)
}

// Lingering: lanes that wait for their batch to become full; see `flow/partition.rs`.

/// Whether a turn lets batches that are not full wait.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// `None` until the first such batch.
    has: Option<bool>,
}

impl Patience {
    fn new(closing: bool) -> Self {
        Self { has: closing.then_some(false) }
    }

    fn has<T: Item>(&mut self, flow: &Flow<T>, partition: &Partition<T>) -> bool {
        *self.has.get_or_insert_with(|| {
            // Read after the ready bit was cleared: a producer or flush that cannot wait sets its
            // mark first, then the bit.
            !partition.take_wanted() && !flow.flushes.are_waiting()
        })
    }
}

impl<T: Item> Flow<T> {
    /// Makes lingering lanes ready after a take, if there is no room or no time for them.
    #[inline]
    fn end_linger(&self, partition: &Partition<T>, lanes: &mut Lanes<T>, patience: &mut Patience) {
        let waits = lanes.next_due().is_some();
        if waits && (self.holds_much(partition, lanes) || !patience.has(self, partition)) {
            lanes.end_linger();
        }
    }

    /// Whether a partition has no room for lingering lanes. In a shared partition they leave half
    /// of it free.
    fn holds_much(&self, partition: &Partition<T>, lanes: &Lanes<T>) -> bool {
        let room = partition.buffer_size;
        lanes.held() >= if self.has_one_type(partition) { room } else { room.div_ceil(2) }
    }

    /// Lets a lane linger if its batch is not full and may wait. Returns whether it does.
    #[inline]
    fn lingers(
        &self,
        partition: &Partition<T>,
        lanes: &mut Lanes<T>,
        lane: usize,
        target: &Target<T>,
        patience: &mut Patience,
    ) -> bool {
        let settings = &target.registered.settings;
        let Some(delay) = settings.max_delay else { return false };
        let full = settings.max_batch_items;
        let Some(gathered) = lanes.gathered(lane).filter(|&gathered| gathered < full) else {
            return false;
        };
        if self.holds_much(partition, lanes) || !patience.has(self, partition) {
            return false;
        }
        let Some(put) = lanes.put_time(lane) else { return false };
        let until = Deadline::since(put.into(), delay);
        if until.time_left().is_none() {
            return false;
        }
        lanes.linger(lane, until, full);
        if self.has_one_type(partition) {
            partition.suppress_notifications(full - gathered, lanes.counted(), || {
                self.has_one_type(partition)
            });
        }
        true
    }
}
