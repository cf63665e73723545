//! The suite: it starts the real binary and asks it from outside. One test binary, so that it links once; a module for each promise.

mod support;

/// The parts of the load generator that make load, without those that print.
#[path = "../../benches/load"]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a run's counts and times stay far below 2^53"
)]
#[expect(dead_code, reason = "what only its reports show")]
mod load {
    pub mod answer;
    pub mod args;
    pub mod clock;
    pub mod draw;
    pub mod limit_check;
    pub mod link;
    pub mod process;
    pub mod request;
    pub mod run;
    pub mod schedule;
    pub mod tally;
}

mod alone;
mod bad_input;
mod cli;
mod cluster;
mod compat;
mod connections;
mod differences;
mod door_tls;
mod doors;
mod json;
mod keys;
mod laws;
mod lifecycle;
mod limit_changes;
mod local_share;
mod metrics;
mod mixed_fleet;
mod mutants;
mod operations;
mod over_limit;
mod overlay;
mod parity;
mod proxies;
mod redis_address;
mod redis_batches;
mod redis_store;
mod redis_versions;
mod refusals;
mod reload;
mod sentinel;
mod settings;
mod simulate;
mod store;
mod system;
mod traces;
mod wire;
mod xds;
