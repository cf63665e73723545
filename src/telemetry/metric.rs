//! Counters, gauges and histograms, each with its name and help text, and the page that shows them.
//!
//! Every room defines its own. What the reference also counts has its statsd name beside the Prometheus one. Names follow Prometheus'
//! conventions (base units, `_total`), but for the reference's, which dashboards query as they are.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{Encoder as _, HistogramOpts, Opts, Registry, TextEncoder, proto};

pub use prometheus::{Histogram, IntCounter as Counter, IntGauge as Gauge};

/// Seconds, from 50 µs on: the reference's page begins at 5 ms, which is more than Tollgate takes.
const LATENCY_BUCKETS_S: [f64; 18] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Powers of two up to the largest call to a store.
const SIZE_BUCKETS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// Every metric of the process. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    registry: Registry,
    statsd: Arc<Mutex<Vec<(String, Counter)>>>,
    sources: Arc<Mutex<Vec<Arc<dyn Source>>>>,
}

/// Something that has counters of names that come and go.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Adds what it has.
    fn collect(&self, series: &mut Vec<Series>);
}

/// A counter as a source shows it. Of one name and labels there may be several: they are summed up.
#[derive(Debug, Clone)]
pub struct Series {
    name: String,
    help: &'static str,
    labels: Vec<(&'static str, String)>,
    value: u64,
    statsd: Option<String>,
}

impl Series {
    /// A counter. `statsd` is its name in the reference, if it has one.
    pub fn counter(name: &str, help: &'static str, labels: Vec<(&'static str, String)>, value: u64, statsd: Option<String>) -> Self {
        Self { name: name.to_owned(), help, labels, value, statsd }
    }
}

impl Metrics {
    /// No metrics yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds what the kernel knows of this process: CPU time, memory, file descriptors, start time.
    pub fn add_process(&self) {
        self.register(prometheus::process_collector::ProcessCollector::for_self());
    }

    /// A counter of our own.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.counter_with(name, help, &[])
    }

    /// A counter of our own, with labels that never change.
    pub fn counter_with(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Counter {
        let counter = Counter::with_opts(options(name, help, labels)).expect("names and labels are constants of ours");
        self.register(counter.clone());
        counter
    }

    /// A counter that the reference has too, under that statsd name.
    pub fn reference_counter(&self, statsd: &str, name: &str, help: &str, labels: &[(&str, &str)]) -> Counter {
        let counter = self.counter_with(name, help, labels);
        self.statsd.lock().unwrap_or_else(PoisonError::into_inner).push((statsd.to_owned(), counter.clone()));
        counter
    }

    /// A gauge of our own.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.gauge_with(name, help, &[])
    }

    /// A gauge of our own, with labels that never change.
    pub fn gauge_with(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Gauge {
        let gauge = Gauge::with_opts(options(name, help, labels)).expect("names and labels are constants of ours");
        self.register(gauge.clone());
        gauge
    }

    /// A histogram of small numbers of things.
    pub fn sizes(&self, name: &str, help: &str) -> Histogram {
        self.histogram(options(name, help, &[]), &SIZE_BUCKETS)
    }

    /// A histogram of durations in seconds.
    pub fn latency(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Histogram {
        self.histogram(options(name, help, labels), &LATENCY_BUCKETS_S)
    }

    /// Shows the counters of a source, too.
    pub fn add_source(&self, source: Arc<dyn Source>) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// The page for Prometheus, as of now.
    pub fn page(&self) -> String {
        let mut families = self.registry.gather();
        families.extend(families_of(self.collect()));
        let mut page = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&families, &mut page) {
            tracing::error!(%error, "cannot write the metrics page");
        }
        String::from_utf8_lossy(&page).into_owned()
    }

    /// One line a counter under the reference's statsd name: `name: value`, sorted.
    pub fn lines(&self) -> String {
        let mut lines: Vec<(String, u64)> = self.collect().into_iter().filter_map(|series| Some((series.statsd?, series.value))).collect();
        let counters = self.statsd.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend(counters.iter().map(|(name, counter)| (name.clone(), counter.get())));
        lines.sort_unstable();
        let mut text = String::new();
        for (name, value) in lines {
            // Some names come from clients, and a line is a counter.
            let name = name.replace(char::is_control, "_");
            let _ = writeln!(text, "{name}: {value}");
        }
        text
    }

    fn collect(&self) -> Vec<Series> {
        let mut series = Vec::new();
        for source in &*self.sources.lock().unwrap_or_else(PoisonError::into_inner) {
            source.collect(&mut series);
        }
        series
    }

    fn histogram(&self, options: Opts, buckets: &[f64]) -> Histogram {
        let options = HistogramOpts { common_opts: options, buckets: buckets.to_vec() };
        let histogram = Histogram::with_opts(options).expect("names, labels and buckets are constants of ours");
        self.register(histogram.clone());
        histogram
    }

    fn register(&self, collector: impl Collector + 'static) {
        self.registry.register(Box::new(collector)).expect("every metric is registered once, under a name of its own");
    }
}

/// What a metric is called, and the labels that never change.
fn options(name: &str, help: &str, labels: &[(&str, &str)]) -> Opts {
    labels.iter().fold(Opts::new(name, help), |options, (label, value)| options.const_label(*label, *value))
}

/// Sorts series into families, and sums up those of the same labels.
fn families_of(mut series: Vec<Series>) -> Vec<proto::MetricFamily> {
    series.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
    series.dedup_by(|next, kept| {
        let same = next.name == kept.name && next.labels == kept.labels;
        if same {
            kept.value += next.value;
        }
        same
    });
    series.chunk_by(|a, b| a.name == b.name).filter_map(family).collect()
}

fn family(series: &[Series]) -> Option<proto::MetricFamily> {
    let first = series.first()?;
    let mut family = proto::MetricFamily::default();
    family.set_name(first.name.clone());
    family.set_help(first.help.to_owned());
    family.set_field_type(proto::MetricType::COUNTER);
    family.set_metric(series.iter().map(metric).collect());
    Some(family)
}

#[expect(clippy::cast_precision_loss, reason = "the text format knows only doubles")]
fn metric(series: &Series) -> proto::Metric {
    let labels = series.labels.iter().map(|(name, value)| {
        let mut label = proto::LabelPair::default();
        label.set_name((*name).to_owned());
        label.set_value(value.clone());
        label
    });
    let mut metric = proto::Metric::from_label(labels.collect());
    let mut counter = proto::Counter::default();
    counter.set_value(series.value as f64);
    metric.set_counter(counter);
    metric
}
