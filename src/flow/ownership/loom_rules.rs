//! Each test checks one rule of the handoff, in the smallest model that fails without it.
//!
//! Where a race needs a thread at a certain point, a latch holds it there. That costs loom no
//! preemption, so the few that a bound allows are left for the race itself.

use std::convert::Infallible;

use loom::thread;

use crate::config::{Config, Selector};
use crate::control::state::Control;
use crate::flow::batch::{Batch, Failure};
use crate::flow::handler::{Handler, HandlerRef, Host, NoHost};
use crate::flow::route::owner::{Owner, OwnerWord};
use crate::flow::route::type_handlers::Consumption;
use crate::queue::BatchQueue;
use crate::sync::Arc;
use crate::testing::loom::{Number, ONE, Seen, TWO, config, model, model_by_turns};
use crate::testing::threads::Latch;
use crate::threads::park::sleeper;
use crate::threads::slots::{Spares, ThreadSlots};
use crate::threads::waits::Wait;

/// The latches of a handler: it opens the first when it is entered, and waits for the second.
type Hold = (Arc<Latch>, Arc<Latch>);

fn hold() -> Hold {
    (Arc::new(Latch::default()), Arc::new(Latch::default()))
}

/// Returns a held handler. loom reports if another thread is in `seen.inside` meanwhile.
fn held(seen: &Arc<Seen>, (entered, release): &Hold) -> HandlerRef<Number> {
    let (seen, entered, release) = (seen.clone(), entered.clone(), release.clone());
    HandlerRef::new(move |batch: &mut Batch<Number>| {
        seen.inside.with_mut(|_| {
            entered.open();
            release.wait();
        });
        seen.note(batch);
    })
}

/// Returns a queue with two drain threads, two partitions and one consumer per thread, the first of
/// which is `first`; items name their partition.
fn queue(seen: &Arc<Seen>, first: HandlerRef<Number>) -> Arc<BatchQueue<Number>> {
    let (seen, mut first) = (seen.clone(), Some(first));
    let config = Config { selector: Selector::Given, ..config(2) };
    let queue = BatchQueue::builder("q", config)
        .consumer_per_thread(move |_| first.take().unwrap_or_else(|| seen.handler()))
        .start();
    Arc::new(queue.unwrap())
}

fn put(queue: &BatchQueue<Number>, number: u32) {
    queue.produce_with(Number(ONE, number), Some(0), None, &mut Wait).unwrap();
}

fn hand_over(queue: &BatchQueue<Number>, to: usize) {
    assert!(queue.control.hand_over(&mut queue.control.state.lock(), 0, to));
}

/// Rule 8: of two threads that change the word from the same value, only one succeeds.
#[test]
fn loom_two_changes_of_one_owner_word() {
    model(2, || {
        let word = Arc::new(OwnerWord::owned(0));
        let revoked = Owner::Revoked { from: 0, to: 1 };
        word.exchange(Owner::Owned(0), revoked).unwrap();
        let assign = {
            let word = word.clone();
            thread::spawn(move || word.exchange(revoked, Owner::Owned(1)).is_ok())
        };
        let taken_back = word.exchange(revoked, Owner::Owned(0)).is_ok();
        assert_ne!(assign.join().unwrap(), taken_back);
    });
}

/// The new owner of a partition, whose job another thread has in flight, waits for the end of that
/// job, which notifies it.
#[test]
fn loom_new_owner_waits_for_the_job_in_flight() {
    model_by_turns(0, 1, || {
        let (seen, hold) = (Arc::new(Seen::default()), hold());
        let queue = queue(&seen, held(&seen, &hold));
        put(&queue, 1);
        hold.0.wait();
        hand_over(&queue, 1);
        put(&queue, 2);
        hold.1.open();
        seen.wait_for(2);
        assert_eq!(seen.numbers(), [1, 2]);
        queue.shutdown(None);
    });
}

/// The same for a close: the partition is finished when the job is over.
#[test]
fn loom_close_while_the_old_owner_has_a_job_in_flight() {
    model_by_turns(1, 1, || {
        let (seen, hold) = (Arc::new(Seen::default()), hold());
        let queue = queue(&seen, held(&seen, &hold));
        put(&queue, 1);
        hold.0.wait();
        hand_over(&queue, 1);
        hold.1.open();
        queue.shutdown(None);
        assert_eq!(seen.numbers(), [1]);
    });
}

/// Rules 3 and 7: two threads enter a partition while it moves from one to the other. Only one is
/// inside at a time, and the move completes even if the mover meets the first one inside.
#[test]
fn loom_two_threads_enter_while_a_partition_moves() {
    model(3, || {
        let seen = Arc::new(Seen::default());
        let (_sleepers, wakers): (Vec<_>, Vec<_>) = (0..2).map(|_| sleeper()).unzip();
        let slots = ThreadSlots::new(wakers, Spares::new(2, Vec::new()));
        let (by_handler, host) = (Consumption::ByHandler, Arc::new(NoHost));
        let control: Arc<Control<Number>> =
            Arc::new(Control::new("q".to_owned(), config(2), by_handler, None, host, slots, None));
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (control, seen) = (control.clone(), seen.clone());
                thread::spawn(move || {
                    let turn = control.flow.enter(thread, 0);
                    if turn.is_some() {
                        seen.inside.with_mut(|_| ());
                    }
                })
            })
            .collect();
        assert!(control.hand_over(&mut control.state.lock(), 0, 1));
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(control.flow.route.owner(0).load(), Owner::Owned(1));
    });
}

/// Rule 9: a partition moves whose owner has not checked yet, or sleeps. Only the wake-ups of the
/// move deliver the item.
#[test]
fn loom_move_while_the_owner_goes_to_sleep() {
    model_by_turns(2, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = queue(&seen, seen.handler());
        put(&queue, 1);
        hand_over(&queue, 1);
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// Logs a line after its thread's first cycle.
struct Talkative;

impl Handler<Number> for Talkative {
    fn consume(&self, _batch: &mut Batch<Number>) -> Result<(), Failure> {
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        true
    }

    fn on_idle(&self) -> Result<(), Failure> {
        Err(Failure::new("a line for the log"))
    }
}

/// Holds a thread that logs, which a drain thread does between its quiescent point and its sleep.
struct BlockedLog {
    logs: Arc<Latch>,
    release: Arc<Latch>,
}

impl Host<Number> for BlockedLog {
    fn log(&self, _line: &str) {
        self.logs.open();
        self.release.wait();
    }
}

/// Rule 10: a move begins between the owner's quiescent point and its sleep.
#[test]
fn loom_move_between_the_quiescent_point_and_the_sleep() {
    model(1, || {
        let (seen, logs, release) =
            (Arc::new(Seen::default()), Arc::new(Latch::default()), Arc::new(Latch::default()));
        let host = BlockedLog { logs: logs.clone(), release: release.clone() };
        let other = seen.handler();
        let config = Config { selector: Selector::Given, ..config(2) };
        let consumer =
            move |thread| if thread == 0 { HandlerRef::new(Talkative) } else { other.clone() };
        let queue = BatchQueue::builder("q", config)
            .host(host)
            .consumer_per_thread(consumer)
            .start()
            .unwrap();
        logs.wait();
        hand_over(&queue, 1);
        put(&queue, 1);
        release.open();
        seen.wait_for(1);
        queue.shutdown(None);
    });
}

/// Notes each call of `on_idle`, and may hold the first.
struct Idle(Arc<Seen>, Option<Hold>);

impl Handler<Number> for Idle {
    fn consume(&self, _batch: &mut Batch<Number>) -> Result<(), Failure> {
        Ok(())
    }

    fn has_on_idle(&self) -> bool {
        true
    }

    fn on_idle(&self) -> Result<(), Failure> {
        self.0.note_call();
        if let Some((entered, release)) = &self.1 {
            entered.open();
            release.wait();
        }
        Ok(())
    }
}

/// Rule 12: the owner of a removed handler's partition does not call `on_idle` from a list that it
/// read earlier, because it checks the list again at the handler lock. One cycle of each drain
/// thread is enough; the removing thread runs that of the other one, which ends the removal.
#[test]
fn loom_remove_while_the_owner_lists_idle_handlers() {
    model(2, || {
        let (removed, kept, hold) = (Arc::new(Seen::default()), Arc::new(Seen::default()), hold());
        let (mut sleepers, wakers): (Vec<_>, Vec<_>) = (0..2).map(|_| sleeper()).unzip();
        let slots = ThreadSlots::new(wakers, Spares::new(2, Vec::new()));
        let (by_handler, host) = (Consumption::ByHandler, Arc::new(NoHost));
        let control =
            Arc::new(Control::new("q".to_owned(), config(2), by_handler, None, host, slots, None));
        let handlers = [Idle(kept.clone(), Some(hold.clone())), Idle(removed.clone(), None)];
        for (key, handler) in [ONE, TWO].into_iter().zip(handlers) {
            control
                .register::<Infallible>(&key.into(), vec![HandlerRef::new(handler)].into())
                .unwrap();
        }
        // One thread owns both partitions. It is held in the handler that stays, the first on its
        // list.
        assert!(control.hand_over(&mut control.state.lock(), 1, 0));
        let mut owner = control.clone().drain_task(0, sleepers.remove(0));
        let mut other = control.clone().drain_task(1, sleepers.remove(0));
        let owner = thread::spawn(move || {
            owner.cycle();
        });
        hold.0.wait();
        let retired = control.unregister(TWO).unwrap();
        other.cycle();
        retired.wait_for_end(None, &mut Wait).unwrap();
        hold.1.open();
        owner.join().unwrap();
        assert_eq!(kept.numbers().len(), 1);
        assert!(removed.numbers().is_empty());
    });
}

/// Rule 12: the owner has looked up a handler when it is removed, and another thread ends the
/// removal. One cycle of each drain thread is enough; the removing thread runs that of the other
/// one.
#[test]
fn loom_remove_while_the_owner_submits() {
    model(2, || {
        let seen = Arc::new(Seen::default());
        let (mut sleepers, wakers): (Vec<_>, Vec<_>) = (0..2).map(|_| sleeper()).unzip();
        let slots = ThreadSlots::new(wakers, Spares::new(2, Vec::new()));
        let (by_handler, host) = (Consumption::ByHandler, Arc::new(NoHost));
        let control =
            Arc::new(Control::new("q".to_owned(), config(2), by_handler, None, host, slots, None));
        control.register::<Infallible>(&ONE.into(), vec![seen.handler()].into()).unwrap();
        control.flow.produce(Number(ONE, 1), None, None, &mut Wait).unwrap();
        let mut owner = control.clone().drain_task(0, sleepers.remove(0));
        let mut other = control.clone().drain_task(1, sleepers.remove(0));
        let removal = {
            let (control, seen) = (control.clone(), seen.clone());
            thread::spawn(move || {
                let retired = control.unregister(ONE).unwrap();
                other.cycle();
                retired.wait_for_end(None, &mut Wait).unwrap();
                seen.inside.with_mut(|_| ());
            })
        };
        // loom runs this thread first; otherwise it would not explore a lookup before the removal.
        owner.cycle();
        removal.join().unwrap();
        // If the handler were entered too late, it would panic, and its batch would fail.
        assert_eq!(control.flow.threads[0].tally.counts().failed, 0);
    });
}

/// Rule 12: the same for a handler that is replaced, which takes no other thread without an
/// `on_close` to call.
#[test]
fn loom_replace_while_the_owner_submits() {
    model(2, || {
        let (old, new) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let (mut sleepers, wakers): (Vec<_>, Vec<_>) = (0..1).map(|_| sleeper()).unzip();
        let slots = ThreadSlots::new(wakers, Spares::new(1, Vec::new()));
        let (by_handler, host) = (Consumption::ByHandler, Arc::new(NoHost));
        let control =
            Arc::new(Control::new("q".to_owned(), config(1), by_handler, None, host, slots, None));
        let register = |control: &Arc<Control<Number>>, seen: &Arc<Seen>| {
            control.register::<Infallible>(&ONE.into(), vec![seen.handler()].into()).unwrap()
        };
        register(&control, &old);
        control.flow.produce(Number(ONE, 1), None, None, &mut Wait).unwrap();
        let mut owner = control.clone().drain_task(0, sleepers.remove(0));
        let replacement = {
            let (control, old, new) = (control.clone(), old.clone(), new.clone());
            thread::spawn(move || {
                let retired = register(&control, &new).unwrap();
                if retired.is_ended() {
                    old.inside.with_mut(|_| ());
                }
            })
        };
        owner.cycle();
        replacement.join().unwrap();
        assert_eq!(control.flow.threads[0].tally.counts().failed, 0);
        owner.cycle();
        assert_eq!(old.numbers().len() + new.numbers().len(), 1);
    });
}
