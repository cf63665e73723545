//! What changed since the last flush: increments of counters and timers, current values of gauges.
//!
//! Nothing is queued while statsd is unreachable: what it missed is the difference of two numbers.

use std::collections::{HashMap, HashSet};

use crate::telemetry::metric::{Sample, SampleValue};

/// Lines for the times of one flush. Beyond it each line stands for several requests, by its sample
/// rate: at 100,000 requests per second a flush would have a million lines.
pub const TIMER_LINES_MAX: u64 = 1_000;

/// The values that were flushed last.
#[derive(Debug, Default)]
pub struct DeltaTracker {
    counters: HashMap<String, u64>,
    timers: HashMap<String, Vec<u64>>,
}

/// A change to send.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// Added to a counter.
    Increment(u64),
    /// The value of a gauge.
    Gauge(u64),
    /// A time, sent as several equal lines.
    Timing {
        /// Upper bound of its bucket.
        millis: f64,
        /// Number of lines.
        lines: u64,
        /// Requests that one line stands for; the inverse of the sample rate.
        calls_per_line: f64,
    },
}

impl DeltaTracker {
    /// The changes since the last update with this metric.
    pub fn update(&mut self, sample: &Sample) -> Vec<Delta> {
        match &sample.value {
            SampleValue::Gauge(value) => vec![Delta::Gauge(*value)],
            SampleValue::Counter(value) => {
                let last = entry(&mut self.counters, &sample.name);
                let added = added(*value, *last);
                *last = *value;
                if added > 0 {
                    vec![Delta::Increment(added)]
                } else {
                    Vec::new()
                }
            }
            SampleValue::Timer(buckets) => {
                let last = entry(&mut self.timers, &sample.name);
                last.resize(buckets.len(), 0);
                let new: Vec<(f64, u64)> = buckets
                    .iter()
                    .zip(&*last)
                    .map(|((bound, now), last)| (*bound, added(*now, *last)))
                    .collect();
                *last = buckets.iter().map(|(_, count)| *count).collect();
                times(&new)
            }
        }
    }

    /// Removes counters that are not in these samples. Timers never disappear.
    pub fn keep_only(&mut self, samples: &[Sample]) {
        let counters = samples
            .iter()
            .filter(|sample| matches!(sample.value, SampleValue::Counter(_)));
        if self.counters.len() > counters.clone().count() {
            let names: HashSet<&str> = counters.map(|sample| &*sample.name).collect();
            self.counters.retain(|name, _| names.contains(&**name));
        }
    }
}

/// A counter that decreased was removed and started again.
fn added(now: u64, last: u64) -> u64 {
    now.checked_sub(last).unwrap_or(now)
}

fn entry<'m, T: Default>(map: &'m mut HashMap<String, T>, name: &str) -> &'m mut T {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), T::default());
    }
    map.get_mut(name).expect("it was inserted")
}

/// Lines for these counts by bucket. Above [`TIMER_LINES_MAX`], lines are taken at equal steps:
/// ```text
/// times  1 ms: |||||||||||||||||||||  2.5 ms: |||||||||||  5 ms: ||||
/// lines        |     |     |     |            |     |            |
/// ```
fn times(buckets: &[(f64, u64)]) -> Vec<Delta> {
    let calls: u64 = buckets.iter().map(|(_, count)| count).sum();
    let lines = calls.min(TIMER_LINES_MAX);
    let scaled =
        |count_so_far: u64| u128::from(count_so_far) * u128::from(lines) / u128::from(calls.max(1));
    let mut deltas = Vec::new();
    let mut before = 0;
    for &(millis, count) in buckets {
        let here = scaled(before + count) - scaled(before);
        before += count;
        if let Ok(lines_here @ 1..) = u64::try_from(here) {
            #[expect(clippy::cast_precision_loss, reason = "a sample rate is an estimate")]
            let calls_per_line = calls as f64 / lines as f64;
            deltas.push(Delta::Timing {
                millis,
                lines: lines_here,
                calls_per_line,
            });
        }
    }
    deltas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &str, value: u64) -> Sample {
        Sample {
            name: name.to_owned(),
            value: SampleValue::Counter(value),
        }
    }

    fn timer(counts: &[u64]) -> Sample {
        let buckets = [0.5, 1.0, 2.5]
            .into_iter()
            .zip(counts.iter().copied())
            .collect();
        Sample {
            name: "t".to_owned(),
            value: SampleValue::Timer(buckets),
        }
    }

    #[test]
    fn counters_have_increments_and_none_if_nothing_was_added() {
        let mut tracker = DeltaTracker::default();
        assert_eq!(tracker.update(&counter("a", 0)), []);
        assert_eq!(tracker.update(&counter("a", 5)), [Delta::Increment(5)]);
        assert_eq!(tracker.update(&counter("a", 5)), []);
        assert_eq!(tracker.update(&counter("a", 7)), [Delta::Increment(2)]);
        assert_eq!(
            tracker.update(&counter("a", 3)),
            [Delta::Increment(3)],
            "it started again"
        );
    }

    #[test]
    fn counters_that_were_removed_count_from_zero() {
        let mut tracker = DeltaTracker::default();
        tracker.update(&counter("a", 5));
        tracker.update(&counter("b", 5));
        tracker.keep_only(&[counter("b", 5)]);
        assert_eq!(tracker.update(&counter("a", 6)), [Delta::Increment(6)]);
        assert_eq!(tracker.update(&counter("b", 6)), [Delta::Increment(1)]);
    }

    #[test]
    fn gauges_are_always_sent() {
        let sample = Sample {
            name: "g".to_owned(),
            value: SampleValue::Gauge(4),
        };
        let mut tracker = DeltaTracker::default();
        assert_eq!(
            [tracker.update(&sample), tracker.update(&sample)],
            [[Delta::Gauge(4)], [Delta::Gauge(4)]]
        );
    }

    #[test]
    fn few_times_have_a_line_each_and_many_are_sampled_evenly() {
        let took = |millis, lines, calls_per_line| Delta::Timing {
            millis,
            lines,
            calls_per_line,
        };
        let mut tracker = DeltaTracker::default();
        assert_eq!(
            tracker.update(&timer(&[2, 0, 1])),
            [took(0.5, 2, 1.0), took(2.5, 1, 1.0)]
        );
        assert_eq!(tracker.update(&timer(&[2, 0, 1])), []);
        let many = tracker.update(&timer(&[2 + 90_000, 9_000, 1 + 1_000]));
        assert_eq!(
            many,
            [
                took(0.5, 900, 100.0),
                took(1.0, 90, 100.0),
                took(2.5, 10, 100.0)
            ]
        );
    }
}
