//! Policies as numbers, and what is refused.

use super::*;

#[test]
fn adaptive_grows_with_the_handlers() {
    let adaptive = PartitionPolicy::adaptive(25).unwrap();
    for (handlers, partitions) in
        [(0.0, 8), (1.0, 1), (100.0, 100), (200.0, 200), (460.0, 330), (500.0, 350)]
    {
        assert_eq!(adaptive.resolve(8, handlers), partitions, "{handlers} handlers");
    }
}

#[test]
fn weights_count_fractionally_and_add_up() {
    let adaptive = PartitionPolicy::adaptive(25).unwrap();
    let thirty_tenths: f64 = std::iter::repeat_n(0.1, 30).sum();
    assert_eq!(adaptive.resolve(8, thirty_tenths), 3);
    assert_eq!(adaptive.resolve(8, 3.05), 4);
}

#[test]
fn cores_round_half_up() {
    for (multiplier, cores, threads) in
        [(0.5, 5, 3), (0.25, 2, 1), (0.5, 1, 1), (0.1, 2, 1), (1.0, 8, 8)]
    {
        assert_eq!(ThreadPolicy::cores(0, multiplier).unwrap().resolve(cores), threads);
    }
    assert_eq!(ThreadPolicy::cores(1, 0.25).unwrap().resolve(8), 3);
}

#[test]
fn fewer_partitions_than_threads_reduce_the_threads() {
    let config = Config { threads: ThreadPolicy::Fixed(4), ..Config::default() };
    let (threads, partitions, warning) = config.resolve(2);
    assert_eq!((threads, partitions), (1, 1));
    assert_eq!(warning.unwrap(), "partitions(1) < threads(4), reducing threads to 1");
}

#[test]
fn waits_between_tries_grow_up_to_the_limit() {
    let never = || unreachable!("there is no jitter");
    let policy = RetryPolicy { max_backoff: Duration::from_millis(700), ..RetryPolicy::default() };
    let waits: Vec<_> = (1..6).map(|attempt| policy.delay(attempt, never).as_millis()).collect();
    assert_eq!(waits, [100, 200, 400, 700, 700]);
    assert_eq!(policy.delay(u32::MAX, never), policy.max_backoff);
    let none = RetryPolicy { backoff: Duration::ZERO, ..policy };
    assert_eq!([9, u32::MAX].map(|attempt| none.delay(attempt, never)), [Duration::ZERO; 2]);
}

#[test]
fn jitter_takes_up_to_its_share_off_a_wait() {
    let policy = RetryPolicy { jitter: 0.3, ..RetryPolicy::default() };
    let millis = |random| policy.delay(1, || random).as_millis();
    assert_eq!([millis(0.0), millis(0.5), millis(1.0)], [100, 85, 70]);
    for jitter in [-0.1, 1.1, f64::NAN] {
        let retry = Some(RetryPolicy { jitter, ..policy });
        let problem = Config { retry, ..Config::default() }.validate().unwrap_err().to_string();
        assert!(problem.starts_with(&format!("retry: jitter is {jitter}; give 0 to 1")));
    }
}

#[test]
fn invalid_settings_are_refused_with_value_and_remedy() {
    let bad = |config: Config| config.validate().unwrap_err().to_string();
    assert_eq!(
        bad(Config { buffer_size: 0, ..Config::default() }),
        "buffer_size is 0; give 1 to 100000000"
    );
    let idle = Config { max_idle: Duration::from_millis(1), ..Config::default() };
    assert!(bad(idle).contains("max_idle_ms (1) is below min_idle_ms (5)"));
    assert!(ThreadPolicy::cores(0, f64::NAN).is_err() && ThreadPolicy::fixed(0).is_err());
    assert!(PartitionPolicy::adaptive(0).is_err());
}
