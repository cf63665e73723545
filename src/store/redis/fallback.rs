//! Counting in this process while Redis is unavailable, and the write-back of it afterwards.
//!
//! ```text
//!   Redis decides |  unavailable: local  | write-back |  Redis decides
//!  ---------------|----------------------|------------|---------------> time
//!     last known usage          pending hits
//! ```
//!
//! `local` decides against this replica's share of a limit, starting from this replica's share of
//! the last known usage. `pending` keeps, for each counter, the hits that Redis certainly does not
//! have. `write_back` sends them before Redis is used again. Hits whose outcome is unknown are
//! counted locally and never written back: Redis counts each hit once or not at all.

pub(crate) mod change;
pub mod local;
pub(crate) mod membership;
pub(crate) mod outage;
pub mod peers;
pub mod pending;
pub(crate) mod usage_cache;
pub(crate) mod write_back;
