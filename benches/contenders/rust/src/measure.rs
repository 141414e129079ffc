//! The clock: from the first produce to the last handled item. Threads and queue exist before it
//! starts.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::counts::{self, Switches};
use crate::tally::{Metric, Tally};
use crate::workload::Workload;

/// A queue under measurement.
pub trait Contender: Send + Sync + 'static {
    /// Starts the drain threads, with a handler for each type.
    fn start(workload: &Workload, tally: &Arc<Tally>) -> Self;

    /// Produces one item; waits while its partition is full.
    fn produce(&self, metric: Metric);

    /// Ends the drain threads. All items have been handled.
    fn stop(&mut self);
}

/// Warms up, measures, and verifies that every item was handled.
pub fn run<C: Contender>(args: &Args) -> Result<(), String> {
    let workload = &args.workload;
    let slots = Arc::new(workload.slots());
    let per_round = workload.expected(&slots, args.items);
    let tally = Tally::new(workload.types(), if args.check { args.items } else { 0 });
    let mut contender = Arc::new(C::start(workload, &tally));

    let mut expected = vec![0; per_round.len()];
    let mut round = || {
        for (sum, more) in expected.iter_mut().zip(&per_round) {
            *sum += more;
        }
        one_round(&contender, workload, &slots, args.items, &tally, &expected)
    };
    if args.check {
        round();
    } else {
        let warm_up = Instant::now();
        while warm_up.elapsed() < args.warm_up {
            round();
        }
        for number in 0..args.rounds {
            let (exchange_ns, before) = (counts::exchange_ns(), counts::threads());
            let took = round();
            report(args, number, took, counts::since(&before), exchange_ns);
        }
    }
    let contender = Arc::get_mut(&mut contender).ok_or("a producer is still running")?;
    contender.stop();
    tally.verify(&expected)?;
    if args.check {
        println!(
            "{} {}: {} items, each handled exactly once",
            args.contender, workload.name, args.items
        );
    }
    Ok(())
}

fn one_round<C: Contender>(
    contender: &Arc<C>,
    workload: &Workload,
    slots: &Arc<Vec<usize>>,
    items: usize,
    tally: &Tally,
    expected: &[u64],
) -> Duration {
    let start_line = Arc::new(Barrier::new(workload.producers));
    let each = items / workload.producers;
    let producers: Vec<_> = (0..workload.producers)
        .map(|producer| {
            let (contender, slots, start_line) =
                (contender.clone(), slots.clone(), start_line.clone());
            let mut slot = producer * slots.len() / workload.producers;
            std::thread::spawn(move || {
                start_line.wait();
                // Read here because the measuring thread may be scheduled much later.
                let began = Instant::now();
                for value in (producer * each) as u64..((producer + 1) * each) as u64 {
                    contender.produce(Metric { kind: slots[slot], value });
                    slot = if slot + 1 == slots.len() { 0 } else { slot + 1 };
                }
                began
            })
        })
        .collect();
    let began = producers
        .into_iter()
        .map(|producer| producer.join().expect("a producer that does not panic"))
        .min();
    tally.wait_for(expected);
    began.map_or(Duration::ZERO, |began| began.elapsed())
}

fn report(args: &Args, round: usize, took: Duration, switches: Switches, exchange_ns: f64) {
    let (contender, workload, items) = (&args.contender, args.workload.name, args.items);
    let seconds = took.as_secs_f64();
    let Switches { voluntary, involuntary } = switches;
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = items as f64 / seconds;
    println!(
        "{{\"workload\": \"{workload}\", \"contender\": \"{contender}\", \"round\": {round}, \
         \"items\": {items}, \"seconds\": {seconds:.6}, \"items_per_second\": {rate:.0}, \
         \"sleeps\": {voluntary}, \"preemptions\": {involuntary}, \
         \"exchange_ns\": {exchange_ns:.0}}}"
    );
}
