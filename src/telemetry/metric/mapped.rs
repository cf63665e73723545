//! Caches the names that the mapping file gives to series.

use std::collections::HashMap;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};

use crate::telemetry::mapper::{MappedMetric, Mapping};
use crate::telemetry::metric::page::Sample;
use crate::telemetry::metric::series::Series;

/// Names whose mapping is remembered. With more, each page maps names again.
// bound mapped_names_max: mapped again on each page; tollgate_mapped_names_full_total
pub const MAPPED_NAMES_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct MappedNames {
    /// By statsd name; `None` for those that are dropped. A name is always of one kind.
    known: Mutex<HashMap<Box<str>, Option<MappedMetric>>>,
    pub(super) full: IntCounter,
    pub(super) conflicts: IntGauge,
}

impl MappedNames {
    pub(super) fn new() -> Self {
        let full = "Times the cache of mapped names was cleared: full (mapped_names_max).";
        let conflicts = "Series left off the previous page: the mapping file names them like a metric of another type.";
        Self {
            known: Mutex::default(),
            full: IntCounter::new("tollgate_mapped_names_full_total", full)
                .expect("constants are valid"),
            conflicts: IntGauge::new("tollgate_metric_conflicts", conflicts)
                .expect("constants are valid"),
        }
    }

    /// A series as the page shows it, if it does.
    pub(super) fn sample(&self, series: Series, mapping: Option<&Mapping>) -> Option<Sample> {
        let (Some(statsd), Some(mapping)) = (&series.statsd, mapping) else {
            return Some(Sample::unmapped(series));
        };
        let mut known = self.known.lock();
        if !known.contains_key(&**statsd) {
            if known.len() >= MAPPED_NAMES_MAX {
                known.clear();
                self.full.inc();
            }
            known.insert(statsd[..].into(), mapping.map(statsd, series.value.kind()));
        }
        let mapped = known.get(&**statsd)?.as_ref()?;
        Some(if mapped.is_matched || !series.of_client {
            Sample::mapped(mapped, series)
        } else {
            Sample::unmapped(series)
        })
    }
}
