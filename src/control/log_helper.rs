//! The log helper: lines of the control thread and the supervisor go to the user's log on another
//! thread, at most one for each queue, through a bounded list. A log that hangs keeps its helper
//! and loses lines, and holds up nothing else.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | backlog | control thread, supervisor, the helper, under its lock | the same |

use std::collections::VecDeque;
use std::fmt;

use crate::control::helpers::spawn_helper;
use crate::control::watchdog::{HostWitness, Witness};
use crate::flow::handler::host::Host;
use crate::item::Item;
use crate::sync::{Arc, Mutex};

/// Lines that wait for the log; those beyond are dropped and counted.
const MOST_LINES: usize = 1_000;

/// A line for the log.
pub(crate) enum Line {
    /// Something may need the operator's attention.
    Warning(String),
    /// The same, with names or stacks of threads, which the helper asks for.
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

#[derive(Debug, Default)]
struct Backlog {
    lines: VecDeque<Line>,
    dropped: usize,
    is_running: bool,
}

/// The lines of one queue on their way to the log.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogHelper(Arc<Mutex<Backlog>>);

impl LogHelper {
    /// Logs a line of a queue on the helper thread.
    pub(crate) fn log<T: Item>(&self, host: &Arc<dyn Host<T>>, queue: &str, line: Line) {
        if !self.push(line) {
            return;
        }
        let (host, queue, leave) = (host.clone(), queue.to_owned(), Leave(self.clone()));
        // If the system has no thread left, the next line tries again.
        let _ = spawn_helper("batchqueue-log", move || {
            let of_lines = host.clone();
            // As a thread of the host, which shows its name in the log.
            host.live(Box::new(move || {
                let leave = leave;
                while let Some(line) = leave.0.next(&queue) {
                    line.log(&*of_lines);
                }
            }));
        });
    }

    /// Returns whether a helper must be started.
    fn push(&self, line: Line) -> bool {
        let mut backlog = self.0.lock();
        if backlog.lines.len() < MOST_LINES {
            backlog.lines.push_back(line);
        } else {
            backlog.dropped += 1;
        }
        !std::mem::replace(&mut backlog.is_running, true)
    }

    /// The next line, or `None` at the end of the helper.
    fn next(&self, queue: &str) -> Option<Line> {
        let mut backlog = self.0.lock();
        let line = backlog.lines.pop_front().or_else(|| {
            let dropped = std::mem::take(&mut backlog.dropped);
            (dropped > 0).then(|| {
                Line::Warning(format!(
                    "queue {queue}: {dropped} lines were dropped while the log was held up"
                ))
            })
        });
        backlog.is_running = line.is_some();
        line
    }
}

/// If the log panics, the next line starts another helper.
struct Leave(LogHelper);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.0.lock().is_running = false;
    }
}
