//! Metrics that envoyproxy/ratelimit has too: each has a statsd name beside the Prometheus one.

use prometheus::core::Collector as _;
use prometheus::{Histogram, IntCounter, IntGauge};

use crate::telemetry::mapper::{Kind, Mapped, MappedMetric, Observer};
use crate::telemetry::metric::page::{Number, PageSample};
use crate::time::Span;

/// Buckets in microseconds. Those of envoyproxy/ratelimit begin at 5 ms, longer than most requests
/// take.
pub(super) const LATENCY_BUCKETS_US: [f64; 18] = [
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_500.0,
    5_000.0,
    10_000.0,
    20_000.0,
    25_000.0,
    50_000.0,
    100_000.0,
    250_000.0,
    500_000.0,
    1_000_000.0,
    2_500_000.0,
    5_000_000.0,
    10_000_000.0,
];

/// Buckets of envoyproxy/ratelimit where the mapping names none, whatever the unit. Dashboards may
/// query them.
pub(super) const REFERENCE_BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// A unit of time on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeUnit {
    /// As the name of the metric says.
    #[default]
    Seconds,
    /// As envoyproxy/ratelimit had it.
    Milliseconds,
}

/// Response times of envoyproxy/ratelimit.
#[derive(Debug, Clone)]
pub struct Timer {
    pub(super) histogram: Histogram,
    /// The unit of the histogram, per second.
    pub(super) per_second: f64,
}

/// A source of series whose names are not known in advance.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Adds the current series.
    fn collect(&self, series: &mut Vec<Series>);
}

/// A counter or gauge of a [`Source`]. Series of the same name and labels are summed.
#[derive(Debug, Clone)]
pub struct Series {
    pub(super) name: String,
    pub(super) help: &'static str,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) kind: Kind,
    pub(super) value: u64,
    pub(super) statsd: Option<String>,
    pub(super) of_client: bool,
}

/// The current value of a metric of envoyproxy/ratelimit, under its statsd name.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Without tags; without control characters, whatever clients send.
    pub name: String,
    /// Its value.
    pub value: SampleValue,
}

/// The value of a [`Sample`].
#[derive(Debug, Clone, PartialEq)]
pub enum SampleValue {
    /// Total since the start.
    Counter(u64),
    /// Current value.
    Gauge(u64),
    /// Counts by upper bound in milliseconds, not cumulative.
    Timer(Vec<(f64, u64)>),
}

/// A metric that is registered at the start.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) statsd: String,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: ReferenceValue,
}

#[derive(Debug)]
pub(super) enum ReferenceValue {
    Counter(IntCounter),
    Gauge(IntGauge),
    /// A gauge in envoyproxy/ratelimit, although it only grows.
    CounterAsGauge(IntCounter),
}

#[derive(Debug)]
pub(super) struct ReferenceTimer {
    statsd: String,
    help: &'static str,
    timer: Timer,
    /// `None` if the mapping drops it.
    mapped: Option<MappedMetric>,
}

impl Timer {
    /// Records a time.
    pub fn observe(&self, span: Span) {
        self.histogram.observe(span.as_secs_f64() * self.per_second);
    }

    /// Counts by upper bound in milliseconds. Times above the last bound count in the last bucket.
    fn buckets(&self) -> Vec<(f64, u64)> {
        let families = self.histogram.collect();
        let metric = families
            .first()
            .and_then(|family| family.get_metric().first());
        let Some(histogram) = metric.map(prometheus::proto::Metric::get_histogram) else {
            return Vec::new();
        };
        let mut below = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for bucket in histogram.get_bucket() {
            let count = bucket.cumulative_count();
            let millis = bucket.upper_bound() / self.per_second * 1_000.0;
            buckets.push((millis, count - below));
            below = count;
        }
        if let Some((_, last)) = buckets.last_mut() {
            *last += histogram.get_sample_count().saturating_sub(below);
        }
        buckets
    }
}

impl Series {
    /// A counter. `statsd` is its name in envoyproxy/ratelimit, if it has one.
    pub fn counter(
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
            kind: Kind::Counter,
            value,
            statsd,
            of_client: false,
        }
    }

    /// Marks a series whose statsd name has a part that clients choose. It keeps its name and labels
    /// unless a mapping matches it: otherwise each such name would be a metric family.
    #[must_use]
    pub fn of_client(mut self) -> Self {
        self.of_client = true;
        self
    }
}

impl Reference {
    pub(super) fn series(&self) -> Series {
        let (kind, value) = match &self.value {
            ReferenceValue::Counter(counter) => (Kind::Counter, counter.get()),
            ReferenceValue::CounterAsGauge(counter) => (Kind::Gauge, counter.get()),
            ReferenceValue::Gauge(gauge) => (Kind::Gauge, u64::try_from(gauge.get()).unwrap_or(0)),
        };
        Series {
            name: self.name.to_owned(),
            help: self.help,
            labels: self.labels.clone(),
            kind,
            value,
            statsd: Some(self.statsd.clone()),
            of_client: false,
        }
    }
}

impl ReferenceTimer {
    pub(super) fn new(
        statsd: &str,
        name: &'static str,
        help: &'static str,
        mapped: Mapped,
    ) -> Self {
        let mapped = match mapped {
            Mapped::As(mapped) => Some(mapped),
            Mapped::Dropped => None,
        };
        // Mappings scale from milliseconds, the unit of statsd.
        let per_second = mapped.as_ref().map_or(1.0, |mapped| mapped.scale * 1_000.0);
        let buckets = mapped.as_ref().map(|mapped| mapped.buckets.clone());
        let buckets = buckets.filter(|buckets| !buckets.is_empty());
        let options = prometheus::HistogramOpts::new(name, help)
            .buckets(buckets.unwrap_or_else(|| latency_buckets(per_second)));
        let histogram = Histogram::with_opts(options)
            .expect("names are constants, and buckets are validated by the mapping");
        Self {
            statsd: statsd.to_owned(),
            help,
            timer: Timer {
                histogram,
                per_second,
            },
            mapped,
        }
    }

    pub(super) fn timer(&self) -> Timer {
        self.timer.clone()
    }

    pub(super) fn sample(&self) -> Sample {
        Sample {
            name: self.statsd.clone(),
            value: SampleValue::Timer(self.timer.buckets()),
        }
    }

    pub(super) fn page_sample(&self) -> Option<PageSample> {
        let mapped = self.mapped.as_ref()?;
        let number = Number::of_times(&self.timer.histogram, mapped.observer)?;
        Some(PageSample::mapped(mapped, self.help, number))
    }
}

/// How a timer is shown without a mapping file.
pub(super) fn unmapped(name: &str, labels: &[(&str, &str)], unit: TimeUnit) -> MappedMetric {
    let label = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    MappedMetric {
        name: name.to_owned(),
        labels: labels.iter().map(label).collect(),
        scale: if unit == TimeUnit::Seconds {
            0.001
        } else {
            1.0
        },
        help: None,
        observer: Observer::Histogram,
        buckets: Vec::new(),
        is_matched: false,
    }
}

/// Our buckets and those of envoyproxy/ratelimit, in a unit of which a second has so many.
fn latency_buckets(per_second: f64) -> Vec<f64> {
    let mut buckets: Vec<f64> = LATENCY_BUCKETS_US
        .iter()
        .map(|micros| micros * per_second / 1e6)
        .chain(REFERENCE_BUCKETS)
        .collect();
    buckets.sort_by(f64::total_cmp);
    buckets.dedup();
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_have_both_sets_of_buckets() {
        let buckets = latency_buckets(1_000.0);
        let expected = REFERENCE_BUCKETS.iter().chain(&[0.05, 20.0, 10_000.0]);
        for bound in expected {
            assert!(buckets.contains(bound), "{bound}: {buckets:?}");
        }
        assert_eq!(
            latency_buckets(1.0),
            LATENCY_BUCKETS_US.map(|micros| micros / 1e6)
        );
    }
}
