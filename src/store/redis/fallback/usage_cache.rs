//! What Redis last said of each counter, so that counting can go on in this process when it says
//! nothing more.

use crate::check::Key;
use crate::store::redis::direct_mapped::DirectMappedTable;
use crate::telemetry::metric::{Counter, Metrics};
use crate::time::Time;

/// How many counters are remembered; 1.5 MiB.
pub const LAST_SEEN_MAX: usize = 65_536;

/// The memory.
#[derive(Debug)]
pub struct UsageCache {
    slots: DirectMappedTable<2>,
    overwritten: Counter,
}

impl UsageCache {
    /// Nothing was seen yet.
    pub fn new(metrics: &Metrics) -> Self {
        let overwritten = metrics.counter(
            "tollgate_usage_cache_overwritten_total",
            "Counters whose last state in Redis was forgotten because another one needed the room (last_seen_max).",
        );
        Self {
            slots: DirectMappedTable::new(LAST_SEEN_MAX),
            overwritten,
        }
    }

    /// The hash that a counter is remembered by.
    pub fn hash(&self, key: &Key) -> u64 {
        self.slots.hash(key)
    }

    /// So many hits were in use at that time.
    pub fn record(&self, hash: u64, used: u64, now: Time) {
        if self.slots.set(hash, [used, now.as_micros()]).is_some() {
            self.overwritten.inc();
        }
    }

    /// Redis was not told of a refund, or its reply did not come: what it last replied is too much
    /// by so many hits.
    pub fn refund(&self, hash: u64, hits: u64) {
        if let Some([used, at]) = self.slots.get(hash) {
            self.slots.set(hash, [used.saturating_sub(hits), at]);
        }
    }

    /// How many hits were in use, and when.
    pub fn get(&self, hash: u64) -> Option<(u64, Time)> {
        self.slots
            .get(hash)
            .map(|[used, at]| (used, Time::from_micros(at)))
    }
}
