//! The metrics page: what it shows, and its text in the format of Prometheus.

use std::collections::HashSet;

use prometheus::proto::MetricType;
use prometheus::{TextEncoder, proto};

use crate::base::text::Escaped;
use crate::telemetry::mapper::{MappedMetric, Observer};
use crate::telemetry::metric::series::{Series, Value};

/// A value with its name and labels. Samples of the same name and labels are summed.
pub(super) struct Sample {
    name: String,
    help: String,
    labels: Vec<(String, String)>,
    kind: MetricType,
    /// The value of a counter or gauge, or the sum of times.
    value: f64,
    /// The number of times.
    count: u64,
    /// Upper bounds with cumulative counts, of a histogram.
    buckets: Vec<(f64, u64)>,
}

impl Sample {
    pub(super) fn unmapped(series: Series) -> Self {
        let labels = series.labels.into_iter().map(|(label, value)| (label.to_owned(), value));
        let name = (series.name, series.help);
        Self::new(name, labels, series.value, Observer::Histogram, 1.0)
    }

    /// The metric by the mapping, with its own help text unless the mapping has one.
    pub(super) fn mapped(mapped: &MappedMetric, series: Series) -> Self {
        let help = mapped.help.as_deref().unwrap_or(series.help);
        let name = (mapped.name.clone(), help);
        let labels = mapped.labels.iter().cloned();
        Self::new(name, labels, series.value, mapped.observer, mapped.scale)
    }

    fn new(
        (name, help): (String, &str),
        labels: impl Iterator<Item = (String, String)>,
        value: Value,
        observer: Observer,
        scale: f64,
    ) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "the text format has only doubles")]
        let scaled = |number: u64| number as f64 * scale;
        let (kind, value, count, buckets) = match (value, observer) {
            (Value::Counter(number), _) => (MetricType::COUNTER, scaled(number), 0, Vec::new()),
            (Value::Gauge(number), _) => (MetricType::GAUGE, scaled(number), 0, Vec::new()),
            // The histogram is scaled already.
            (Value::Times(times), Observer::Histogram) => {
                (MetricType::HISTOGRAM, times.sum, times.count, times.buckets)
            }
            (Value::Times(times), Observer::Summary) => {
                (MetricType::SUMMARY, times.sum, times.count, Vec::new())
            }
        };
        Self {
            name,
            help: help.to_owned(),
            labels: labels.map(|(label, value)| (label, printable(value))).collect(),
            kind,
            value,
            count,
            buckets,
        }
    }

    /// Adds a sample of the same kind. Buckets are equal, as both are from one rule.
    fn add(&mut self, other: &Self) {
        self.value += other.value;
        self.count += other.count;
        for ((_, count), (_, more)) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
    }

    /// With a value of each type; the type of its family says which is shown.
    fn metric(&self) -> proto::Metric {
        let labels = self.labels.iter();
        let mut gauge = proto::Gauge::default();
        gauge.set_value(self.value);
        let mut counter = proto::Counter::default();
        counter.set_value(self.value);
        let mut summary = proto::Summary::default();
        summary.set_sample_count(self.count);
        summary.set_sample_sum(self.value);
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(self.count);
        histogram.set_sample_sum(self.value);
        let bucket = |&(bound, count): &(f64, u64)| {
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        };
        histogram.set_bucket(self.buckets.iter().map(bucket).collect());
        let mut metric = proto::Metric::from_gauge(gauge);
        metric.set_label(labels.map(|(name, value)| label(name, value)).collect());
        metric.set_counter(counter);
        metric.set_summary(summary);
        metric.set_histogram(histogram);
        metric
    }
}

/// The text of the page.
pub(super) fn write(families: &[proto::MetricFamily]) -> String {
    let text = TextEncoder::new().encode_to_string(families);
    let text = text.inspect_err(|error| tracing::error!(%error, "cannot write the metrics page"));
    text.unwrap_or_default()
}

/// Registered families and samples, together. Each tag is a label of every series that has no label
/// of its name. The number is that of the samples left off because their name belongs to a metric
/// of another type.
pub(super) fn families(
    mut families: Vec<proto::MetricFamily>,
    mut samples: Vec<Sample>,
    tags: &[(String, String)],
) -> (Vec<proto::MetricFamily>, usize) {
    let taken: HashSet<String> = families.iter().map(|family| family.name().to_owned()).collect();
    let sample_count = samples.len();
    samples.retain(|sample| !taken.contains(&sample.name));
    let mut conflicts = sample_count - samples.len();

    samples.sort_by(|a, b| {
        (&a.name, a.kind as u8, &a.labels).cmp(&(&b.name, b.kind as u8, &b.labels))
    });
    for named in samples.chunk_by_mut(|a, b| a.name == b.name) {
        let kind = named[0].kind;
        let same_kind = named.partition_point(|sample| sample.kind == kind);
        conflicts += named.len() - same_kind;
        families.push(family(&mut named[..same_kind]));
    }
    for metric in families.iter_mut().flat_map(|family| family.mut_metric().iter_mut()) {
        let mut labels = metric.take_label();
        let missing: Vec<_> = tags
            .iter()
            .filter(|(name, _)| labels.iter().all(|label| label.name() != name))
            .map(|(name, value)| label(name, value))
            .collect();
        labels.extend(missing);
        metric.set_label(labels);
    }
    (families, conflicts)
}

/// Samples of one name and kind, sorted by their labels.
fn family(samples: &mut [Sample]) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(samples[0].name.clone());
    family.set_help(samples[0].help.clone());
    family.set_field_type(samples[0].kind);
    let summed = samples.chunk_by_mut(|a, b| a.labels == b.labels).filter_map(|same| {
        let (first, others) = same.split_first_mut()?;
        for other in others {
            first.add(other);
        }
        Some(first.metric())
    });
    family.set_metric(summed.collect());
    family
}

/// A label's value without control characters, which clients may send.
fn printable(value: String) -> String {
    if value.contains(char::is_control) { Escaped(value).to_string() } else { value }
}

fn label(name: &str, value: &str) -> proto::LabelPair {
    let mut label = proto::LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
}
