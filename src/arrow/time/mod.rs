//! Time: zones, buckets in local time, and times that a local clock showed.
//!
//! ```text
//!  clock: time on a zone's clock ──▶ instant        buckets: instant ──▶ start of its bucket
//!                                    zone: spans of one UTC offset
//! ```
//!
//! Instants are numbers since the epoch, in the unit of their column.

mod buckets;
mod clock;
mod zone;

pub use buckets::{BucketFinder, Buckets};
pub use clock::{Clock, ClockReader, with_instants};
pub use zone::Zone;
