//! Counters, gauges, histograms and timers, each with its name and help text.
//!
//! Every component registers its own ([`Metrics`]). Names follow the conventions of Prometheus
//! (base units, `_total`), except those of envoyproxy/ratelimit, which dashboards query: these have
//! a statsd name too, by which statsd and mapping files know them.

pub use prometheus::{Histogram, IntCounter as Counter, IntGauge as Gauge};

pub use self::registry::{Metrics, Naming};
pub use self::series::{Series, Source, Timer, Times, Value};
pub(crate) use self::snapshot::Snapshot;

/// A number as gauges have it.
pub(crate) fn gauged(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

mod mapped;
mod page;
mod process;
mod registry;
mod series;
mod snapshot;
