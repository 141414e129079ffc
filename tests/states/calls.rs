//! The steps of a drain thread in and after a call.

use super::drain::Each;
use super::positions::{At, InFlight};
use super::rules::Rule;
use super::state::{Index, LaneState, State};
use super::world::{Step, World};

impl World {
    pub fn call_steps(&self, state: &State, thread: Index, each: Each<'_>) {
        let at = usize::from(thread);
        let me = &state.threads[at];
        let mut next = state.clone();
        let (of, kind) =
            me.in_flight.map_or((0, 0), |job| (usize::from(job.partition), usize::from(job.kind)));
        let number = Index::try_from(of).expect("few partitions");
        let step = |what| Step("thread", thread, what, number);
        match me.at {
            At::BeginCall => {
                if me.is_cut_off {
                    next.threads[at].at = At::EndJob;
                } else {
                    self.check_order(&mut next, thread, of, kind);
                    next.threads[at].at = At::Call;
                    let is_last = state.is_late && !self.is_off(Rule::TryBeforeDeadline);
                    next.threads[at].in_flight = me.in_flight.map(|it| InFlight { is_last, ..it });
                }
                each(step("calls for"), next);
            }
            At::Call => {
                let in_flight = me.in_flight.expect("a call has a job");
                if !self.may_return(in_flight) {
                    return;
                }
                let lane = next.partitions[of].lanes[kind].as_mut().expect("its job runs");
                lane.tries += 1;
                let fails = lane.tries <= self.failures[kind];
                let is_last = |attempts| attempts == lane.tries || in_flight.is_last;
                let is_dead = fails && self.keeper.is_some_and(|it| is_last(it.attempts));
                let fails = fails && (!in_flight.is_last || is_dead);
                let in_part = fails && self.fails_in_part && lane.job.len() > 1;
                next.threads[at].in_flight = Some(InFlight { fails, ..in_flight });
                next.threads[at].at = match (fails, in_part) {
                    (false, _) => At::Settle,
                    _ if is_dead => At::Bury,
                    (_, true) => At::SettlePart,
                    _ => At::EndJob,
                };
                each(step(if fails { "has failed for" } else { "returns for" }), next);
            }
            At::Settle => {
                self.settle(&mut next, thread, of, kind, 0);
                each(step("counts the items of"), next);
            }
            At::SettlePart => {
                let in_flight = me.in_flight.expect("a call has a job");
                self.settle(&mut next, thread, of, kind, 1);
                next.threads[at].in_flight =
                    Some(InFlight { is_counted_in_part: true, ..in_flight });
                each(step("counts all but one of the items of"), next);
            }
            At::Bury => {
                let in_flight = me.in_flight.expect("a call has a job");
                let is_posted = self.post(&mut next, of, kind);
                next.threads[at].in_flight =
                    Some(InFlight { fails: !is_posted, is_dead: !is_posted, ..in_flight });
                next.threads[at].at = if is_posted { At::WakeForLetters } else { At::EndJob };
                each(step("buries the items of"), next);
            }
            At::WakeForLetters => {
                next.wake_all();
                next.threads[at].at = At::EndJob;
                each(step("wakes all after"), next);
            }
            At::EndJob => {
                if state.partitions[of].is_locked {
                    return;
                }
                self.end_job(&mut next, thread, of, kind);
                each(step("ends its job of"), next);
            }
            At::SetBit => {
                self.set_bit(&mut next, of);
                next.threads[at].at = At::WakeInside;
                each(step("sets the bit of"), next);
            }
            At::WakeInside => {
                if state.partitions[of].owner.inside() != thread {
                    self.wake_inside(&mut next, of);
                }
                self.end_call(&mut next, thread);
                each(step("wakes who is inside"), next);
            }
            At::Release => self.release(state, thread, each),
            At::Recall | At::RecallBit | At::RecallWake => self.recall(next, thread, each),
            At::Serve | At::ServeBit | At::ServeWake => self.serve(next, thread, each),
            other => unreachable!("{other:?} does not belong to a call"),
        }
    }

    /// Checks that each item of a type comes after all earlier ones of its partition.
    fn check_order(&self, state: &mut State, thread: Index, of: usize, kind: usize) {
        if self.homes.is_some() {
            self.check_types(state, thread, of, kind);
        }
        let partition = &state.partitions[of];
        let lane = partition.lanes[kind].as_ref().expect("its job runs");
        let same = |&(_, put): &(u8, &Index)| self.has_consumers || usize::from(*put) == kind;
        let mut unsettled = (0..).zip(&partition.put).filter(same).map(|(at, _)| at);
        let is_over = |at| partition.is_settled(at) || partition.is_buried(at);
        let mut unsettled = unsettled.by_ref().filter(|&at| !is_over(at));
        if lane.job.iter().any(|item| unsettled.next() != Some(item.position)) {
            state.break_promise("a handler got items out of order, or again");
        }
    }

    /// Where types come and go, checks that each item is of the handler's type, and newer than
    /// those of its producer and type in earlier batches.
    fn check_types(&self, state: &mut State, thread: Index, of: usize, kind: usize) {
        let lock =
            state.threads[usize::from(thread)].in_flight.and_then(|in_flight| in_flight.lock);
        let is_its = lock.is_some_and(|lock| self.is_lock_of(kind, lock));
        let lane = state.partitions[of].lanes[kind].as_ref().expect("its job runs");
        let (items, is_first) = (lane.job.clone(), lane.tries == 0);
        let registry = state.registry.as_mut().expect("types come and go");
        let mut broken = None;
        for item in items {
            if usize::from(item.kind) != kind || !is_its {
                broken = Some("a handler got an item of another type");
            } else if is_first && !registry.note_call(kind, item.origin) {
                broken = Some("a handler got an item behind a newer one");
            }
        }
        if let Some(promise) = broken {
            state.break_promise(promise);
        }
    }

    /// Counts the items of a job from the one with the number `first`.
    fn settle(&self, state: &mut State, thread: Index, of: usize, kind: usize, first: usize) {
        let me = &mut state.threads[usize::from(thread)];
        me.at = At::EndJob;
        let counts = !me.is_cut_off || self.is_off(Rule::CutOff);
        let lane = state.partitions[of].lanes[kind].as_ref().expect("its job runs");
        if counts {
            let items: Vec<u8> = lane.job[first..].iter().map(|item| item.position).collect();
            let has_handler = me.in_flight.is_some_and(|in_flight| in_flight.lock.is_some());
            for position in items {
                if !has_handler && state.partitions[of].outstanding & 1 << position != 0 {
                    state.break_promise("a handler that was removed did not get what lingered");
                }
                if state.partitions[of].is_settled(position) {
                    state.break_promise("an item was handled twice");
                }
                state.partitions[of].settled |= 1 << position;
                state.counted += 1;
            }
        }
    }

    fn end_job(&self, state: &mut State, thread: Index, of: usize, kind: usize) {
        let at = usize::from(thread);
        let in_flight = state.threads[at].in_flight.expect("a job ends");
        let is_expired = state.is_expired;
        let is_current = self.has_consumers || self.handler_of(state, kind, of) == in_flight.lock;
        let partition = &mut state.partitions[of];
        let lane = partition.lanes[kind].as_mut().expect("its job runs");
        let retries = in_flight.fails && !is_expired;
        lane.in_call_for = lane.in_call_for.filter(|_| retries);
        if retries {
            if in_flight.is_counted_in_part && !self.is_off(Rule::DropConsumed) {
                lane.job.truncate(1);
            }
            lane.is_dead = in_flight.is_dead;
            lane.state = if !is_current && !self.is_off(Rule::RecallFailed) {
                LaneState::Ready
            } else if in_flight.is_dead {
                LaneState::AwaitsRoom { is_due: false }
            } else {
                LaneState::BackingOff { is_due: false }
            };
            lane.tried_by = self.has_consumers.then_some(thread);
            if self.is_off(Rule::FailedToHead) {
                let job = std::mem::take(&mut lane.job);
                lane.tail.extend(job);
                lane.job = lane.tail.drain(..1).collect();
            }
            // No producer is notified, because there is less room than before.
            let counted = Index::try_from(partition.counted()).expect("few items");
            partition.released = if self.is_off(Rule::HeldCounts) {
                partition.taken
            } else {
                partition.taken - counted
            };
        } else {
            lane.job.clear();
            lane.state = LaneState::Ready;
            // Outstanding items may still be queued.
            if lane.tail.is_empty() && lane.outstanding == 0 {
                partition.lanes[kind] = None;
            }
        }
        let was_stopped = !retries
            && std::mem::take(&mut partition.was_stopped)
            && !self.is_off(Rule::StoppedTake);
        let calls_owner = retries || was_stopped || partition.first_ready().is_some();
        if calls_owner {
            state.threads[at].at = At::SetBit;
        } else {
            self.end_call(state, thread);
        }
    }

    /// Notes that a partition has work for its owner: first the bit, then the wake-up.
    pub fn set_bit(&self, state: &mut State, of: usize) {
        state.partitions[of].is_ready |= !self.is_off(Rule::ResultBit);
    }

    pub fn wake_inside(&self, state: &mut State, of: usize) {
        if !self.is_off(Rule::ResultWake) {
            state.wake(state.partitions[of].owner.inside());
        }
    }

    /// Ends the work on the lane: the handler lock is next.
    fn end_call(&self, state: &mut State, thread: Index) {
        let me = &mut state.threads[usize::from(thread)];
        if let Some(lock) = me.in_flight.take().and_then(|in_flight| in_flight.lock) {
            me.lock = lock;
            me.at = At::Release;
        } else {
            self.continue_without_lock(state, thread);
        }
    }

    /// Continues after the call, without a handler lock: with the other lanes of the partition, or
    /// a search.
    fn continue_without_lock(&self, state: &mut State, thread: Index) {
        if !self.is_off(Rule::NotifyFlush) {
            state.notify_flush();
        }
        let me = &mut state.threads[usize::from(thread)];
        if let Some(next) = me.after_letters.take() {
            me.at = next;
            return;
        }
        me.at = if me.left == 0 { At::Search } else { At::Enter };
        me.left = me.left.saturating_sub(1);
        me.only_submits = me.at == At::Enter;
    }

    fn release(&self, state: &State, thread: Index, each: Each<'_>) {
        let at = usize::from(thread);
        let number = state.threads[at].lock;
        let lock = usize::from(number);
        let mut next = state.clone();
        if self.is_off(Rule::TicketsAtRelease) {
            next.locks[lock].is_held = false;
            self.continue_without_lock(&mut next, thread);
            return each(Step("thread", thread, "forgets the tickets at lock", number), next);
        }
        let was_watched = std::mem::take(&mut next.locks[lock].is_watched);
        if was_watched {
            next.wake_all();
        }
        let may_serve = !was_watched && state.threads[at].after_letters.is_none();
        if may_serve && let Some(&first) = state.locks[lock].tickets.first() {
            let mut next = next.clone();
            next.locks[lock].tickets.remove(0);
            next.threads[at].recalls = [first].into_iter().collect();
            next.threads[at].at = At::Serve;
            if !self.is_off(Rule::NotifyFlush) {
                next.notify_flush();
            }
            each(Step("thread", thread, "serves the next at lock", number), next);
        }
        next.locks[lock].is_held = false;
        next.threads[at].recalls = std::mem::take(&mut next.locks[lock].tickets);
        if next.threads[at].recalls.is_empty() {
            self.continue_without_lock(&mut next, thread);
        } else {
            next.threads[at].at = At::Recall;
        }
        each(Step("thread", thread, "frees lock", number), next);
    }

    /// Resubmits the jobs of a freed handler lock.
    fn recall(&self, mut next: State, thread: Index, each: Each<'_>) {
        let at = usize::from(thread);
        let (partition, kind) = next.threads[at].recalls[0];
        let (of, lock) = (usize::from(partition), next.threads[at].lock);
        let mut is_over = false;
        match next.threads[at].at {
            At::Recall => {
                if next.partitions[of].is_locked {
                    return;
                }
                let lane = next.partitions[of].lanes[usize::from(kind)].as_mut();
                if let Some(lane) = lane.filter(|lane| lane.state == LaneState::Posted(lock)) {
                    lane.state = LaneState::Ready;
                    next.threads[at].at = At::RecallBit;
                } else {
                    is_over = true;
                }
            }
            At::RecallBit => {
                self.set_bit(&mut next, of);
                next.threads[at].at = At::RecallWake;
            }
            _ => {
                self.wake_inside(&mut next, of);
                is_over = true;
            }
        }
        if is_over {
            next.threads[at].recalls.remove(0);
            if next.threads[at].recalls.is_empty() {
                self.continue_without_lock(&mut next, thread);
            } else {
                next.threads[at].at = At::Recall;
            }
        }
        each(Step("thread", thread, "recalls a job of", partition), next);
    }

    /// Takes the job of a ticket, at the handler lock that the thread holds.
    fn serve(&self, mut next: State, thread: Index, each: Each<'_>) {
        let at = usize::from(thread);
        let (partition, kind) = next.threads[at].recalls[0];
        let (of, lock) = (usize::from(partition), next.threads[at].lock);
        match next.threads[at].at {
            At::Serve => {
                if next.partitions[of].is_locked {
                    return;
                }
                let lane = next.partitions[of].lanes[usize::from(kind)].as_ref();
                let posted = lane.filter(|lane| lane.state == LaneState::Posted(lock));
                let target = posted.map(|lane| {
                    // A job that no consumer has tried goes to the one of this handler lock.
                    let mine = if self.has_consumers { lock } else { thread };
                    self.target(&next, (of, usize::from(kind)), lane, mine)
                });
                let lane = next.partitions[of].lanes[usize::from(kind)].as_mut();
                if target == Some(Some(lock)) {
                    self.take_job(lane.expect("it is posted"));
                    self.make_room(&mut next, of, true);
                    next.threads[at].in_flight = Some(InFlight::new(partition, kind, Some(lock)));
                    next.threads[at].recalls.clear();
                    next.threads[at].at = At::BeginCall;
                } else if target.is_some() {
                    lane.expect("it is posted").state = LaneState::Ready;
                    next.threads[at].at = At::ServeBit;
                } else {
                    next.threads[at].recalls.clear();
                    next.threads[at].at = At::Release;
                }
            }
            At::ServeBit => {
                self.set_bit(&mut next, of);
                next.threads[at].at = At::ServeWake;
            }
            _ => {
                self.wake_inside(&mut next, of);
                next.threads[at].recalls.clear();
                next.threads[at].at = At::Release;
            }
        }
        each(Step("thread", thread, "turns to a ticket of", partition), next);
    }
}
