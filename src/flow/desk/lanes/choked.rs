//! Lanes whose items do not count against the bound; see `partition/room.rs`.

use super::Lanes;
use crate::flow::desk::lane::CHOKE_AFTER;
use crate::item::TypeKey;
use crate::sync::Instant;

impl<T> Lanes<T> {
    /// Chokes the lanes whose job has waited for long, and calls `each` with their types.
    pub(in crate::flow) fn choke(&mut self, now: Instant, mut each: impl FnMut(TypeKey)) {
        for (_, lane) in &mut self.all {
            let held = lane.held();
            if held > 0 && !lane.is_choked && lane.has_waited(CHOKE_AFTER, now) {
                lane.is_choked = true;
                self.choked += held;
                each(lane.key);
            }
        }
    }

    /// What a choked lane held is in hand.
    #[cold]
    pub(super) fn unchoke_empty(&mut self, index: usize) {
        let lane = &mut self.all[index];
        if lane.held() == 0 {
            lane.is_choked = false;
            self.unchoked.push(lane.key);
        }
    }

    #[inline]
    pub(in crate::flow) fn has_unchoked(&self) -> bool {
        !self.unchoked.is_empty()
    }

    pub(in crate::flow) fn take_unchoked(&mut self) -> Vec<TypeKey> {
        std::mem::take(&mut self.unchoked)
    }
}
