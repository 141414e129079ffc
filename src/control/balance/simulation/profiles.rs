//! What the balancers do with each kind of traffic.

use super::*;

fn load() -> DrainBalancer {
    DrainBalancer::load_weighted()
}

fn throughput() -> DrainBalancer {
    DrainBalancer::throughput_weighted()
}

fn total(handled: &[u64]) -> u64 {
    handled.iter().sum()
}

/// At 30 % of what the threads could do, all differences are chance.
#[test]
fn equal_partitions_stay_where_they_are() {
    for (balancer, rate) in [(load(), 300.0), (throughput(), 300.0), (load(), 3.0)] {
        let mut simulation = Simulation::new(4, &[open(rate, 0.0005); 8]).balanced_by(balancer);
        simulation.run(300);
        assert!(simulation.moves <= 8, "{:?}", simulation.runs);
    }
}

/// All partitions with traffic belong to one thread, which could not do it all. The balancer alone
/// finds out.
#[test]
fn all_traffic_on_one_thread_is_spread_by_the_second_run() {
    for balancer in [load(), throughput()] {
        let traffic: Vec<Traffic> = (0..16)
            .map(|index| {
                if usize::is_multiple_of(index, 4) {
                    open(1_000.0, 0.0008)
                } else {
                    open(0.0, 0.0008)
                }
            })
            .collect();
        let simulation = Simulation::new(4, &traffic).without_take_over();
        let mut simulation = simulation.balanced_by(balancer);
        simulation.run(5);
        let handled = total(&simulation.run(10));
        assert!(handled > 39_000, "{handled} of 40,000, moves {:?}", simulation.runs);
        assert_eq!(simulation.runs[5..].iter().sum::<usize>(), 0, "{:?}", simulation.runs);
    }
}

/// The types that are busy change places with the others every 20 seconds. The balancer alone
/// finds out.
#[test]
fn a_shift_is_followed_within_a_few_seconds() {
    let traffic = |shift: usize| -> Vec<Traffic> {
        (0..8)
            .map(|index| {
                open(if usize::is_multiple_of(index + shift, 2) { 450.0 } else { 10.0 }, 0.001)
            })
            .collect()
    };
    let mut simulation = Simulation::new(2, &traffic(0)).without_take_over().balanced_by(load());
    for shift in 0..6 {
        for (partition, traffic) in simulation.partitions.iter_mut().zip(traffic(shift)) {
            partition.traffic = traffic;
        }
        simulation.run(5);
        let handled = total(&simulation.run(15));
        assert!(handled > 15 * 1_780, "{handled}, moves {:?}", simulation.runs);
    }
}

/// Calls of 1.6 and of 30 seconds, all on one of two threads. Static: one call at a time. Take-over
/// answers that within 20 ms; the balancer must not undo it.
#[test]
fn slow_calls_of_one_thread_use_both() {
    for call in [1.6, 30.0] {
        let simulation = || Simulation::new(2, &[saturated(call); 4]).all_on_thread(0);
        let calls = |mut simulation: Simulation| {
            simulation.run(60);
            total(&simulation.run(600))
        };
        let fixed = calls(simulation().without_take_over());
        let balanced = calls(simulation().balanced_by(load()));
        assert!(10 * balanced >= 18 * fixed, "{balanced} beside {fixed} with calls of {call} s");
    }
}

/// Two types of 200 ms beside six of 1 ms, behind a producer that waits for each in turn: no
/// balancer may make that worse.
#[test]
fn a_closed_loop_keeps_its_rate() {
    let quiet = |call| Traffic { retries: 0, ..saturated(call) };
    let mut traffic = [quiet(0.001); 8];
    traffic[0] = quiet(0.2);
    traffic[1] = quiet(0.2);
    let simulation = || Simulation::new(2, &traffic).with_producer_in_turn();
    let rate = |mut simulation: Simulation| {
        simulation.run(20);
        (total(&simulation.run(120)), simulation.runs)
    };
    let (fixed, _) = rate(simulation());
    for balancer in [load(), throughput()] {
        let name = format!("{balancer:?}");
        let (balanced, runs) = rate(simulation().balanced_by(balancer));
        assert!(100 * balanced >= 95 * fixed, "{name}: {balanced} beside {fixed}, moves {runs:?}");
    }
}

/// Two slow types, and six quick ones whose producers do not wait. Without take-over, slow calls
/// hold up three quick types each.
#[test]
fn quick_types_beside_slow_ones_lose_little() {
    let mut traffic = [open(1_000.0, 0.000_02); 8];
    traffic[0] = saturated(0.2);
    traffic[1] = saturated(0.2);
    for balancer in [load(), throughput()] {
        let name = format!("{balancer:?}");
        let mut simulation = Simulation::new(2, &traffic).balanced_by(balancer);
        simulation.run(20);
        let quick = total(&simulation.run(120)[2..]);
        assert!(quick >= 99 * 120 * 6_000 / 100, "{name}: {quick} of {}", 120 * 6_000);
    }
}

/// A producer that tries again a million times a second, without room, asks for nothing more. Its
/// type gets no thread for itself: seven quick types need 1.4 of two threads.
#[test]
fn refused_attempts_draw_no_thread() {
    let mut traffic = [open(1_000.0, 0.0002); 8];
    traffic[0] = Traffic { retries: 1_000, ..open(0.0, 0.001) };
    let mut simulation =
        Simulation { batch: 15, ..Simulation::new(2, &traffic).balanced_by(throughput()) };
    simulation.run(20);
    let quick = total(&simulation.run(60)[1..]);
    let wanted = 60 * 7 * 1_000;
    assert!(quick >= 80 * wanted / 100, "{quick} of {wanted}, moves {:?}", simulation.runs);
}

/// One type keeps its thread busy with few items, and seven with many do not fill the other: that
/// the first thread is asked for little does not mean that it has time.
#[test]
fn a_busy_thread_that_is_asked_for_little_gets_no_more() {
    let mut traffic = [open(1_000.0, 0.000_05); 8];
    traffic[0] = open(100.0, 0.01);
    let mut simulation =
        Simulation { batch: 1, ..Simulation::new(2, &traffic).balanced_by(throughput()) };
    for partition in &mut simulation.partitions[1..] {
        partition.owner = 1;
    }
    simulation.run(10);
    let quick = total(&simulation.run(60)[1..]);
    let wanted = 60 * 7 * 1_000;
    assert!(quick >= 98 * wanted / 100, "{quick} of {wanted}, moves {:?}", simulation.runs);
}
