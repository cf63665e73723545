//! Families of Prometheus as metrics of OTLP, with the same names, labels and values.

use std::mem;

use prometheus::proto::{self, MetricFamily, MetricType};

use crate::base::time::Time;
use crate::proto::opentelemetry::proto::common::v1::KeyValue;
use crate::proto::opentelemetry::proto::common::v1::any_value::Value;
use crate::proto::opentelemetry::proto::metrics::v1::metric::Data;
use crate::proto::opentelemetry::proto::metrics::v1::number_data_point::Value as Number;
use crate::proto::opentelemetry::proto::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
    Summary, SummaryDataPoint,
};
use crate::telemetry::otlp::options::attribute;

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// Metrics of one request.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) metrics: Vec<Metric>,
    pub(super) points: usize,
}

/// When totals began, and when they were read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) start: Time,
    pub(super) now: Time,
}

/// Batches of at most `points_max` data points. A family may be in two of them.
pub(super) fn batches(families: &[MetricFamily], times: Times, points_max: usize) -> Vec<Batch> {
    let (mut batches, mut batch) = (Vec::new(), Batch::default());
    for family in families {
        let mut rest = family.get_metric();
        while !rest.is_empty() {
            let room = points_max - batch.points;
            let (points, more) = rest.split_at(rest.len().min(room));
            batch.metrics.push(metric(family, points, times));
            batch.points += points.len();
            rest = more;
            if batch.points == points_max {
                batches.push(mem::take(&mut batch));
            }
        }
    }
    if batch.points > 0 {
        batches.push(batch);
    }
    batches
}

fn metric(family: &MetricFamily, points: &[proto::Metric], times: Times) -> Metric {
    let numbers = |value: fn(&proto::Metric) -> f64| {
        let points = points.iter();
        points
            .map(|point| number(point, value(point), times))
            .collect()
    };
    let data = match family.get_field_type() {
        MetricType::COUNTER => Data::Sum(Sum {
            data_points: numbers(|point| point.get_counter().get_value()),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        MetricType::GAUGE | MetricType::UNTYPED => Data::Gauge(Gauge {
            data_points: numbers(|point| point.get_gauge().get_value()),
        }),
        MetricType::HISTOGRAM => Data::Histogram(Histogram {
            data_points: points.iter().map(|point| histogram(point, times)).collect(),
            aggregation_temporality: CUMULATIVE,
        }),
        MetricType::SUMMARY => Data::Summary(Summary {
            data_points: points.iter().map(|point| summary(point, times)).collect(),
        }),
    };
    Metric {
        name: family.name().to_owned(),
        description: family.help().to_owned(),
        data: Some(data),
    }
}

fn number(point: &proto::Metric, value: f64, times: Times) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(point),
        start_time_unix_nano: times.start.as_nanos(),
        time_unix_nano: times.now.as_nanos(),
        value: Some(Number::AsDouble(value)),
    }
}

/// Buckets of Prometheus are cumulative and end before infinity; those of OTLP are neither.
fn histogram(point: &proto::Metric, times: Times) -> HistogramDataPoint {
    let histogram = point.get_histogram();
    let buckets = histogram.get_bucket();
    let mut below = 0;
    let cumulative = buckets.iter().map(proto::Bucket::cumulative_count);
    let bucket_counts: Vec<u64> = cumulative
        .chain([histogram.get_sample_count()])
        .map(|count| count.saturating_sub(mem::replace(&mut below, count)))
        .collect();
    HistogramDataPoint {
        attributes: attributes(point),
        start_time_unix_nano: times.start.as_nanos(),
        time_unix_nano: times.now.as_nanos(),
        // Receivers reject a count that is not the sum of its buckets; an observation may be
        // between.
        count: bucket_counts.iter().sum(),
        sum: Some(histogram.get_sample_sum()),
        bucket_counts,
        explicit_bounds: buckets.iter().map(proto::Bucket::upper_bound).collect(),
    }
}

fn summary(point: &proto::Metric, times: Times) -> SummaryDataPoint {
    let summary = point.get_summary();
    SummaryDataPoint {
        attributes: attributes(point),
        start_time_unix_nano: times.start.as_nanos(),
        time_unix_nano: times.now.as_nanos(),
        count: summary.sample_count(),
        sum: summary.sample_sum(),
    }
}

fn attributes(point: &proto::Metric) -> Vec<KeyValue> {
    let labels = point.get_label().iter();
    labels
        .map(|label| attribute(label.name(), Value::StringValue(label.value().to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metric::Metrics;

    const TIMES: Times = Times {
        start: Time::from_micros(1),
        now: Time::from_micros(2),
    };

    #[test]
    fn batches_have_every_point_once_and_at_most_so_many() {
        let metrics = Metrics::new();
        for number in 0..7 {
            let number = number.to_string();
            metrics.counter_with("a_total", "A.", &[("number", &number)]);
        }
        metrics.gauge("b", "B.");
        let families = metrics.families();
        let all: usize = families
            .iter()
            .map(|family| family.get_metric().len())
            .sum();
        for points_max in [1, 3, 7, all, all + 1] {
            let batches = batches(&families, TIMES, points_max);
            let points: Vec<usize> = batches.iter().map(|batch| batch.points).collect();
            assert_eq!(points.iter().sum::<usize>(), all);
            let (last, full) = points.split_last().expect("there is a batch");
            assert!(
                full.iter().all(|&points| points == points_max),
                "{points:?}"
            );
            assert!((1..=points_max).contains(last), "{points:?}");
        }
    }

    #[test]
    fn buckets_are_not_cumulative_and_end_with_infinity() {
        let metrics = Metrics::new();
        let sizes = metrics.sizes("sizes", "S.");
        for size in [1.0, 2.0, 2.0, 1_000.0] {
            sizes.observe(size);
        }
        let families = metrics.families();
        let family = families.iter().find(|family| family.name() == "sizes");
        let point = &family.expect("it is registered").get_metric()[0];
        let converted = histogram(point, TIMES);
        assert_eq!(converted.bucket_counts, [1, 2, 0, 0, 0, 0, 0, 1]);
        assert_eq!(
            converted.explicit_bounds,
            [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
        );
        assert_eq!((converted.count, converted.sum), (4, Some(1_005.0)));
        assert_eq!(
            (converted.start_time_unix_nano, converted.time_unix_nano),
            (1_000, 2_000)
        );
    }
}
