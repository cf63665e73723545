//! Changes since the last flush: increments of counters and timers, current values of gauges.
//!
//! Nothing is queued while statsd is unreachable: what it missed is the difference of two numbers.

use std::collections::{HashMap, HashSet};

use crate::telemetry::metric::{Times, Value};

/// Lines for the times of one timer and flush. Beyond it each line represents several requests, by
/// its sample rate: at 100,000 requests per second a flush would have a million lines.
const TIMER_LINES_MAX: u64 = 1_000;

/// The values of counters and timers that were flushed last, by name.
#[derive(Debug, Default)]
pub(super) struct DeltaTracker(HashMap<String, Vec<u64>>);

/// A change to send.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Delta {
    /// The value, type and sample rate of its lines.
    pub(super) value: String,
    /// Number of equal lines.
    pub(super) lines: u64,
}

impl DeltaTracker {
    /// The changes since the last update with this metric.
    pub(super) fn update(&mut self, name: &str, value: &Value) -> Vec<Delta> {
        match value {
            Value::Gauge(value) => vec![Delta::once(format!("{value}|g"))],
            Value::Counter(total) => match self.added(name, vec![*total])[..] {
                [added] if added > 0 => vec![Delta::once(format!("{added}|c"))],
                _ => Vec::new(),
            },
            Value::Times(times) => {
                let (millis, counts): (Vec<_>, Vec<_>) = by_bucket(times).into_iter().unzip();
                timings(&millis, &self.added(name, counts))
            }
        }
    }

    /// Removes names that are not in these samples.
    pub(super) fn keep_only(&mut self, samples: &[(String, Value)]) {
        let names: HashSet<&str> = samples.iter().map(|(name, _)| &**name).collect();
        self.0.retain(|name, _| names.contains(&**name));
    }

    /// The increment of each count. A count that decreased was removed and started again.
    fn added(&mut self, name: &str, counts: Vec<u64>) -> Vec<u64> {
        let last = self.0.entry(name.to_owned()).or_default();
        last.resize(counts.len(), 0);
        let pairs = counts.iter().zip(&*last);
        let added = pairs.map(|(now, last)| now.checked_sub(*last).unwrap_or(*now)).collect();
        *last = counts;
        added
    }
}

impl Delta {
    fn once(value: String) -> Self {
        Self { value, lines: 1 }
    }
}

/// Counts by upper bound in milliseconds, not cumulative. Times above the last bound count in the
/// last bucket.
fn by_bucket(times: &Times) -> Vec<(f64, u64)> {
    let mut below = 0;
    let mut buckets = Vec::new();
    for (index, &(bound, count)) in times.buckets.iter().enumerate() {
        let is_last = index + 1 == times.buckets.len();
        let count = if is_last { times.count } else { count };
        buckets.push((bound / times.per_second * 1_000.0, count - below));
        below = count;
    }
    buckets
}

/// Lines for these counts by bucket. Above [`TIMER_LINES_MAX`], lines are taken at equal steps:
/// ```text
/// times  1 ms: |||||||||||||||||||||  2.5 ms: |||||||||||  5 ms: ||||
/// lines        |     |     |     |            |     |            |
/// ```
fn timings(millis: &[f64], counts: &[u64]) -> Vec<Delta> {
    let calls: u64 = counts.iter().sum();
    let lines = calls.min(TIMER_LINES_MAX);
    #[expect(clippy::cast_precision_loss, reason = "a sample rate is an estimate")]
    let rate =
        if calls > lines { format!("|@{:.6}", lines as f64 / calls as f64) } else { String::new() };
    let scaled =
        |count_so_far: u64| u128::from(count_so_far) * u128::from(lines) / u128::from(calls.max(1));
    let mut deltas = Vec::new();
    let mut before = 0;
    for (millis, count) in millis.iter().zip(counts) {
        let here = scaled(before + count) - scaled(before);
        before += count;
        if let Ok(lines @ 1..) = u64::try_from(here) {
            let value = format!("{millis}|ms{rate}");
            deltas.push(Delta { value, lines });
        }
    }
    deltas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(deltas: Vec<Delta>) -> Vec<(String, u64)> {
        deltas.into_iter().map(|delta| (delta.value, delta.lines)).collect()
    }

    fn line(value: &str, lines: u64) -> (String, u64) {
        (value.to_owned(), lines)
    }

    /// Times up to half a millisecond, up to one, and longer ones.
    fn timer(counts: [u64; 3]) -> Value {
        let [short, medium, long] = counts;
        Value::Times(Times {
            buckets: vec![(0.0005, short), (0.001, short + medium), (0.0025, short + medium)],
            count: short + medium + long,
            sum: 0.0,
            per_second: 1.0,
        })
    }

    #[test]
    fn counters_have_increments_and_none_if_nothing_was_added() {
        let mut tracker = DeltaTracker::default();
        let cases = [(0, None), (5, Some("5|c")), (5, None), (7, Some("2|c")), (3, Some("3|c"))];
        for (total, expected) in cases {
            let expected: Vec<_> = expected.map(|value| line(value, 1)).into_iter().collect();
            assert_eq!(lines(tracker.update("a", &Value::Counter(total))), expected, "{total}");
        }
    }

    #[test]
    fn counters_that_were_removed_count_from_zero() {
        let mut tracker = DeltaTracker::default();
        tracker.update("a", &Value::Counter(5));
        tracker.update("b", &Value::Counter(5));
        tracker.keep_only(&[("b".to_owned(), Value::Counter(5))]);
        assert_eq!(lines(tracker.update("a", &Value::Counter(6))), [line("6|c", 1)]);
        assert_eq!(lines(tracker.update("b", &Value::Counter(6))), [line("1|c", 1)]);
    }

    #[test]
    fn gauges_are_always_sent() {
        let mut tracker = DeltaTracker::default();
        for _ in 0..2 {
            assert_eq!(lines(tracker.update("g", &Value::Gauge(4))), [line("4|g", 1)]);
        }
    }

    #[test]
    fn few_times_have_a_line_each_and_many_are_sampled_evenly() {
        let mut tracker = DeltaTracker::default();
        let few = tracker.update("t", &timer([2, 0, 1]));
        assert_eq!(lines(few), [line("0.5|ms", 2), line("2.5|ms", 1)]);
        assert_eq!(tracker.update("t", &timer([2, 0, 1])), []);
        let many = tracker.update("t", &timer([2 + 90_000, 9_000, 1 + 1_000]));
        let values = [("0.5|ms|@0.010000", 900), ("1|ms|@0.010000", 90), ("2.5|ms|@0.010000", 10)];
        assert_eq!(lines(many), values.map(|(value, lines)| line(value, lines)));
    }
}
