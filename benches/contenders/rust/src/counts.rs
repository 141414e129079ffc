//! What may explain a slow round: how often the drain threads slept or were preempted, and how far
//! apart the cores were just before.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Context switches since a thread's start.
#[derive(Clone, Copy, Default)]
pub struct Switches {
    /// The thread slept.
    pub voluntary: u64,
    /// Another one took its core.
    pub involuntary: u64,
}

/// The switches of each thread of the process, by its number. Empty on a system without `/proc`.
pub fn threads() -> HashMap<String, Switches> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let switches = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        Some((name_of(&task.path()), switches_in(&status)))
    });
    switches.collect()
}

/// The switches since `before` of the threads that lived then: not those of producers.
pub fn since(before: &HashMap<String, Switches>) -> Switches {
    let mut sum = Switches::default();
    for (thread, now) in threads() {
        if let Some(before) = before.get(&thread) {
            sum.voluntary += now.voluntary - before.voluntary;
            sum.involuntary += now.involuntary - before.involuntary;
        }
    }
    sum
}

fn name_of(task: &Path) -> String {
    task.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn switches_in(status: &str) -> Switches {
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
    };
    Switches {
        voluntary: value("voluntary_ctxt_switches:"),
        involuntary: value("nonvoluntary_ctxt_switches:"),
    }
}

/// Nanoseconds until a cache line that one core has written is back from another core that has
/// written it: the best of ten means over a thousand exchanges; 0 with a single core.
///
/// On a virtual machine it may differ by a factor of fifteen from one second to the next, as its
/// host runs the two virtual cores on one core, on neighbours, or far apart.
pub fn exchange_ns() -> f64 {
    const BLOCKS: u64 = 10;
    const EXCHANGES: u32 = 1_000;
    if std::thread::available_parallelism().map_or(1, usize::from) == 1 {
        return 0.0;
    }
    let last = 2 * BLOCKS * u64::from(EXCHANGES);
    let turn = AtomicU64::new(0);
    let answer = || {
        for number in (1..last).step_by(2) {
            wait_for(&turn, number);
            turn.store(number + 1, Ordering::Release);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(answer);
        let mut number = 0;
        let blocks = (0..BLOCKS).map(|_| {
            let start = Instant::now();
            for _ in 0..EXCHANGES {
                turn.store(number + 1, Ordering::Release);
                number += 2;
                wait_for(&turn, number);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(EXCHANGES)
        });
        blocks.fold(f64::INFINITY, f64::min)
    })
}

fn wait_for(turn: &AtomicU64, number: u64) {
    while turn.load(Ordering::Acquire) != number {
        std::hint::spin_loop();
    }
}
