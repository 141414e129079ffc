//! The limit of a batch: what it leaves behind in a lane, and how that is filled up.

use super::Lanes;
use crate::flow::desk::lane::State;

impl<T> Lanes<T> {
    /// How many items the only lane lacks for a batch of `most`, if it is ready or lingers, and its
    /// next job comes from the tail.
    pub(crate) fn room_in_only(&self, most: usize) -> Option<usize> {
        let (_, lane) = self.all.iter().next().filter(|_| self.all.len() == 1)?;
        let takes_more = matches!(lane.state, State::Ready | State::Lingering { .. });
        let takes_more = takes_more && lane.failed.is_none();
        takes_more.then(|| most.saturating_sub(lane.tail.len())).filter(|&room| room > 0)
    }

    /// Puts the rest of an item back that was cut at the limit of a batch. Returns it if the tail
    /// was discarded meanwhile.
    pub(crate) fn put_back(&mut self, lane: usize, rest: T) -> Option<T> {
        let tail = &mut self.all[lane].tail;
        if tail.is_empty() {
            return Some(rest);
        }
        tail.push_front(rest);
        None
    }

    /// The rest of an item was lost: it counts with the job in hand.
    pub(crate) fn lose_rest(&mut self, index: usize, weight: usize) {
        let lane = &mut self.all[index];
        if lane.tail.is_empty() {
            return;
        }
        lane.lose(weight);
        self.held -= weight;
        if lane.is_choked {
            self.choked -= weight;
            self.unchoke_empty(index);
        }
    }
}
