//! Lanes as a check of waits sees them; see `awaited.rs`.

use super::Lanes;
use crate::flow::desk::lane::State;
use crate::item::TypeKey;

/// One lane at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneView {
    pub(crate) key: TypeKey,
    /// The desk at which its job is running, as an address.
    pub(crate) running_at: Option<usize>,
    /// The drain thread whose consumer has tried its job, with one consumer for each thread.
    pub(crate) tried_by: Option<usize>,
    /// Whether it holds items that no thread has in hand.
    pub(crate) holds_items: bool,
    pub(crate) is_choked: bool,
}

impl LaneView {
    /// A lane that does not exist yet.
    pub(crate) fn new(key: TypeKey) -> Self {
        Self { key, running_at: None, tried_by: None, holds_items: false, is_choked: false }
    }
}

impl<T> Lanes<T> {
    /// Whether a lane waits for its batch to become full.
    pub(crate) fn has_lingering(&self) -> bool {
        self.all.iter().any(|(_, lane)| lane.lingers())
    }

    /// The position of the first item that no thread has in hand, or of an earlier one, without
    /// those that linger.
    pub(crate) fn first_held(&self) -> Option<u64> {
        let waiting = self.all.iter().filter(|(_, lane)| !lane.lingers());
        waiting.filter_map(|(_, lane)| lane.first_held()).min()
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = LaneView> {
        self.all.iter().map(|(_, lane)| LaneView {
            key: lane.key,
            running_at: match lane.state {
                State::Running(desk) => Some(desk),
                _ => None,
            },
            tried_by: lane.failed.as_ref().and_then(|job| job.tried_by),
            holds_items: lane.held() > 0,
            is_choked: lane.is_choked,
        })
    }
}
