//! Metrics that envoyproxy/ratelimit has too: each has a statsd name beside the Prometheus one.

use prometheus::core::Metric as _;
use prometheus::{Histogram, proto};

use crate::base::time::Span;
use crate::telemetry::mapper::Kind;

/// Buckets in microseconds. Those of envoyproxy/ratelimit begin at 5 ms, longer than most requests
/// take.
pub(super) const LATENCY_BUCKETS_US: [u32; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Buckets of envoyproxy/ratelimit where the mapping names none, whatever the unit. Dashboards may
/// query them.
const REFERENCE_BUCKETS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A source of series whose names are not known in advance.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Adds the current series.
    fn collect(&self, series: &mut Vec<Series>);
}

/// A metric with its current value. Series of the same name and labels are summed.
#[derive(Debug, Clone)]
pub struct Series {
    pub(crate) name: String,
    pub(crate) help: &'static str,
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: Value,
    /// The name in envoyproxy/ratelimit, if there is one.
    pub(crate) statsd: Option<String>,
    /// The statsd name has a part that clients choose. It keeps its name and labels unless a
    /// mapping matches it: otherwise each such name would be a metric family.
    pub(crate) of_client: bool,
}

/// The value of a [`Series`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Total since the start.
    Counter(u64),
    /// Current value.
    Gauge(u64),
    /// Times since the start.
    Times(Times),
}

/// The times of a [`Timer`].
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// Upper bounds with cumulative counts.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) count: u64,
    pub(crate) sum: f64,
    /// The unit of bounds and sum, per second.
    pub(crate) per_second: f64,
}

/// Response times of envoyproxy/ratelimit.
#[derive(Debug, Clone)]
pub struct Timer {
    histogram: Histogram,
    /// The unit of the histogram, per second.
    per_second: f64,
}

/// Reads a metric of envoyproxy/ratelimit that is registered at the start.
pub(super) type Reference = Box<dyn Fn() -> Series + Send + Sync>;

impl Series {
    /// A counter. `statsd` is its name in envoyproxy/ratelimit, if it has one.
    pub(crate) fn counter(
        name: &str,
        help: &'static str,
        labels: Vec<(&'static str, String)>,
        value: u64,
        statsd: Option<String>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            help,
            labels,
            value: Value::Counter(value),
            statsd,
            of_client: false,
        }
    }

    /// A gauge of our own.
    pub(crate) fn gauge(
        name: &str,
        help: &'static str,
        labels: Vec<(&'static str, String)>,
        value: u64,
    ) -> Self {
        Self { value: Value::Gauge(value), ..Self::counter(name, help, labels, value, None) }
    }
}

impl Value {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Counter(_) => Kind::Counter,
            Self::Gauge(_) => Kind::Gauge,
            Self::Times(_) => Kind::Observer,
        }
    }
}

impl Times {
    pub(super) fn of(histogram: &proto::Histogram, per_second: f64) -> Self {
        let buckets = histogram.get_bucket().iter();
        Self {
            buckets: buckets
                .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
                .collect(),
            count: histogram.get_sample_count(),
            sum: histogram.get_sample_sum(),
            per_second,
        }
    }
}

impl Timer {
    /// `buckets` are in a unit of which a second has `per_second`; without any it has our own and
    /// those of envoyproxy/ratelimit.
    pub(super) fn new(
        name: &str,
        help: &str,
        per_second: f64,
        buckets: Vec<f64>,
    ) -> prometheus::Result<Self> {
        let buckets = if buckets.is_empty() { latency_buckets(per_second) } else { buckets };
        let options = prometheus::HistogramOpts::new(name, help).buckets(buckets);
        Ok(Self { histogram: Histogram::with_opts(options)?, per_second })
    }

    /// Records a time.
    pub fn observe(&self, span: Span) {
        self.histogram.observe(span.as_secs_f64() * self.per_second);
    }

    pub(super) fn times(&self) -> Times {
        // One snapshot. A count that is read later than the buckets has calls that they have not.
        Times::of(self.histogram.metric().get_histogram(), self.per_second)
    }
}

/// Our buckets and those of envoyproxy/ratelimit, in the unit that `per_second` gives.
fn latency_buckets(per_second: f64) -> Vec<f64> {
    let mut buckets: Vec<f64> = LATENCY_BUCKETS_US
        .iter()
        .map(|&micros| f64::from(micros) * per_second / 1e6)
        .chain(REFERENCE_BUCKETS)
        .collect();
    buckets.sort_by(f64::total_cmp);
    buckets.dedup();
    buckets
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    use super::*;

    #[test]
    fn times_that_are_read_meanwhile_are_one_snapshot() {
        let timer = Timer::new("a_seconds", "A.", 1.0, Vec::new()).expect("its name is valid");
        let is_over = AtomicBool::new(false);
        let are_equal = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    timer.observe(Span::ZERO);
                }
            });
            let are_equal = (0..1_000).all(|_| {
                let read = timer.times();
                read.buckets.last().map(|last| last.1) == Some(read.count)
            });
            is_over.store(true, Relaxed);
            are_equal
        });
        assert!(are_equal, "the last bucket has every call");
    }

    #[test]
    fn milliseconds_have_both_sets_of_buckets() {
        let buckets = latency_buckets(1_000.0);
        let expected = REFERENCE_BUCKETS.iter().chain(&[0.05, 20.0, 10_000.0]);
        for bound in expected {
            assert!(buckets.contains(bound), "{bound}: {buckets:?}");
        }
        assert_eq!(latency_buckets(1.0), LATENCY_BUCKETS_US.map(|micros| f64::from(micros) / 1e6));
    }
}
