//! Dead letters: items that failed for good, on their way to the handler that keeps them.

use smallvec::SmallVec;

use super::drain::Each;
use super::positions::At;
use super::rules::Rule;
use super::state::{Index, Lane, LaneState, State};
use super::world::{Step, World};

/// The handler of dead letters.
#[derive(Clone, Copy, Debug)]
pub struct Keeper {
    pub lock: Index,
    /// The number of tries after which a job has failed for good.
    pub attempts: u8,
    /// The most items in its box.
    pub most: usize,
}

/// Its box.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct Letters {
    /// Partition, position.
    items: SmallVec<[(Index, u8); 4]>,
    pub is_listed: bool,
    /// Lanes that found no room: partition, type.
    refused: SmallVec<[(Index, Index); 4]>,
    posted: u8,
    settled: u8,
}

impl Letters {
    pub fn items(&self) -> &[(Index, u8)] {
        &self.items
    }
}

impl World {
    pub fn letter_steps(&self, state: &State, thread: Index, each: Each<'_>) {
        let at = usize::from(thread);
        let me = &state.threads[at];
        let keeper = self.keeper.expect("there are letters");
        let is_held = state.locks[usize::from(keeper.lock)].is_held;
        let step = |what| Step("thread", thread, what, keeper.lock);
        let mut next = state.clone();
        match me.at {
            At::Letters => {
                let idle = if state.retires != 0 { At::Notify } else { At::Prepare };
                if is_held {
                    next.threads[at].at = idle;
                } else {
                    self.serve_letters(&mut next, thread, idle);
                }
                each(step("turns to the letters for lock"), next);
            }
            At::LettersAtEnd => {
                if !state.letters.is_listed {
                    next.threads[at].at = At::Ended;
                } else if is_held {
                    return;
                } else {
                    self.serve_letters(&mut next, thread, At::Ended);
                }
                each(step("turns to the last letters for lock"), next);
            }
            At::TakeLetters => {
                let count = state.letters.items.len().min(self.batch);
                let me = &mut next.threads[at];
                me.letters = next.letters.items.drain(..count).collect();
                me.recalls = std::mem::take(&mut next.letters.refused);
                me.at = if me.recalls.is_empty() { At::CallWithLetters } else { At::RecallRefused };
                if count == 0 && me.recalls.is_empty() {
                    next.letters.is_listed = false;
                    (me.lock, me.at) = (keeper.lock, At::Release);
                }
                each(step("takes letters for lock"), next);
            }
            At::RecallRefused => {
                let (partition, kind) = me.recalls[0];
                let of = usize::from(partition);
                if state.partitions[of].is_locked {
                    return;
                }
                let lane = next.partitions[of].lanes[usize::from(kind)].as_mut();
                if let Some(lane) = lane.filter(|lane| lane.state.awaits_room()) {
                    lane.state = LaneState::Ready;
                    self.set_bit(&mut next, of);
                    self.wake_inside(&mut next, of);
                }
                let me = &mut next.threads[at];
                me.recalls.remove(0);
                if me.recalls.is_empty() {
                    let is_empty = me.letters.is_empty();
                    me.at = if is_empty { At::TakeLetters } else { At::CallWithLetters };
                }
                each(step("recalls a lane that waits for lock"), next);
            }
            At::CallWithLetters => {
                next.threads[at].at = At::SettleLetters;
                each(step("calls with letters at lock"), next);
            }
            _ => {
                Self::settle_letters(&mut next, thread);
                each(step("counts the letters for lock"), next);
            }
        }
    }

    fn serve_letters(&self, state: &mut State, thread: Index, after: At) {
        let lock = self.keeper.expect("there are letters").lock;
        state.locks[usize::from(lock)].is_held = true;
        let me = &mut state.threads[usize::from(thread)];
        (me.at, me.after_letters) = (At::TakeLetters, Some(after));
    }

    fn settle_letters(state: &mut State, thread: Index) {
        let me = &mut state.threads[usize::from(thread)];
        let (letters, counts) = (std::mem::take(&mut me.letters), !me.is_cut_off);
        me.at = At::TakeLetters;
        for (partition, position) in letters {
            let its = &mut state.partitions[usize::from(partition)];
            let is_settled = its.is_settled(position);
            state.letters.settled += 1;
            if counts {
                its.settled |= 1 << position;
                state.counted += 1;
            }
            if is_settled {
                state.break_promise("a letter was handled twice");
            }
        }
        state.notify_flush();
    }

    /// Puts the job of a lane into the box. Returns `false` if the box has no room.
    pub fn post(&self, state: &mut State, of: usize, kind: usize) -> bool {
        let keeper = self.keeper.expect("the job is dead");
        let (its, letters) = (&mut state.partitions[of], &mut state.letters);
        let lane = its.lanes[kind].as_ref().expect("it has the job");
        let number = |index: usize| Index::try_from(index).expect("few of them");
        if !letters.items.is_empty() && letters.items.len() + lane.job.len() > keeper.most {
            let place = (number(of), number(kind));
            if !letters.refused.contains(&place) {
                letters.refused.push(place);
            }
            return false;
        }
        for item in &lane.job {
            its.buried |= 1 << item.position;
            letters.items.push((number(of), item.position));
        }
        letters.posted += number(lane.job.len());
        letters.is_listed = true;
        true
    }

    /// Marks a lane whose dead job had no room as ready, under the lock of the lanes.
    pub fn post_again(&self, state: &mut State, of: usize, kind: usize) {
        let is_posted = self.post(state, of, kind);
        let its = &mut state.partitions[of];
        let lane = its.lanes[kind].as_mut().expect("it is ready");
        if !is_posted {
            lane.state = LaneState::AwaitsRoom { is_due: false };
            return;
        }
        lane.job.clear();
        lane.is_dead = false;
        its.lanes[kind].take_if(|lane: &mut Lane| lane.tail.is_empty() && lane.outstanding == 0);
        // The turn may have left items queued because of this lane.
        if std::mem::take(&mut its.was_stopped) && !self.is_off(Rule::StoppedTake) {
            its.is_ready = true;
        }
        state.wake_all();
    }

    /// Whether there are letters while no thread is inside their handler.
    pub fn watch_letters(&self, state: &mut State) -> bool {
        let Some(keeper) = self.keeper.filter(|_| state.letters.is_listed) else { return false };
        if self.is_off(Rule::AwakeForDeadLetters) {
            return false;
        }
        let lock = &mut state.locks[usize::from(keeper.lock)];
        lock.is_watched |= lock.is_held;
        !lock.is_held
    }
}

impl State {
    /// Whether the letters that a flush waits for are settled too.
    pub fn has_settled_letters(&mut self) -> bool {
        self.letters.settled >= *self.letters_goal.get_or_insert(self.letters.posted)
    }
}
