//! What Redis may do to the service, under load: docs/operations.md describes each of these faults.
//!
//! They happen to real servers, or to the bytes on their way to them, while clients of four rules
//! keep calling (`support/fault.rs`).

mod redis;
mod topology;
