//! The values of registered metrics at one time, by name.

use prometheus::proto::{Metric, MetricFamily, MetricType};

use crate::telemetry::metric::series::{Series, Times, Value};

/// Without the series of sources, whose number depends on rules and clients.
#[derive(Debug)]
pub(crate) struct Snapshot(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: Value,
}

impl Snapshot {
    pub(super) fn new(own: &[MetricFamily], reference: impl Iterator<Item = Series>) -> Self {
        let own = own.iter().flat_map(|family| {
            family.get_metric().iter().map(|metric| Sample {
                name: family.name().to_owned(),
                labels: labels(metric),
                value: value(family.get_field_type(), metric),
            })
        });
        let reference = reference.map(|series| Sample {
            name: series.name,
            labels: owned(series.labels),
            value: series.value,
        });
        Self(own.chain(reference).collect())
    }

    /// A counter or a gauge, or the sum of those with different labels.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.named(name).map(Sample::count).sum()
    }

    /// Counters or gauges by their values of these labels.
    pub(crate) fn counts<'s, const LABELS: usize>(
        &'s self,
        name: &'s str,
        labels: [&'s str; LABELS],
    ) -> impl Iterator<Item = ([&'s str; LABELS], u64)> {
        let values = move |sample: &'s Sample| labels.map(|label| sample.label(label));
        self.named(name).map(move |sample| (values(sample), sample.count()))
    }

    /// A histogram, the first of that name.
    pub(crate) fn times<'s>(&'s self, name: &'s str) -> Option<&'s Times> {
        self.named(name).find_map(|sample| match &sample.value {
            Value::Times(times) => Some(times),
            Value::Counter(_) | Value::Gauge(_) => None,
        })
    }

    fn named<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }
}

impl Sample {
    fn count(&self) -> u64 {
        match &self.value {
            Value::Counter(count) | Value::Gauge(count) => *count,
            Value::Times(times) => times.count,
        }
    }

    /// Empty without it.
    fn label(&self, name: &str) -> &str {
        let label = self.labels.iter().find(|(label, _)| label == name);
        label.map_or("", |(_, value)| value)
    }
}

impl Times {
    /// The time in seconds that this share of them did not exceed, interpolated within its bucket.
    /// Only those after `earlier` count. `None` without any.
    pub(crate) fn quantile(&self, share: f64, earlier: Option<&Self>) -> Option<f64> {
        let (before, bound, part) = self.bucket(share, earlier)?;
        Some((before + (bound - before) * part) / self.per_second)
    }

    /// Half and 99 %, as [`Self::quantile`].
    pub(crate) fn median_and_p99(&self, earlier: Option<&Self>) -> Option<[f64; 2]> {
        let quantile = |share| self.quantile(share, earlier);
        Some([quantile(0.5)?, quantile(0.99)?])
    }

    /// The bound of the bucket that [`Self::quantile`] is in.
    pub(crate) fn bound(&self, share: f64, earlier: Option<&Self>) -> Option<f64> {
        let (_, bound, _) = self.bucket(share, earlier)?;
        Some(bound / self.per_second)
    }

    /// How many took longer than the bound of a bucket.
    pub(crate) fn above(&self, bound: f64, earlier: Option<&Self>) -> u64 {
        let mut buckets = self.buckets.iter();
        let index = buckets.position(|(of, _)| *of / self.per_second >= bound);
        let within = index.map_or(0, |index| self.buckets[index].1 - before(earlier, index));
        self.count_since(earlier) - within
    }

    /// How many there are.
    pub(crate) fn count_since(&self, earlier: Option<&Self>) -> u64 {
        self.count - earlier.map_or(0, |earlier| earlier.count)
    }

    /// The bucket that this share of the times is in: its bounds, and which part of it.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn bucket(&self, share: f64, earlier: Option<&Self>) -> Option<(f64, f64, f64)> {
        let all = self.count_since(earlier);
        let wanted = all as f64 * share;
        let mut bound_before = 0.0;
        let mut count_before = 0.0;
        for (index, (bound, count)) in self.buckets.iter().enumerate() {
            let count = count.saturating_sub(before(earlier, index)) as f64;
            if count >= wanted && count > count_before {
                let part = (wanted - count_before) / (count - count_before);
                return Some((bound_before, *bound, part));
            }
            (bound_before, count_before) = (*bound, count);
        }
        (all > 0).then_some((bound_before, bound_before, 1.0))
    }
}

/// The count of a bucket at an earlier time.
fn before(earlier: Option<&Times>, index: usize) -> u64 {
    let bucket = earlier.and_then(|earlier| earlier.buckets.get(index));
    bucket.map_or(0, |(_, count)| *count)
}

fn labels(metric: &Metric) -> Vec<(String, String)> {
    metric
        .get_label()
        .iter()
        .map(|label| (label.name().to_owned(), label.value().to_owned()))
        .collect()
}

fn owned(labels: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    labels.into_iter().map(|(label, value)| (label.to_owned(), value)).collect()
}

/// Counters and gauges of this process are whole numbers, and those that are shown are not
/// negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floats are saturated")]
fn value(kind: MetricType, metric: &Metric) -> Value {
    match kind {
        MetricType::COUNTER => Value::Counter(metric.get_counter().get_value() as u64),
        MetricType::HISTOGRAM => Value::Times(Times::of(metric.get_histogram(), 1.0)),
        _ => Value::Gauge(metric.get_gauge().get_value() as u64),
    }
}

#[cfg(test)]
mod tests {
    use crate::base::time::Span;
    use crate::telemetry::metric::Metrics;

    #[test]
    fn counts_are_found_by_name_and_label() {
        let metrics = Metrics::new();
        for (kind, count) in [("a", 1), ("b", 2)] {
            let counter = metrics.counter_with("own_total", "Own.", &[("kind", kind)]);
            counter.inc_by(count);
        }
        metrics.reference_counter("r", "r_total", "R.", &[]).inc();
        let snapshot = metrics.snapshot();
        let by_kind: Vec<_> = snapshot.counts("own_total", ["kind"]).collect();
        assert_eq!(by_kind, [(["a"], 1), (["b"], 2)]);
        let counts = ["own_total", "r_total", "unknown"].map(|name| snapshot.count(name));
        assert_eq!(counts, [3, 1, 0]);
    }

    #[test]
    fn quantile_is_in_the_bucket_of_its_time() {
        let metrics = Metrics::new();
        let timer = metrics.reference_timer("t", "t_seconds", "T.", &[]);
        let current = || {
            let snapshot = metrics.snapshot();
            snapshot.times("t_seconds").expect("it is there").clone()
        };
        let empty = current();
        assert_eq!(empty.quantile(0.5, None), None);
        for _ in 0..100 {
            timer.observe(Span::from_micros(700));
        }
        let first = current();
        let median = first.quantile(0.5, None).expect("there are times");
        assert!((0.000_5..=0.001).contains(&median), "{median}");
        timer.observe(Span::from_micros(3_000_000));
        let later = current();
        let last = later.quantile(0.5, Some(&first)).expect("there is one");
        assert!((2.5..=5.0).contains(&last), "{last}");
        assert_eq!(first.quantile(0.5, Some(&first)), None);
    }
}
