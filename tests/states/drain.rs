//! The steps of a drain thread: search, turn, call, sleep.

use super::positions::{At, InFlight};
use super::rules::Rule;
use super::state::{Index, Item, Lane, LaneState, Owner, State};
use super::world::{Hang, Step, World};

/// Receives the possible next states.
pub type Each<'a> = &'a mut dyn FnMut(Step, State);

impl World {
    pub fn thread_steps(&self, state: &State, thread: Index, each: Each<'_>) {
        match state.threads[usize::from(thread)].at {
            At::Search => self.search(state, thread, each),
            At::Notify | At::Prepare | At::SecondCheck | At::Asleep => {
                self.sleep_steps(state, thread, each);
            }
            At::Enter
            | At::CheckOwner
            | At::Take
            | At::Submit
            | At::ReadPlace { .. }
            | At::HandlerLock(_)
            | At::BeforeLeave => self.turn_steps(state, thread, each),
            At::CountDown
            | At::WakeAll
            | At::Leave
            | At::ReadWord
            | At::Assign
            | At::StoreWord
            | At::Announce
            | At::Wake => self.leave_steps(state, thread, each),
            At::Letters
            | At::LettersAtEnd
            | At::TakeLetters
            | At::RecallRefused
            | At::CallWithLetters
            | At::SettleLetters => self.letter_steps(state, thread, each),
            At::Discard => self.discard(state, thread, each),
            At::Ended => {}
            _ => self.call_steps(state, thread, each),
        }
    }

    fn sleep_steps(&self, state: &State, thread: Index, each: Each<'_>) {
        let me = &state.threads[usize::from(thread)];
        let partition = me.partition;
        let step = |what| Step("thread", thread, what, partition);
        let mut next = state.clone();
        let at = usize::from(thread);
        match me.at {
            At::Notify => {
                if state.is_controlled {
                    return;
                }
                let idle = Self::idle_handlers(&mut next);
                next.retires &= !idle;
                next.retired |= idle;
                next.threads[at].at = At::Prepare;
                each(step("reaches its quiescent point, last in"), next);
            }
            At::Prepare => {
                next.threads[at].sleeps = true;
                next.threads[at].at = At::SecondCheck;
                each(step("announces that it sleeps, last in"), next);
            }
            At::SecondCheck => {
                let stays = !self.is_off(Rule::CheckBeforeSleep)
                    && self.has_reason_to_stay_awake(&mut next, thread);
                let me = &mut next.threads[at];
                if stays || !me.sleeps {
                    me.sleeps = false;
                    me.at = At::Search;
                } else {
                    me.at = At::Asleep;
                }
                each(step("has checked a second time, last in"), next);
            }
            At::Asleep => {
                if (0..self.partitions).any(|each| state.is_timer_due(thread, each)) {
                    next.wake(thread);
                    each(step("is woken by its timer, last in"), next);
                }
            }
            other => unreachable!("{other:?} does not belong to a sleep"),
        }
    }

    fn turn_steps(&self, state: &State, thread: Index, each: Each<'_>) {
        let me = &state.threads[usize::from(thread)];
        let partition = me.partition;
        let step = |what| Step("thread", thread, what, partition);
        let mut next = state.clone();
        let at = usize::from(thread);
        let of = usize::from(partition);
        match me.at {
            At::Enter => {
                if self.is_off(Rule::InsideBeforeCheck) {
                    let owns = self.owns(state, thread, partition);
                    next.threads[at].at = if owns { At::CheckOwner } else { At::Search };
                } else {
                    next.threads[at].inside = Some(partition);
                    next.threads[at].at = At::CheckOwner;
                }
                each(step("goes inside"), next);
            }
            At::CheckOwner => {
                next.threads[at].inside = Some(partition);
                if self.is_off(Rule::InsideBeforeCheck) || self.owns(state, thread, partition) {
                    if !me.only_submits {
                        next.partitions[of].is_ready = false;
                    }
                    next.threads[at].at = At::Take;
                } else {
                    next.threads[at].at = At::Leave;
                }
                each(step("has checked whether it owns"), next);
            }
            At::Take => {
                if state.partitions[of].is_locked {
                    return;
                }
                next.partitions[of].is_locked = true;
                next.threads[at].may_be_awaited = state.partitions[of].held() > 0;
                next.threads[at].is_patient = None;
                if !me.only_submits {
                    self.take(&mut next, thread, of);
                    self.end_linger(&mut next, thread, of);
                }
                next.threads[at].at = At::Submit;
                each(step("takes from"), next);
            }
            At::Submit => self.submit(next, thread, step("submits from"), each),
            At::ReadPlace { kind, number } => {
                let registry = next.registry.as_ref().expect("types come and go");
                let lock = self.read_place(registry, number, usize::from(kind), of);
                self.submit_to(&mut next, thread, usize::from(kind), lock);
                each(step("reads the place of a type in"), next);
            }
            At::HandlerLock(kind) => {
                self.enter_lock(next, thread, usize::from(kind), step("is at a lock for"), each);
            }
            At::BeforeLeave => {
                self.end_turn(&mut next, thread);
                each(step("ends its turn in"), next);
            }
            other => unreachable!("{other:?} does not belong to a turn"),
        }
    }

    /// After expiry, discards what is left, one partition after another.
    fn discard(&self, state: &State, thread: Index, each: Each<'_>) {
        let mut next = state.clone();
        let at = usize::from(thread);
        let number = state.threads[at].partition;
        let partition = &mut next.partitions[usize::from(number)];
        if partition.is_locked {
            return;
        }
        partition.queue.clear();
        partition.open = 0;
        for lane in &mut partition.lanes {
            match lane {
                Some(lane) if lane.state == LaneState::Running => lane.tail.clear(),
                _ => *lane = None,
            }
        }
        let is_last = number + 1 == self.partitions;
        next.threads[at].at = if is_last { At::Ended } else { At::Discard };
        next.threads[at].partition += 1;
        each(Step("thread", thread, "discards what is left in", number), next);
    }

    /// Begins a cycle, or searches for the next partition of one, with the cycle's view of the
    /// close.
    fn search(&self, state: &State, thread: Index, each: Each<'_>) {
        let mut next = state.clone();
        let at = usize::from(thread);
        let step = |what, partition| Step("thread", thread, what, partition);
        if state.is_over() {
            next.threads[at].at = if state.is_expired {
                At::Discard
            } else if state.letters.is_listed {
                At::LettersAtEnd
            } else {
                At::Ended
            };
            next.threads[at].partition = 0;
            if !state.is_expired {
                next.retired |= std::mem::take(&mut next.retires);
            }
            return each(step("ends, last in", state.threads[at].partition), next);
        }
        next.threads[at].only_submits = false;
        next.threads[at].left = 0;
        if state.is_closing && !state.threads[at].saw_closing {
            self.visits(&next, thread, each);
        }
        let has_news = Self::has_news(state, thread);
        next.threads[at].saw_closing = state.is_closing;
        next.threads[at].saw_deadline = state.has_deadline();
        for partition in 0..self.partitions {
            let is_over = state.has_due(partition).is_none() || has_news;
            if state.threads[at].timers & 1 << partition != 0
                && (is_over || state.is_timer_due(thread, partition))
            {
                next.threads[at].timers &= !(1 << partition);
                next.threads[at].early_timers &= !(1 << partition);
                if state.has_due(partition).is_some() && self.owns(state, thread, partition) {
                    next.partitions[usize::from(partition)].is_ready = true;
                }
            }
        }
        if !self.visits(&next, thread, each) {
            let idle = if next.retires != 0 { At::Notify } else { At::Prepare };
            next.threads[at].at = if next.letters.is_listed { At::Letters } else { idle };
            each(step("finds nothing, last in", state.threads[at].partition), next);
        }
    }

    /// Enters the partitions that the thread may visit next. Returns whether there is one that it
    /// must.
    fn visits(&self, state: &State, thread: Index, each: Each<'_>) -> bool {
        let at = usize::from(thread);
        let mut must_work = false;
        for partition in 0..self.partitions {
            let its = &state.partitions[usize::from(partition)];
            let closes = state.threads[at].saw_closing && !its.is_finished;
            if self.owns(state, thread, partition) && (its.is_ready || closes) {
                must_work |= its.is_ready || its.must_be_finished();
                let mut next = state.clone();
                next.threads[at].partition = partition;
                next.threads[at].at = At::Enter;
                each(Step("thread", thread, "goes to", partition), next);
            }
        }
        must_work
    }

    fn has_reason_to_stay_awake(&self, state: &mut State, thread: Index) -> bool {
        let is_reason = |partition: Index| {
            let its = &state.partitions[usize::from(partition)];
            let unfinished = state.is_closing
                && !its.is_finished
                && its.must_be_finished()
                && its.owner == Owner::Owned(thread);
            unfinished || its.is_ready && self.owns(state, thread, partition)
        };
        (0..self.partitions).any(is_reason)
            || state.is_over()
            || Self::idle_handlers(state) != 0
            || self.watch_letters(state)
            || Self::has_news(state, thread) && !self.is_off(Rule::AwakeForNews)
    }

    /// Whether a thread has not yet seen a close, or the deadline of a shutdown.
    fn has_news(state: &State, thread: Index) -> bool {
        let me = &state.threads[usize::from(thread)];
        (me.saw_closing, me.saw_deadline) != (state.is_closing, state.has_deadline())
    }

    /// Takes items, under the lock of the lanes.
    fn take(&self, state: &mut State, thread: Index, of: usize) {
        let has_several = self.has_several_types(&state.partitions[of]);
        let me = &mut state.threads[usize::from(thread)];
        let partition = &mut state.partitions[of];
        let is_late = state.is_late && !self.is_off(Rule::TryBeforeDeadline);
        for lane in partition.lanes.iter_mut().flatten() {
            let ends = match lane.state {
                LaneState::Lingering { .. } => me.saw_closing,
                LaneState::BackingOff { .. } => is_late,
                _ => false,
            };
            if ends || lane.state.is_due() == Some(true) {
                lane.has_waited = lane.state.is_lingering();
                lane.state = LaneState::Ready;
            }
        }
        let mut budget = self.batch;
        if partition.has_lanes() && !has_several {
            // Tops up the items that did not fit into the last batch.
            budget = partition.lanes().map(|lane| self.room_in(lane)).sum();
            if budget == 0 {
                partition.was_stopped = true;
                return;
            }
        }
        partition.notify_at = 0;
        let sealed = partition.queue.len() - usize::from(partition.open);
        let mut count = sealed.min(budget.next_multiple_of(self.segment()));
        me.may_be_awaited |= count > 0;
        if count < budget {
            count += usize::from(std::mem::take(&mut partition.open));
        } else if !self.is_off(Rule::BudgetBit) {
            partition.is_ready = true;
        }
        let run = partition.taken;
        let items: Vec<Item> = partition.queue.drain(..count).collect();
        // In a partition of one type, all items count as of the first one's type.
        let only = items.first().filter(|_| !has_several).map(|item| item.kind);
        for item in items {
            let kind = usize::from(only.unwrap_or(item.kind));
            let kind = if self.has_consumers { 0 } else { kind };
            let lane = partition.lanes[kind].get_or_insert_with(Lane::new);
            lane.tail.push(Item { run, ..item });
            partition.taken += 1;
            if lane.tail.len() >= self.batch && lane.state.is_lingering() {
                lane.state = LaneState::Ready;
            }
        }
    }

    /// Ends the turn, under the lock of the lanes, which is released here.
    fn end_turn(&self, state: &mut State, thread: Index) {
        let at = usize::from(thread);
        let of = usize::from(state.threads[at].partition);
        let closing = state.threads[at].saw_closing;
        if closing && state.partitions[of].has_lanes() {
            state.partitions[of].was_stopped = true;
        }
        self.make_room(state, of, state.threads[at].may_be_awaited);
        let has_deadline = state.has_deadline();
        let partition = &mut state.partitions[of];
        let ready = partition.lanes().filter(|lane| lane.state == LaneState::Ready).count();
        let me = &mut state.threads[at];
        if !me.only_submits {
            me.left = if me.in_flight.is_some() { Index::try_from(ready).unwrap_or(0) } else { 0 };
        }
        if partition.lanes().any(|lane| lane.state.is_due().is_some()) {
            me.timers |= 1 << of;
            me.early_timers &= !(1 << of);
            if has_deadline && !self.is_off(Rule::TryBeforeDeadline) {
                me.early_timers |= 1 << of;
            }
        }
        let may_finish = !partition.has_lanes() || self.is_off(Rule::FinishWithoutLanes);
        let finishes =
            closing && !partition.is_finished && may_finish && partition.queue.is_empty();
        partition.is_finished |= finishes;
        partition.is_locked = false;
        me.at = if finishes { At::CountDown } else { At::Leave };
    }

    /// Whether the call of a thread may return.
    pub fn may_return(&self, in_flight: InFlight) -> bool {
        !matches!(self.hang, Hang::Forever(kind) if kind == in_flight.kind)
    }
}
