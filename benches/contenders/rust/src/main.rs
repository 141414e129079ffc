//! `batchqueue` and alternatives to it, in one process per contender, with the same workload, clock
//! and handlers. `run.py` starts it once per contender and round. To run it directly:
//!
//! ```text
//! cargo run --release -- --contender kanal --workload headline --rounds 3
//! cargo run --release -- --contender kanal --workload headline --check
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `args` | the command line |
//! | `workload` | producers, drain threads, types, slots, items |
//! | `tally` | what the handlers count, and when a round ends |
//! | `measure` | warm-up, rounds, the clock, one JSON line per round |
//! | `counts` | sleeps and preemptions of drain threads, the distance of the cores |
//! | `drain` | shared by the stores: drain threads own partitions, take, group, dispatch |
//! | `stores` | flume, kanal, crossbeam, `Mutex<Vec>` |
//! | `ours` | `batchqueue` through its public API |

mod args;
mod counts;
mod drain;
mod measure;
mod ours;
mod stores;
mod tally;
mod workload;

use args::Args;
use drain::Partitioned;
use ours::Ours;

fn main() {
    let args = Args::parse(std::env::args().skip(1)).unwrap_or_else(|message| {
        eprintln!("contenders: {message}");
        std::process::exit(2);
    });
    let outcome = match args.contender.as_str() {
        "batchqueue" => measure::run::<Ours>(&args),
        "crossbeam" => measure::run::<Partitioned<stores::Crossbeam>>(&args),
        "flume" => measure::run::<Partitioned<stores::Flume>>(&args),
        "kanal" => measure::run::<Partitioned<stores::Kanal>>(&args),
        "mutex-vec" => measure::run::<Partitioned<stores::MutexVec>>(&args),
        other => Err(format!(
            "unknown contender {other}; give batchqueue, crossbeam, flume, kanal or mutex-vec"
        )),
    };
    if let Err(message) = outcome {
        eprintln!("contenders: {} {}: {message}", args.contender, args.workload.name);
        std::process::exit(1);
    }
}
