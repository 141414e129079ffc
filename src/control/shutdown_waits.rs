//! Which queue waits for the end of which. A drain thread that shuts another queue down waits for
//! it, and two that do so to each other would wait for ever: the second does not wait.

use crate::sync::{Forgettable, Mutex};

static WAITS: Forgettable<Waits> = Forgettable::new();

/// Pairs of queues, as addresses: the first cannot end before the second, because one of its drain
/// threads waits.
#[derive(Default)]
struct Waits(Mutex<Vec<(usize, usize)>>);

/// While it lives, a drain thread of one queue waits for the end of another.
pub(crate) struct WaitForEnd(usize, usize);

impl WaitForEnd {
    /// Returns `None` if `of` already waits for `waiter`, perhaps through others, so that neither
    /// would end.
    pub(crate) fn begin(waiter: usize, of: usize) -> Option<Self> {
        let all = WAITS.get();
        let mut waits = all.0.lock();
        let mut reached = vec![of];
        let mut next = 0;
        while let Some(&queue) = reached.get(next) {
            if queue == waiter {
                return None;
            }
            for &(from, to) in waits.iter() {
                if from == queue && !reached.contains(&to) {
                    reached.push(to);
                }
            }
            next += 1;
        }
        waits.push((waiter, of));
        Some(Self(waiter, of))
    }
}

impl Drop for WaitForEnd {
    fn drop(&mut self) {
        let all = WAITS.get();
        let mut waits = all.0.lock();
        if let Some(position) =
            waits.iter().position(|&(waiter, of)| (waiter, of) == (self.0, self.1))
        {
            waits.swap_remove(position);
        }
    }
}

/// In a forked child: no drain thread exists here, and the lock may be held for ever.
#[cfg(feature = "python")]
pub(crate) fn forget() {
    WAITS.forget();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_would_close_a_circle_is_refused() {
        // Queues have even addresses, so these odd ones are free.
        let first = WaitForEnd::begin(11, 13);
        let second = WaitForEnd::begin(13, 15);
        assert!(first.is_some() && second.is_some());
        assert!(WaitForEnd::begin(15, 11).is_none());
        assert!(WaitForEnd::begin(17, 11).is_some());
        drop(second);
        assert!(WaitForEnd::begin(15, 11).is_some());
    }
}
