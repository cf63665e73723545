//! Promises about time and faults, in process: the limiter and the Redis store over a scripted
//! Redis, under tokio's paused clock.
//!
//! Nothing here sleeps, opens a socket or depends on how busy the machine is, so times are asserted
//! exactly. What only a real Redis or a real process can show is tested elsewhere; see
//! tests/README.md.

mod batches;
mod breaker;
mod charges;
mod clocks;
mod cluster;
mod deadlines;
mod durability;
mod fault_log;
mod idle_closes;
mod leases;
mod outages;
mod outcomes;
mod over_limit_cache;
mod passwords;
mod peers;
mod queue;
mod recovery;
mod sentinel;
mod store_watch;
