//! The metrics page, in the text format of Prometheus.

use std::borrow::Cow;
use std::collections::HashSet;

use prometheus::core::Collector as _;
use prometheus::{Encoder as _, Histogram, TextEncoder, proto};

use crate::telemetry::mapper::{Kind, MappedMetric, Observer};

/// A value with its name and labels. Samples of the same name and labels are summed.
pub(super) struct PageSample {
    pub(super) name: String,
    pub(super) help: Cow<'static, str>,
    pub(super) labels: Vec<(Cow<'static, str>, String)>,
    pub(super) number: Number,
}

pub(super) enum Number {
    Counter(f64),
    Gauge(f64),
    /// Upper bounds with cumulative counts.
    Histogram(Vec<(f64, u64)>, Sum),
    Summary(Sum),
}

pub(super) struct Sum {
    count: u64,
    sum: f64,
}

pub(super) struct Page {
    pub(super) text: String,
    /// Samples left off because their name belongs to a metric of another type.
    pub(super) conflicts: usize,
}

impl PageSample {
    /// A sample as the mapping shows it, with its own help text unless the mapping has one.
    pub(super) fn mapped(mapped: &MappedMetric, help: &'static str, number: Number) -> Self {
        let labels = mapped.labels.iter();
        Self {
            name: mapped.name.clone(),
            help: mapped.help.clone().map_or(help.into(), Into::into),
            labels: labels
                .map(|(label, value)| (label.clone().into(), value.clone()))
                .collect(),
            number,
        }
    }
}

impl Number {
    pub(super) fn of(kind: Kind, value: f64) -> Self {
        if kind == Kind::Gauge {
            Self::Gauge(value)
        } else {
            Self::Counter(value)
        }
    }

    /// The times of a histogram.
    pub(super) fn of_times(histogram: &Histogram, observer: Observer) -> Option<Self> {
        let families = histogram.collect();
        let histogram = families.first()?.get_metric().first()?.get_histogram();
        let sum = Sum {
            count: histogram.get_sample_count(),
            sum: histogram.get_sample_sum(),
        };
        let bucket = |bucket: &proto::Bucket| (bucket.upper_bound(), bucket.cumulative_count());
        Some(match observer {
            Observer::Histogram => {
                Self::Histogram(histogram.get_bucket().iter().map(bucket).collect(), sum)
            }
            Observer::Summary => Self::Summary(sum),
        })
    }

    fn kind(&self) -> proto::MetricType {
        match self {
            Self::Counter(_) => proto::MetricType::COUNTER,
            Self::Gauge(_) => proto::MetricType::GAUGE,
            Self::Histogram(..) => proto::MetricType::HISTOGRAM,
            Self::Summary(_) => proto::MetricType::SUMMARY,
        }
    }

    /// Adds a number of the same kind. Buckets are equal, as both are from one rule.
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Counter(kept), Self::Counter(next)) | (Self::Gauge(kept), Self::Gauge(next)) => {
                *kept += next;
            }
            (Self::Summary(kept), Self::Summary(next)) => kept.add(next),
            (Self::Histogram(kept, sum), Self::Histogram(next, next_sum)) => {
                for ((_, count), (_, more)) in kept.iter_mut().zip(next) {
                    *count += more;
                }
                sum.add(next_sum);
            }
            _ => {}
        }
    }

    fn metric(&self) -> proto::Metric {
        let mut metric = proto::Metric::default();
        match self {
            Self::Counter(value) => {
                let mut counter = proto::Counter::default();
                counter.set_value(*value);
                metric.set_counter(counter);
            }
            Self::Gauge(value) => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(*value);
                metric.set_gauge(gauge);
            }
            Self::Histogram(buckets, sum) => {
                let mut histogram = proto::Histogram::default();
                histogram.set_sample_count(sum.count);
                histogram.set_sample_sum(sum.sum);
                let bucket = |&(bound, count): &(f64, u64)| {
                    let mut bucket = proto::Bucket::default();
                    bucket.set_upper_bound(bound);
                    bucket.set_cumulative_count(count);
                    bucket
                };
                histogram.set_bucket(buckets.iter().map(bucket).collect());
                metric.set_histogram(histogram);
            }
            Self::Summary(sum) => {
                let mut summary = proto::Summary::default();
                summary.set_sample_count(sum.count);
                summary.set_sample_sum(sum.sum);
                metric.set_summary(summary);
            }
        }
        metric
    }
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
    }
}

/// Writes registered families and samples. Each tag is a label of every series that has no label of
/// its name.
pub(super) fn write(
    mut families: Vec<proto::MetricFamily>,
    mut samples: Vec<PageSample>,
    tags: &[(String, String)],
) -> Page {
    let taken: HashSet<String> = families
        .iter()
        .map(|family| family.name().to_owned())
        .collect();
    let sample_count = samples.len();
    samples.retain(|sample| !taken.contains(&sample.name));
    let mut conflicts = sample_count - samples.len();

    samples.sort_by(|a, b| {
        (&a.name, a.number.kind() as u8, &a.labels).cmp(&(
            &b.name,
            b.number.kind() as u8,
            &b.labels,
        ))
    });
    for named in samples.chunk_by_mut(|a, b| a.name == b.name) {
        let Some(kind) = named.first().map(|sample| sample.number.kind()) else {
            continue;
        };
        let same_kind = named
            .iter()
            .take_while(|sample| sample.number.kind() == kind)
            .count();
        let (named, others) = named.split_at_mut(same_kind);
        conflicts += others.len();
        families.push(family(named));
    }
    for metric in families
        .iter_mut()
        .flat_map(|family| family.mut_metric().iter_mut())
    {
        let untagged = metric.get_label().len();
        let mut labels = metric.take_label();
        for (name, value) in tags {
            if labels[..untagged].iter().all(|label| label.name() != name) {
                labels.push(label(name, value));
            }
        }
        metric.set_label(labels);
    }
    let mut page = Vec::new();
    if let Err(error) = TextEncoder::new().encode(&families, &mut page) {
        tracing::error!(%error, "cannot write the metrics page");
    }
    let text = String::from_utf8(page).expect("names and values are strings");
    Page { text, conflicts }
}

/// Samples of one name and kind, sorted by their labels.
fn family(samples: &mut [PageSample]) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    if let Some(first) = samples.first() {
        family.set_name(first.name.clone());
        family.set_help(first.help.clone().into_owned());
        family.set_field_type(first.number.kind());
    }
    let summed = samples
        .chunk_by_mut(|a, b| a.labels == b.labels)
        .filter_map(|same| {
            let (first, others) = same.split_first_mut()?;
            for other in others {
                first.number.add(&other.number);
            }
            let mut metric = first.number.metric();
            metric.set_label(
                first
                    .labels
                    .iter()
                    .map(|(name, value)| label(name, value))
                    .collect(),
            );
            Some(metric)
        });
    family.set_metric(summed.collect());
    family
}

fn label(name: &str, value: &str) -> proto::LabelPair {
    let mut label = proto::LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
}
