//! Headline.
fn main() {}
