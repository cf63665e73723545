//! How much work of Redis a check is, and how much one call may be.
//!
//! The unit is a command. Sizes are by what Redis 6.2 took for the most expensive charge of each
//! algorithm, which is one over limit in an all-or-nothing request: 1 to 2 µs for each unit.

use crate::limits::algorithm::counter::Kind;
use crate::limits::{LOG_ENTRIES_MAX, Limit};

/// Size of the checks of one batch, in commands: about a quarter of a millisecond of Redis, or half
/// of one if the script decides. What is all or nothing is not split, so it may have more.
// bound batch_size_max: sent with the next call; tollgate_store_batches_full_total
pub(crate) const BATCH_SIZE_MAX: usize = 256;
/// Size of the checks that one call of the script decides all or nothing, in commands: less than
/// 10 ms of Redis.
pub(crate) const ATOMIC_SIZE_MAX: usize = 4_096;

/// The size of a check that the script decides.
pub(crate) fn script_size(limit: &Limit) -> usize {
    match Kind::of(limit) {
        Kind::FixedWindow | Kind::Bucket => 4,
        Kind::SlidingWindow => 5,
        Kind::SubWindows => 6 + limit.buckets as usize / 4,
        Kind::SlidingLog => {
            let entries = limit.requests.min(LOG_ENTRIES_MAX.into());
            20 + usize::try_from(entries).unwrap_or(0) / 64
        }
        Kind::Concurrency => 20,
    }
}
