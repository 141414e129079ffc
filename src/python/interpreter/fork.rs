//! The generation of this process, which distinguishes the objects of a forked child from those
//! that its parent made.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and the first one: each child adds one. A queue keeps
/// the generation that it was made in, because reading a counter costs less than asking for the
/// process id with every item.
static GENERATION: AtomicU32 = AtomicU32::new(0);

pub(crate) fn generation() -> u32 {
    // Relaxed: changed only in a child, before it has a second thread.
    GENERATION.load(Ordering::Relaxed)
}

/// In a forked child: every object made so far belongs to the parent.
pub(crate) fn enter_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
