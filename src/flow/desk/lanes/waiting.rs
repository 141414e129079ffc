//! Lanes that have a deadline: those that back off, and those whose batch waits to become full; see
//! `partition/linger.rs`.

use super::{LaneUse, Lanes};
use crate::control::deadlines::LastTry;
use crate::flow::desk::lane::{Owed, State};
use crate::flow::partition::segment::PutTime;
use crate::item::TypeKey;
use crate::sync::Deadline;

impl<T> Lanes<T> {
    /// Makes lanes ready whose deadline has come.
    #[inline]
    pub(crate) fn make_due_ready(&mut self) {
        while let Some(&(until, lane)) = self.due.first()
            && until.time_left().is_none()
        {
            self.make_ready(lane);
        }
    }

    /// The last tries begin: makes the lanes ready that back off. `news`: the number of the last
    /// ones, with which this ends.
    #[cold]
    pub(in crate::flow) fn begin_last_tries(&mut self, news: usize) {
        self.last_tries = Some(news);
        self.make_all_ready(|state| matches!(state, State::BackingOff(_)));
    }

    /// How many batches were tried and wait, and how many items behind them.
    pub(in crate::flow) fn backlog(&self) -> (usize, usize) {
        let failed = self.all.iter().filter(|(_, lane)| lane.failed.is_some()).count();
        (failed, self.all.iter().map(|(_, lane)| lane.tail.len()).sum())
    }

    /// Whether the last tries have begun, and there were no news since.
    pub(in crate::flow) fn are_last_tries(&self, news: usize) -> bool {
        self.last_tries == Some(news)
    }

    /// When the next lane that waits is due, if those that back off do so until `last_try` at most.
    pub(in crate::flow) fn next_due_before(&self, last_try: LastTry) -> Option<Deadline> {
        let backs_off =
            |&(_, lane): &(_, usize)| matches!(self.all[lane].state, State::BackingOff(_));
        let due = self.next_due()?;
        Some(if self.due.iter().any(backs_off) { last_try.or_sooner(due) } else { due })
    }

    fn make_all_ready(&mut self, are: impl Fn(State) -> bool) {
        let lanes: Vec<usize> = self.due.iter().map(|&(_, lane)| lane).collect();
        for lane in lanes {
            if are(self.all[lane].state) {
                self.make_ready(lane);
            }
        }
    }

    #[cold]
    pub(super) fn use_of_due(&self) -> LaneUse {
        let lingers = |&(_, lane): &(_, usize)| self.all[lane].lingers();
        if self.due.iter().any(lingers) { LaneUse::Owner } else { LaneUse::Timer }
    }

    /// When the next lane that waits is due.
    pub(crate) fn next_due(&self) -> Option<Deadline> {
        self.due.first().map(|&(until, _)| until)
    }

    /// The items of the next batch of a lane so far, if it may wait for more: not what is to be
    /// tried again.
    pub(in crate::flow) fn gathered(&self, lane: usize) -> Option<usize> {
        let lane = &self.all[lane];
        (lane.failed.is_none() && lane.owed.is_none()).then(|| lane.tail.len())
    }

    /// The handler of a type, with batches of `full` items, is about to be removed: it still gets
    /// what lingers, or would linger after a call, and so many items that are `queued` behind it.
    pub(crate) fn owe(
        &mut self,
        key: TypeKey,
        queued: usize,
        full: usize,
        owed: impl FnOnce(usize) -> Owed,
    ) {
        let Some(lane) = self.find(key).map(|lane| &mut self.all[lane]) else { return };
        let items = lane.tail.len() + queued;
        if lane.failed.is_none() && (1..full).contains(&items) {
            lane.owed = Some(Box::new(owed(items)));
        }
    }

    /// What a removed handler still gets of a lane.
    pub(in crate::flow) fn owed(&self, lane: usize) -> Option<&Owed> {
        let lane = &self.all[lane];
        lane.owed.as_deref().filter(|_| lane.failed.is_none())
    }

    /// When the first item of a lane's next batch was put, or before; `None` if that was tried
    /// before.
    #[inline]
    pub(in crate::flow) fn put_time(&self, lane: usize) -> Option<PutTime> {
        let lane = &self.all[lane];
        lane.failed.is_none().then(|| lane.tail_start().put_at)
    }

    /// The same for the oldest item of all lanes that no call has had.
    pub(in crate::flow) fn oldest_untried(&self) -> Option<PutTime> {
        let waiting = self.all.iter().filter(|(_, lane)| !lane.tail.is_empty());
        waiting.map(|(_, lane)| lane.tail_start().put_at).min()
    }

    /// Makes the lanes ready that linger.
    #[cold]
    pub(in crate::flow) fn end_linger(&mut self) {
        self.make_all_ready(|state| matches!(state, State::Lingering { .. }));
    }

    /// The lane waits for its batch to have `full` items, until a deadline.
    pub(in crate::flow) fn linger(&mut self, lane: usize, until: Deadline, full: usize) {
        self.set_state(lane, State::Lingering { until, full });
    }
}
