//! The usage of each counter as Redis last reported it, from which the fallback continues.

use crate::base::time::Time;
use crate::limits::check::Key;
use crate::store::redis::direct_mapped::DirectMappedTable;
use crate::telemetry::metric::{Counter, Metrics};

/// Counters with their last known usage: 1.5 MiB.
// bound usage_cache_max: the newer one is kept; tollgate_usage_cache_overwritten_total
const USAGE_CACHE_MAX: usize = 65_536;

/// Bounded; a colliding counter overwrites an older one.
#[derive(Debug)]
pub(crate) struct UsageCache {
    table: DirectMappedTable<2>,
    overwritten: Counter,
}

impl UsageCache {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            table: DirectMappedTable::new(USAGE_CACHE_MAX),
            overwritten: metrics.counter(
                "tollgate_usage_cache_overwritten_total",
                "Last known usages overwritten by those of other counters (usage_cache_max).",
            ),
        }
    }

    /// The hash that identifies a counter here.
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.table.hash(key)
    }

    /// Records the hits in use at `now`.
    pub(crate) fn record(&self, hash: u64, used: u64, now: Time) {
        if self.table.set(hash, [used, now.as_micros()]).is_some() {
            self.overwritten.inc();
        }
    }

    /// Subtracts a refund that Redis has not confirmed.
    pub(crate) fn refund(&self, hash: u64, hits: u64) {
        if let Some([used, at]) = self.table.get(hash) {
            self.table.set(hash, [used.saturating_sub(hits), at]);
        }
    }

    /// The last known hits in use, and when.
    pub(crate) fn get(&self, hash: u64) -> Option<(u64, Time)> {
        let [used, at] = self.table.get(hash)?;
        Some((used, Time::from_micros(at)))
    }
}
