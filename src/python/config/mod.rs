//! The facade's `BatchQueueConfig`, translated into the core's.
//!
//! | file | what |
//! |---|---|
//! | `settings` | the attributes of the config |
//! | `policies` | `ThreadPolicy` and `PartitionPolicy` |
//! | `selector` | how the partition of an item is found |
//! | `key` | the partition of a key |
//! | `balancer` | the balancer, which may be a Python function |

mod balancer;
pub(super) mod key;
pub(super) mod policies;
pub(super) mod selector;
mod settings;

pub(crate) use balancer::{PyAssign, run_for_caller};
pub(crate) use selector::PySelector;
pub(crate) use settings::{CoreSettings, RetrySettings, Settings, millis};
