//! Slow calls under loom.

use loom::thread;

use super::*;
use crate::BatchQueue;
use crate::control::scheduler::sleeper;
use crate::control::spares::Spares;
use crate::control::thread_slots::{Reach, ThreadSlots};
use crate::flow::desk::lane::Since;
use crate::flow::handler::consumption::Consumption;
use crate::flow::handler::host::NoHost;
use crate::shared::Control;
use crate::sync::{Arc, Duration};
use crate::testing::loom::{Number, ONE, Seen, TWO, config, model, model_by_turns};

/// Two threads, each with its own slow type: one waits until the other's call has ended.
#[test]
fn loom_two_slow_handlers_beside_quick_work() {
    model_by_turns(6, 1, || {
        let seen = Arc::new(Seen::default());
        let queue = BatchQueue::builder("q", config(2)).start().unwrap();
        // No drain thread has noted it: loom has no clock.
        queue.flow.threads[0].note_quick_call(Duration::ZERO);
        for key in [ONE, TWO] {
            let handler = seen.handler();
            handler.desk.note_slow(true);
            queue.add_handler(key, handler).unwrap();
        }
        queue.produce(Number(ONE, 1)).unwrap();
        queue.produce(Number(TWO, 2)).unwrap();
        seen.wait_for(2);
        queue.shutdown(None);
        // Two concurrent calls would have failed.
        assert_eq!(queue.stats().failed, 0);
    });
}

/// A ticket is stale, because its lane was called without a permit. While the end of a slow
/// call drops it, the lane's next job gets one: a lane that is posted has a ticket.
#[test]
fn loom_stale_ticket_while_its_lane_is_posted_again() {
    model(2, || {
        // Its threads do not run.
        let (_sleepers, wakers): (Vec<_>, Vec<_>) = (0..2).map(|_| sleeper()).unzip();
        let slots = ThreadSlots::new(wakers, Spares::new(2, Vec::new()));
        let (by_handler, host) = (Consumption::ByHandler, Arc::new(NoHost));
        let control: Arc<Control<Number>> =
            Arc::new(Control::new("q".to_owned(), config(2), by_handler, None, host, slots, None));
        control.flow.threads[0].note_quick_call(Duration::ZERO);
        let partition = control.flow.route.partition(0);
        let lane = partition.change_lanes(|lanes| {
            let lane = lanes.lane_of(ONE, Since::start());
            lanes.add_segment(lane, vec![Number(ONE, 1)], 1);
            lanes.add_segment(lane, vec![Number(ONE, 2)], 1);
            lanes.next_ready();
            drop(lanes.take_job(0, lane, 1, 0));
            lane
        });
        let place = JobPlace { partition: 0, lane };
        assert!(control.flow.admit_slow(0, JobPlace { partition: 1, lane: 0 }));
        assert!(!control.flow.admit_slow(1, place));
        // It stays the only one that could call: the next job of the lane is refused as well.
        control.flow.threads[0].set_reach(Reach::Away);
        let ended = {
            let control = control.clone();
            thread::spawn(move || control.flow.end_slow(0))
        };
        partition.change_lanes(|lanes| {
            lanes.end(lane, 1);
            lanes.next_ready();
            if !control.flow.admit_slow(1, place) {
                lanes.post(lane, control.flow.slow_calls.address(), None);
            }
        });
        ended.join().unwrap();
        let address = control.flow.slow_calls.address();
        partition.change_lanes(|lanes| {
            assert!(!lanes.is_posted(lane, address) || control.flow.slow_calls.has_tickets());
        });
    });
}
