//! How the mapping file names series, remembered for the names that were seen.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};

use crate::telemetry::mapper::{Mapped, Mapping};
use crate::telemetry::metric::page::{Number, PageSample};
use crate::telemetry::metric::reference::Series;

/// Names whose mapping is remembered. With more, each page maps names again.
pub const MAPPED_NAMES_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct MappedNames {
    /// By statsd name. A name is always of one kind.
    known: Mutex<HashMap<Box<str>, Arc<Mapped>>>,
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
    pub(super) fn sample(&self, series: Series, mapping: Option<&Mapping>) -> Option<PageSample> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "the text format has only doubles"
        )]
        let value = series.value as f64;
        let mapped = series
            .statsd
            .as_ref()
            .zip(mapping)
            .map(|(statsd, mapping)| self.get(statsd, || mapping.map(statsd, series.kind)));
        match mapped.as_deref() {
            Some(Mapped::Dropped) => None,
            Some(Mapped::As(mapped)) if mapped.is_matched || !series.of_client => {
                let number = Number::of(series.kind, value * mapped.scale);
                Some(PageSample::mapped(mapped, series.help, number))
            }
            None | Some(Mapped::As(_)) => Some(PageSample {
                name: series.name,
                help: series.help.into(),
                labels: series
                    .labels
                    .into_iter()
                    .map(|(label, value)| (label.into(), value))
                    .collect(),
                number: Number::of(series.kind, value),
            }),
        }
    }

    fn get(&self, statsd: &str, map: impl FnOnce() -> Mapped) -> Arc<Mapped> {
        let mut known = self.known.lock();
        if let Some(mapped) = known.get(statsd) {
            return mapped.clone();
        }
        if known.len() >= MAPPED_NAMES_MAX {
            known.clear();
            self.full.inc();
        }
        let mapped = Arc::new(map());
        known.insert(statsd.into(), mapped.clone());
        mapped
    }
}
