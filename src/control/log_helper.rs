//! The log helper: a thread, at most one per queue, that writes lines from a bounded list to the
//! user's log. A log that hangs, or that waits for the queue itself, ties up its helper and loses
//! lines, but blocks nothing else.
//!
//! Drain threads, the control thread and the supervisor always log through it. A caller that
//! produces or creates a queue logs in its own call, unless it is a drain thread. A queue without
//! threads has no helper: its callers write the lines after draining it, one caller at a time.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | backlog | threads that log, the helper, under its lock | the writers; statistics; flushes |
//! | written | the helper (notify) | flushes and shutdowns (wait) |

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;

use crate::flow::handler::Host;
use crate::item::Item;
use crate::sync::{Arc, Condvar, Duration, Instant, Mutex, wait_for};
use crate::threads::agenda::spawn_helper;
use crate::threads::context::{KnownThread, LogScope, QueueLog, on_drain_thread, on_log_thread};
use crate::threads::pool::ThreadBody;
use crate::threads::waits::{Pause, slice};

/// The most lines that wait for the log; further ones are dropped and counted.
const MOST_LINES: usize = 1_000;

/// How long a flush, a shutdown, or the exit of the process (for all its queues) waits for lines.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long a shutdown waits at least, so that its report of abandoned items is not cut off.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// A source of thread names and stacks. Its methods may block.
pub(crate) trait Witness {
    fn name(&self, thread: &KnownThread) -> String;

    /// Returns the thread's call stack, one or more lines per call.
    fn stack(&self, thread: &KnownThread) -> Option<String>;
}

/// A host as a witness.
pub(crate) struct HostWitness<'a, T: Item>(pub(crate) &'a dyn Host<T>);

impl<T: Item> Witness for HostWitness<'_, T> {
    fn name(&self, thread: &KnownThread) -> String {
        self.0.thread_name(thread.number).unwrap_or_else(|| thread.name.clone())
    }

    fn stack(&self, thread: &KnownThread) -> Option<String> {
        self.0.thread_stack(thread.number)
    }
}

/// A line for the log.
pub(crate) enum Line {
    /// Something may need the operator's attention.
    Warning(String),
    /// A warning with thread names or stacks, which the helper looks up when it writes the line.
    Later(LaterLine),
    /// About normal operation.
    Info(String),
}

type LaterLine = Box<dyn FnOnce(&dyn Witness) -> String + Send>;

impl Line {
    pub(crate) fn later(line: impl FnOnce(&dyn Witness) -> String + Send + 'static) -> Self {
        Self::Later(Box::new(line))
    }

    pub(crate) fn log<T: Item>(self, host: &dyn Host<T>) {
        match self {
            Self::Warning(line) => host.log(&line),
            Self::Later(line) => host.log(&line(&HostWitness(host))),
            Self::Info(line) => host.inform(&line),
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warning(line) | Self::Info(line) => f.write_str(line),
            Self::Later(_) => f.write_str("a line to be written"),
        }
    }
}

/// A destination for lines. Both methods may run user code.
pub(crate) trait Log: Send + Sync + 'static {
    /// Runs the helper's whole life, on a thread that the log can name.
    fn live(&self, body: ThreadBody);

    fn write(&self, line: Line);
}

/// The log of a queue's host.
pub(crate) struct HostLog<T: Item>(pub(crate) Arc<dyn Host<T>>);

impl<T: Item> Log for HostLog<T> {
    fn live(&self, body: ThreadBody) {
        self.0.live(body);
    }

    fn write(&self, line: Line) {
        line.log(&*self.0);
    }
}

/// The log as statistics show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogFigures {
    /// Lines that wait, including the one being written.
    pub(crate) waiting: usize,
    /// Lines that were lost because too many waited.
    pub(crate) dropped: u64,
    /// How long the current line has been in writing.
    pub(crate) in_line: Duration,
}

#[derive(Debug, Default)]
struct Backlog {
    lines: VecDeque<Line>,
    /// Lines put into the list so far.
    accepted: u64,
    dropped: u64,
    /// Dropped lines that have not been reported yet.
    unreported: u64,
    /// Whether the queue's callers write the lines instead of a helper.
    is_of_callers: bool,
    /// Whether the helper or a caller is writing.
    is_running: bool,
    /// When the current line was begun.
    writing_since: Option<Instant>,
}

impl Backlog {
    fn waiting(&self) -> usize {
        self.lines.len() + usize::from(self.writing_since.is_some())
    }

    /// Returns the number of lines written so far.
    fn written(&self) -> u64 {
        self.accepted - self.waiting() as u64
    }
}

struct Inner {
    /// The prefix of the helper's own lines.
    subject: String,
    log: Box<dyn Log>,
    backlog: Mutex<Backlog>,
    written: Condvar,
}

/// The lines of one queue on their way to the log.
#[derive(Clone)]
pub(crate) struct LogHelper(Arc<Inner>);

impl fmt::Debug for LogHelper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogHelper").field(&self.0.subject).finish()
    }
}

impl LogHelper {
    pub(crate) fn new(subject: impl Into<String>, log: impl Log) -> Self {
        Self(Arc::new(Inner {
            subject: subject.into(),
            log: Box::new(log),
            backlog: Mutex::new(Backlog::default()),
            written: Condvar::new(),
        }))
    }

    /// Leaves writing to the queue's callers, with [`write_in_call`](Self::write_in_call).
    pub(crate) fn leave_to_callers(&self) {
        self.0.backlog.lock().is_of_callers = true;
    }

    /// Logs a line without waiting for the log.
    pub(crate) fn log(&self, line: Line) {
        if cfg!(loom) {
            // Another thread would multiply the states that a model explores.
            return self.0.log.write(line);
        }
        let mut backlog = self.0.backlog.lock();
        if backlog.lines.len() < MOST_LINES {
            backlog.lines.push_back(line);
            backlog.accepted += 1;
        } else {
            backlog.dropped += 1;
            backlog.unreported += 1;
        }
        drop(backlog);
        self.start();
    }

    /// Starts the helper if lines wait and it is not running.
    fn start(&self) {
        let mut backlog = self.0.backlog.lock();
        if backlog.lines.is_empty() || backlog.is_of_callers || backlog.is_running {
            return;
        }
        backlog.is_running = true;
        drop(backlog);
        let leave = Leave { helper: self.clone(), has_left: Cell::new(false) };
        // If the system has no thread left, the next line or flush tries again.
        let _ = spawn_helper("batchqueue-log", move || {
            let helper = leave.helper.clone();
            helper.0.log.live(Box::new(move || {
                leave.helper.write_lines();
                leave.has_left.set(true);
            }));
        });
    }

    /// Writes the lines of a queue without threads, unless another caller is doing so: two writers
    /// would reorder them.
    pub(crate) fn write_in_call(&self) {
        if std::mem::replace(&mut self.0.backlog.lock().is_running, true) {
            return;
        }
        let leave = Leave { helper: self.clone(), has_left: Cell::new(false) };
        self.write_lines();
        leave.has_left.set(true);
    }

    /// Writes lines until none are left.
    fn write_lines(&self) {
        let _scope = LogScope::enter();
        while let Some(line) = self.next() {
            self.0.log.write(line);
        }
    }

    /// Returns the next line, or `None` if no line is left.
    fn next(&self) -> Option<Line> {
        let backlog = &mut *self.0.backlog.lock();
        backlog.writing_since = None;
        let line = backlog.lines.pop_front().or_else(|| {
            let dropped = std::mem::take(&mut backlog.unreported);
            (dropped > 0).then(|| {
                backlog.accepted += 1;
                Line::Warning(format!(
                    "{}: {dropped} lines were dropped while the log was held up",
                    self.0.subject
                ))
            })
        });
        backlog.is_running = line.is_some();
        backlog.writing_since = line.is_some().then(Instant::now);
        self.0.written.notify_all();
        line
    }

    pub(crate) fn figures(&self, now: Instant) -> LogFigures {
        let backlog = self.0.backlog.lock();
        let since = backlog.writing_since;
        LogFigures {
            waiting: backlog.waiting(),
            dropped: backlog.dropped,
            in_line: since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
        }
    }

    /// Waits until all lines logged so far are written, or until `latest`. Does not wait behind a
    /// line that hangs, nor on a thread that is writing one.
    pub(crate) fn wait_written<P: Pause>(
        &self,
        latest: Instant,
        pause: &mut P,
    ) -> Result<(), P::Interrupt> {
        self.start();
        let goal = self.0.backlog.lock().accepted;
        let is_over = |backlog: &Backlog| {
            let is_held_up =
                |since: Instant| Instant::now().saturating_duration_since(since) >= PATIENCE;
            let is_stopped = backlog.writing_since.is_some_and(is_held_up) || !backlog.is_running;
            backlog.written() >= goal || is_stopped
        };
        while !on_log_thread() && Instant::now() < latest && !is_over(&self.0.backlog.lock()) {
            pause.pause(&mut |limit| {
                let backlog = self.0.backlog.lock();
                if !is_over(&backlog) {
                    drop(wait_for(&self.0.written, backlog, slice(limit, Some(latest))));
                }
            })?;
        }
        Ok(())
    }
}

impl QueueLog for LogHelper {
    fn warn(&self, line: String) {
        let is_of_callers = self.0.backlog.lock().is_of_callers;
        if is_of_callers && !on_drain_thread() {
            self.0.log.write(Line::Warning(line));
        } else {
            self.log(Line::Warning(line));
        }
    }
}

/// Returns until when a flush waits for its lines.
pub(crate) fn patience(deadline: Option<Instant>) -> Instant {
    let latest = Instant::now() + PATIENCE;
    deadline.map_or(latest, |deadline| deadline.min(latest))
}

/// Returns until when a shutdown waits for its lines, even past its deadline.
pub(crate) fn last_patience(deadline: Option<Instant>) -> Instant {
    patience(deadline).max(Instant::now() + LAST_PATIENCE)
}

/// A guard that marks the writer as stopped if the log panics or the helper does not start, so that
/// the next line starts another.
struct Leave {
    helper: LogHelper,
    /// The writer has found no more lines and another may be running by now.
    has_left: Cell<bool>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if self.has_left.get() {
            return;
        }
        let mut backlog = self.helper.0.backlog.lock();
        backlog.is_running = false;
        backlog.writing_since = None;
        self.helper.0.written.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::threads::waits::Wait;

    /// Writes into a list, one line after each `go`.
    struct Stepwise {
        lines: Arc<Mutex<Vec<String>>>,
        go: crossbeam_channel::Receiver<()>,
    }

    impl Log for Stepwise {
        fn live(&self, body: ThreadBody) {
            body();
        }

        fn write(&self, line: Line) {
            if self.go.recv().is_ok() {
                self.lines.lock().push(format!("{line:?}"));
            }
        }
    }

    fn stepwise() -> (LogHelper, crossbeam_channel::Sender<()>, Arc<Mutex<Vec<String>>>) {
        let (sender, go) = crossbeam_channel::unbounded();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        (LogHelper::new("queue orders", Stepwise { lines: lines.clone(), go }), sender, lines)
    }

    fn warn(helper: &LogHelper, number: usize) {
        helper.log(Line::Warning(format!("line {number}")));
    }

    fn wait_written(helper: &LogHelper) {
        match helper.wait_written(patience(None), &mut Wait) {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }

    #[test]
    fn lines_beyond_the_bound_are_counted_and_not_kept() {
        let (helper, go, lines) = stepwise();
        // The helper may be writing one.
        let logged = MOST_LINES + 1 + 500;
        (0..logged).for_each(|number| warn(&helper, number));
        let figures = helper.figures(Instant::now());
        assert!((MOST_LINES..=MOST_LINES + 1).contains(&figures.waiting), "{figures:?}");
        assert_eq!(figures.waiting as u64 + figures.dropped, logged as u64);
        (0..=logged).for_each(|_| go.send(()).unwrap());
        wait_written(&helper);
        let after = helper.figures(Instant::now());
        assert_eq!((after.waiting, after.dropped), (0, figures.dropped));
        let lines = lines.lock();
        assert_eq!(lines.len() as u64, logged as u64 - figures.dropped + 1);
        let last = format!(
            "queue orders: {} lines were dropped while the log was held up",
            figures.dropped
        );
        assert_eq!(*lines.last().unwrap(), last);
    }

    #[test]
    fn a_wait_ends_when_the_lines_before_it_are_written() {
        let (start, (helper, go, lines)) = (Instant::now(), stepwise());
        let assert_written = |count: usize| {
            let expected: Vec<_> = (0..count).map(|number| format!("line {number}")).collect();
            let lines = lines.lock();
            // On a busy machine a line may take so long that the wait ends before.
            assert!(start.elapsed() >= PATIENCE || lines.starts_with(&expected), "{lines:?}");
        };
        warn(&helper, 0);
        let second = {
            let (helper, go) = (helper.clone(), go.clone());
            std::thread::spawn(move || {
                go.send(()).unwrap();
                warn(&helper, 1);
            })
        };
        wait_written(&helper);
        assert_written(1);
        second.join().unwrap();
        go.send(()).unwrap();
        wait_written(&helper);
        assert_written(2);
    }
}
