//! The suite: it starts the real binary and asks it from outside. One test binary, so that it links once; a module for each promise.

mod support;

mod bad_input;
mod cli;
mod compat;
mod differences;
mod doors;
mod json;
mod keys;
mod laws;
mod lifecycle;
mod mixed_fleet;
mod mutants;
mod parity;
mod redis_address;
mod redis_batches;
mod reload;
mod store;
mod wire;
