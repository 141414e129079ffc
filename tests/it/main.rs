//! The promises, from outside, with real threads. One module per promise; `model` drives random actions.

mod support;

mod p1_exclusive;
mod p2_no_loss;
mod p3_order;
mod p4_live;
mod p5_bounded;
mod p9_clean_ends;

mod model;
