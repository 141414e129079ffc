//! Helper threads: they run user code that the process's own threads must not wait for, custom
//! balancers (`balance/control_thread.rs`) and the log (`log_helper.rs`).

use crate::control::scheduler::{CountOut, RunningThreads};
#[cfg(feature = "python")]
use crate::sync::Instant;
use crate::sync::{Forgettable, spawn};

/// The helper threads of the process.
static HELPERS: Forgettable<RunningThreads> = Forgettable::new();

/// Starts a helper thread.
pub(super) fn spawn_helper(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let helpers = HELPERS.get();
    helpers.count_in();
    let count_out = CountOut(helpers);
    spawn(name.to_owned(), move || {
        let _count_out = count_out;
        body();
    })
    .map(drop)
}

/// Waits until no helper runs, or until `deadline`.
#[cfg(feature = "python")]
pub(crate) fn wait_helpers_ended(deadline: Option<Instant>) {
    let helpers = HELPERS.get();
    while !helpers.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        helpers.wait(left, || false);
    }
}

/// For a forked child: the threads do not exist here.
#[cfg(feature = "python")]
pub(crate) fn forget_helpers() {
    HELPERS.forget();
}
