//! The contenders' containers, one file each.

mod crossbeam;
mod flume;
mod kanal;
mod mutex_vec;

pub use self::crossbeam::Crossbeam;
pub use self::flume::Flume;
pub use self::kanal::Kanal;
pub use self::mutex_vec::MutexVec;
