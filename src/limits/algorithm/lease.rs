//! Leases: hits of a hot counter that one replica has charged in Redis ahead, and hands out from
//! memory. Pure: no clock, lock or connection.
//!
//! Hits are charged when they are taken, so all replicas together never hand out more than the
//! limit of a window. What is not used in time is given back. Near the limit, and for counters that
//! are not hot, each call asks Redis.
//!
//! ```text
//!            demand >= HOT, take sent       granted
//!   asking -------------------------> taking -------> leased --+ low-water mark: the next take
//!     ^  ^                              |               |  ^----+
//!     |  +---- granted nothing ---------+               |
//!     |        nothing remains: hold                    | unused: given back after the lifetime
//!     +---- hold over, hits remain <--------------------+ window over: stranded
//! ```
//!
//! Two laws hold for every counter. W: a window admits at most its limit and what was refunded,
//! since an admitted hit was charged to its window, and to no other hit. B: in any time t a bucket
//! admits at most burst + rate·t, and a tenth of the burst that replicas held when t began.

pub use counter::LeasedCounter;
pub use demand::{Demand, PART_OF_REMAINING};
pub use moves::{Answer, Asked, Events, GiveBack, Settled, Take, TakeReply};

mod counter;
mod demand;
mod held;
mod moves;
