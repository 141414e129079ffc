//! Tests of the promises through the public API, with real threads. Each promise has its modules;
//! `regressions` has one test for each failure of the original; `model` runs random actions.

mod balance;
mod batches;
mod call_figures;
mod host;
mod lingering;
mod support;
mod weighted;

mod p1_exclusive;
mod p1_factory;
mod p2_bisect;
mod p2_dead_letters;
mod p2_failed_part;
mod p2_no_loss;
mod p2_pending;
mod p2_retry;
mod p3_order;
mod p3_types_come_and_go;
mod p4_circles;
mod p4_held_up;
mod p4_live;
mod p4_replaced_handlers;
mod p4_shared_handlers;
mod p4_slow_handlers;
mod p4_spare_threads;
mod p4_stalled;
mod p4_take_over;
mod p5_bounded;
mod p6_handoff;
mod p8_logged;
mod p9_balancers;
mod p9_clean_ends;
mod p9_panicking_items;
mod p9_panicking_keys;
mod p9_retirement;

mod model;
mod regressions;
mod regressions_of_moves;
