//! What is new since it was last told: counters and times as what was added, gauges as they stand.
//!
//! Nothing is put aside for a statsd that is away: what it was not told is the difference between
//! two numbers, and waits at no cost.

use std::collections::{HashMap, HashSet};

use crate::telemetry::metric::{Sample, SampleValue};

/// How many lines tell the times of one flush. Beyond it each line stands for several calls, by its
/// sample rate: a service that answers 100,000 calls a second is not to send a million lines.
pub const TIMER_LINES_MAX: u64 = 1_000;

/// What was told so far.
#[derive(Debug, Default)]
pub struct DeltaTracker {
    counters: HashMap<String, u64>,
    timers: HashMap<String, Vec<u64>>,
}

/// One thing to tell.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// So many more.
    Increment(u64),
    /// As it stands.
    Gauge(u64),
    /// A time in milliseconds, which so many lines say, each for so many calls.
    Timing {
        /// The upper bound of its bucket.
        millis: f64,
        /// How many lines.
        lines: u64,
        /// How many of all calls one line stands for; 1 means each.
        calls_per_line: f64,
    },
}

impl DeltaTracker {
    /// What is new in a reading, which counts as told from now on.
    pub fn tell(&mut self, reading: &Sample) -> Vec<Delta> {
        match &reading.value {
            SampleValue::Gauge(value) => vec![Delta::Gauge(*value)],
            SampleValue::Counter(value) => {
                let told = entry(&mut self.counters, &reading.name);
                let added = added(*value, *told);
                *told = *value;
                if added > 0 {
                    vec![Delta::Increment(added)]
                } else {
                    Vec::new()
                }
            }
            SampleValue::Timer(buckets) => {
                let told = entry(&mut self.timers, &reading.name);
                told.resize(buckets.len(), 0);
                let new: Vec<(f64, u64)> = buckets
                    .iter()
                    .zip(&*told)
                    .map(|((bound, now), told)| (*bound, added(*now, *told)))
                    .collect();
                *told = buckets.iter().map(|(_, count)| *count).collect();
                times(&new)
            }
        }
    }

    /// Forgets counters that are in no reading any more. Timers stay for good.
    pub fn keep_only(&mut self, readings: &[Sample]) {
        let counters = readings
            .iter()
            .filter(|reading| matches!(reading.value, SampleValue::Counter(_)));
        if self.counters.len() > counters.clone().count() {
            let names: HashSet<&str> = counters.map(|reading| &*reading.name).collect();
            self.counters.retain(|name, _| names.contains(&**name));
        }
    }
}

/// A counter that went back began anew: its name was forgotten in between.
fn added(now: u64, told: u64) -> u64 {
    now.checked_sub(told).unwrap_or(now)
}

fn entry<'m, T: Default>(map: &'m mut HashMap<String, T>, name: &str) -> &'m mut T {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), T::default());
    }
    map.get_mut(name).expect("it was put there if it was not")
}

/// Lines for so many times of each length. If there are too many, those lines are left that stand
/// at equal steps:
/// ```text
/// calls  1 ms: |||||||||||||||||||||  2.5 ms: |||||||||||  5 ms: ||||
/// lines        |     |     |     |            |     |            |
/// ```
fn times(buckets: &[(f64, u64)]) -> Vec<Delta> {
    let calls: u64 = buckets.iter().map(|(_, count)| count).sum();
    let lines = calls.min(TIMER_LINES_MAX);
    let scaled =
        |calls_so_far: u64| u128::from(calls_so_far) * u128::from(lines) / u128::from(calls.max(1));
    let mut news = Vec::new();
    let mut before = 0;
    for &(millis, count) in buckets {
        let here = scaled(before + count) - scaled(before);
        before += count;
        if let Ok(lines_here @ 1..) = u64::try_from(here) {
            #[expect(clippy::cast_precision_loss, reason = "a sample rate is an estimate")]
            let calls_per_line = calls as f64 / lines as f64;
            news.push(Delta::Timing {
                millis,
                lines: lines_here,
                calls_per_line,
            });
        }
    }
    news
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
    fn a_counter_is_told_by_what_was_added_and_not_at_all_if_nothing_was() {
        let mut told = DeltaTracker::default();
        assert_eq!(told.tell(&counter("a", 0)), []);
        assert_eq!(told.tell(&counter("a", 5)), [Delta::Increment(5)]);
        assert_eq!(told.tell(&counter("a", 5)), []);
        assert_eq!(told.tell(&counter("a", 7)), [Delta::Increment(2)]);
        assert_eq!(
            told.tell(&counter("a", 3)),
            [Delta::Increment(3)],
            "it began anew"
        );
    }

    #[test]
    fn a_name_that_came_back_counts_from_the_start() {
        let mut told = DeltaTracker::default();
        told.tell(&counter("a", 5));
        told.tell(&counter("b", 5));
        told.keep_only(&[counter("b", 5)]);
        assert_eq!(told.tell(&counter("a", 6)), [Delta::Increment(6)]);
        assert_eq!(told.tell(&counter("b", 6)), [Delta::Increment(1)]);
    }

    #[test]
    fn a_gauge_is_always_told() {
        let reading = Sample {
            name: "g".to_owned(),
            value: SampleValue::Gauge(4),
        };
        let mut told = DeltaTracker::default();
        assert_eq!(
            [told.tell(&reading), told.tell(&reading)],
            [[Delta::Gauge(4)], [Delta::Gauge(4)]]
        );
    }

    #[test]
    fn few_times_have_a_line_each_and_many_share_theirs_evenly() {
        let took = |millis, lines, calls_per_line| Delta::Timing {
            millis,
            lines,
            calls_per_line,
        };
        let mut told = DeltaTracker::default();
        assert_eq!(
            told.tell(&timer(&[2, 0, 1])),
            [took(0.5, 2, 1.0), took(2.5, 1, 1.0)]
        );
        assert_eq!(told.tell(&timer(&[2, 0, 1])), []);
        let many = told.tell(&timer(&[2 + 90_000, 9_000, 1 + 1_000]));
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
