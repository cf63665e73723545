//! Clients that attack the process over its ports. It stays below [`RESIDENT_MAX_KIB`], and a well-behaved client loses no call.

mod admin;
mod outage;

/// Resident memory of a process under attack: half of what the chart gives a pod.
const RESIDENT_MAX_KIB: u64 = 256 << 10;
