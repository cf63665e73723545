//! Counters, gauges, histograms and timers, each with its name and help text.
//!
//! Every component registers its own ([`Metrics`]). Names follow the conventions of Prometheus (base
//! units, `_total`), except those of envoyproxy/ratelimit, which dashboards query: these have a
//! statsd name too, by which statsd and mapping files know them.

pub use prometheus::{Histogram, IntCounter as Counter, IntGauge as Gauge};

pub use self::mapped::MAPPED_NAMES_MAX;
pub use self::reference::{Sample, SampleValue, Series, Source, TimeUnit, Timer};
pub use self::registry::{Metrics, Naming};

mod mapped;
mod page;
mod reference;
mod registry;
