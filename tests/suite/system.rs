//! Tests that need more of the machine than `make test` asks for, or much longer: `make test-all`
//! runs them, a module at a time.

mod clocks;
mod console;
mod hostile;
mod lease_clocks;
mod leases;
mod long_faults;
mod mounts;
pub(crate) mod namespaces;
mod network;
mod prometheus;
mod redis_tls;
mod silent_peers;
mod traces;
mod versions;
