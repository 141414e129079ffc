//! How a drain thread begins to rest or sleep: what it publishes, and what it checks afterwards
//! (rule 10 of `flow/ownership/README.md`).

use crate::flow::partition::Partition;
use crate::flow::turn::idle_policy::{after_empty_cycle, without_idle_handlers};
use crate::flow::turn::task::{Cycle, DrainTask};
use crate::item::Item;
use crate::sync::Duration;
use crate::threads::park::{SleepAttempt, SleepKind};

impl<T: Item> DrainTask<T> {
    /// Called when the task runs again after it left its worker to sleep.
    pub(crate) fn wake_up(&self) {
        self.sleeper.wake_up();
    }

    /// Prepares to sleep after a thin or empty cycle. Returns `None` if there is work after all.
    pub(crate) fn prepare_sleep(&mut self, after: Cycle) -> Option<(SleepAttempt<'_>, Duration)> {
        if after == Cycle::Thin || self.empty_cycles == 0 {
            self.segment_cache.begin_idle();
            if self.lone_cycles.make_rests_futile() {
                // Proceed as if it had rested and nothing had arrived.
                self.empty_cycles = 1;
                if after == Cycle::Thin {
                    return None;
                }
            }
        }
        let (mut kind, mut limit) = after_empty_cycle(&self.flow.config, self.empty_cycles);
        if after == Cycle::Thin {
            if self.flow.flushes.are_waiting() {
                return None;
            }
            // This rest replaces that of the first empty cycle.
            self.empty_cycles = 1;
            (kind, limit) = (SleepKind::Rest, self.thin_rest);
        } else {
            if kind == SleepKind::Rest && self.flow.flushes.are_waiting() {
                kind = SleepKind::Sleep;
            }
            if kind == SleepKind::Sleep && !self.has_idle_handlers {
                // The thread would wake up only for `on_idle`, which no handler of its partitions
                // has.
                let flow = &self.flow;
                limit = if flow.route.has_idle_handlers() {
                    limit.max(flow.config.max_idle)
                } else {
                    without_idle_handlers(&flow.config, self.empty_cycles)
                };
            }
            self.empty_cycles = self.empty_cycles.saturating_add(1);
        }
        if let Some(due) = self.timers.next() {
            limit = limit.min(due.time_left()?);
        }
        // Not in loom, which has no clock.
        if kind == SleepKind::Sleep && !cfg!(loom) {
            self.segment_cache.give_back(limit, self.index == 0);
        }
        let attempt = self.sleeper.prepare(kind);
        // Checked under pressure only: the check locks gates, and usually contends with a producer.
        self.is_pressed =
            (self.is_pressed || attempt.is_pressed()) && self.has_pressing_partition();
        if self.has_reason_to_stay_awake(kind) {
            return None;
        }
        Some((attempt, limit))
    }

    fn has_pressing_partition(&self) -> bool {
        let is_pressing = |index| {
            let partition = self.flow.route.partition(index);
            partition.has_lanes() || partition.is_pressed()
        };
        self.partitions_to_take(false).any(is_pressing)
    }

    /// The second check for work, after the thread has published that it sleeps.
    fn has_reason_to_stay_awake(&self, kind: SleepKind) -> bool {
        let flow = &self.flow;
        if flow.ending.is_over()
            || self.is_dismissed()
            || self.has_partition_to_finish()
            || flow.has_ended_retirement()
            || flow.has_dead_letters()
            || self.has_unseen_news()
        {
            return true;
        }
        match kind {
            SleepKind::Sleep => self.partitions_to_take(false).next().is_some(),
            SleepKind::Rest => flow.flushes.are_waiting() || self.is_pressed,
        }
    }

    /// Whether a shutdown has set a deadline that the timers of this thread do not reflect.
    fn has_unseen_news(&self) -> bool {
        let news = self.flow.ending.deadlines.news_after_fence();
        news != self.news
    }

    /// Whether this thread still has to finish a partition of a closing queue. One with lanes is
    /// finished later: the end of the last lane wakes its owner, or a timer does.
    fn has_partition_to_finish(&self) -> bool {
        let flow = &self.flow;
        // A partition that is moving belongs to the new owner, to which it is announced.
        let is_mine = |partition: &Partition<T>| {
            flow.owns(self.index, partition.index)
                && !partition.is_finished()
                && !partition.waits_for_calls()
                && !partition.waits_for_timer()
        };
        flow.ending.is_closing() && flow.route.partitions().any(is_mine)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::flow::batch::{Batch, Failure};
    use crate::flow::handler::{Handler, HandlerRef};
    use crate::flow::segments::kept_capacity;
    use crate::item::{Item, TypeKey};
    use crate::queue::BatchQueue;
    use crate::threads::park::sleeper;

    struct Number(u64);

    impl Item for Number {
        fn type_key(&self) -> TypeKey {
            TypeKey(usize::try_from(self.0).unwrap())
        }
    }

    /// Returns how many of 100 emptied segments a thread keeps after a rest, and before its first
    /// sleep.
    fn kept(max_idle: Duration) -> [usize; 2] {
        let config = Config { max_idle, ..Config::default() };
        let queue = BatchQueue::<Number>::builder("idle", config).start().unwrap();
        let mut task = queue.control.clone().drain_task(0, sleeper().0);
        for _ in 0..100 {
            task.segment_cache.keep(Vec::with_capacity(kept_capacity::<Number>()));
        }
        [(); 2].map(|()| {
            assert!(task.prepare_sleep(Cycle::Empty).is_some());
            task.segment_cache.count()
        })
    }

    #[test]
    fn a_thread_gives_segments_back_before_a_long_sleep() {
        assert_eq!(kept(Duration::from_millis(200)), [100, 100]);
        assert_eq!(kept(Duration::from_secs(2)), [100, 25]);
        assert_eq!(kept(Duration::from_secs(60)), [100, 0]);
    }

    /// A handler with `on_idle`.
    struct Idle;

    impl Handler<Number> for Idle {
        fn consume(&self, batch: &mut Batch<Number>) -> Result<(), Failure> {
            drop(batch.drain());
            Ok(())
        }

        fn has_on_idle(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_queue_sleeps_longer_than_max_idle_only_where_no_handler_has_on_idle() {
        let queue = BatchQueue::<Number>::builder("idle", Config::default()).start().unwrap();
        let mut task = queue.control.clone().drain_task(0, sleeper().0);
        let mut longest = || {
            let limits = (0..8).map(|_| task.prepare_sleep(Cycle::Empty).unwrap().1);
            limits.max().unwrap()
        };
        assert_eq!(longest(), Duration::from_secs(1));
        queue.add_handler(TypeKey(0), HandlerRef::new(Idle)).unwrap();
        assert_eq!(longest(), Duration::from_millis(200));
        assert!(queue.remove_handler(TypeKey(0)));
        assert_eq!(longest(), Duration::from_secs(1));
    }
}
