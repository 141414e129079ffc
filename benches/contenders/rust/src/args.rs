//! The command line: what to run, how long to warm up, how many rounds.

use std::time::Duration;

use crate::workload::Workload;

/// Small enough for the marks of all items to fit into the cache, large enough for every partition
/// to fill up and block.
const CHECKED_ITEMS: usize = 3_200_000;

pub struct Args {
    pub contender: String,
    pub workload: Workload,
    pub items: usize,
    pub rounds: usize,
    pub warm_up: Duration,
    /// Verify that each item is handled exactly once, instead of measuring.
    pub check: bool,
}

impl Args {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut contender, mut workload, mut items) = (None, None, None);
        let (mut rounds, mut warm_up, mut check) = (3, Duration::from_secs(2), false);
        while let Some(word) = words.next() {
            if word == "--check" {
                check = true;
                continue;
            }
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            let number =
                || value.parse::<usize>().map_err(|_| format!("{word} {value}: not a number"));
            match word.as_str() {
                "--contender" => contender = Some(value),
                "--workload" => workload = Some(Workload::named(&value)?),
                "--items" => items = Some(number()?),
                "--rounds" => rounds = number()?,
                "--warm-up-s" => warm_up = Duration::from_secs(number()? as u64),
                _ => return Err(format!("unknown option {word}")),
            }
        }
        let workload = workload.ok_or("--workload is missing")?;
        // Each producer produces the same number of items.
        let items = items.unwrap_or(if check { CHECKED_ITEMS } else { workload.items });
        let items = items / workload.producers * workload.producers;
        Ok(Self {
            contender: contender.ok_or("--contender is missing")?,
            workload,
            items,
            rounds,
            warm_up,
            check,
        })
    }
}
