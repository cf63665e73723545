//! What measures milliseconds, and what would starve whatever does. `make unit` runs it after everything else, one at a time; where a
//! bare `cargo test` runs it beside the rest, [`crate::support::alone`] keeps it apart from its own kind at least.

mod faults;
mod local_share;
mod races;
mod reloads;
mod topology_faults;
mod xds_waits;
