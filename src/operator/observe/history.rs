//! Recent counts: a sample every 2 s for rates, calls each second for the last minute, and calls
//! and the hits of each rule at the start of each minute for charts of the last hour.
//!
//! Counts are kept as totals, and only for seconds and minutes in which they changed, so that idle
//! rules cost nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;

use crate::base::time::{Clock, MICROS_PER_SECOND, Span, Time};
use crate::operator::observe::responses::{CallCounts, Responses};
use crate::rules::{LiveRules, Rule};
use crate::telemetry::metric::{Counter, Metrics, Snapshot, Times};

/// Rules with a chart of the last hour: about 10 MB if all of them are counted every minute.
// bound history_rules_max: the rule has no chart until others are idle for an hour;
// tollgate_history_full_total
const HISTORY_RULES_MAX: usize = 5_000;
/// Bars of a chart: minutes of an hour, or seconds of a minute.
const BARS: usize = 60;
const TICK: Duration = Duration::from_secs(1);
/// A sample has all metrics.
const TICKS_OF_SAMPLE: u64 = 2;
/// The period of shares and latencies.
const RECENT: Span = Span::from_secs(60);
/// The period of rates.
const RATE_PERIOD: Span = Span::from_secs(10);
const MICROS_PER_MINUTE: u64 = 60_000_000;
const LATENCY: &str = "ratelimit_service_response_time_seconds";

/// The history of the process. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct History(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rules: Arc<LiveRules>,
    responses: Responses,
    metrics: Metrics,
    clock: Clock,
    kept: Mutex<Kept>,
    full: Counter,
}

#[derive(Debug, Default)]
struct Kept {
    samples: VecDeque<Sample>,
    /// Calls, each minute.
    calls: Totals,
    /// Calls, each second.
    seconds: Totals,
    /// When they were counted last.
    second: u64,
    /// By path.
    rules: HashMap<Arc<str>, Totals>,
}

/// The counts of [`Bar`] since the start of the process: at the start of minutes, or of seconds,
/// after which they changed.
#[derive(Debug, Default)]
struct Totals(VecDeque<(u64, [u64; 3])>);

/// Totals at one time.
#[derive(Debug, Default)]
struct Sample {
    at: Time,
    calls: CallCounts,
    latency: Option<Times>,
}

/// Counts of the last minute, and the rate of the last ten seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Recent {
    pub(crate) calls_per_second: f64,
    pub(crate) calls: CallCounts,
    /// Half and 99 % of the calls took no longer than this; in seconds.
    pub(crate) latency: Option<[f64; 2]>,
}

/// What a bar of a chart counts: calls, or hits of a rule or a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bar {
    pub(crate) all: u64,
    /// Over limit, and rejected.
    pub(crate) over_limit: u64,
    /// Over a limit that does not reject them.
    pub(crate) admitted: u64,
}

/// The bars, the oldest first.
pub(crate) type Chart = Vec<Bar>;

impl Bar {
    pub(crate) fn add(&mut self, other: Self) {
        self.all = self.all.saturating_add(other.all);
        self.over_limit = self.over_limit.saturating_add(other.over_limit);
        self.admitted = self.admitted.saturating_add(other.admitted);
    }

    /// Between two totals.
    fn between(start: [u64; 3], end: [u64; 3]) -> Self {
        let [all, over_limit, admitted] =
            [0, 1, 2].map(|kind: usize| end[kind].saturating_sub(start[kind]));
        Self { all, over_limit, admitted }
    }
}

impl History {
    /// Registers the metric.
    pub(crate) fn new(
        rules: Arc<LiveRules>,
        responses: Responses,
        clock: Clock,
        metrics: &Metrics,
    ) -> Self {
        // Calls may be served before the first sample is taken.
        let start = Sample { at: clock.now(), ..Sample::default() };
        let kept = Kept { samples: VecDeque::from([start]), ..Kept::default() };
        Self(Arc::new(Shared {
            rules,
            responses,
            metrics: metrics.clone(),
            clock,
            kept: Mutex::new(kept),
            full: metrics.counter(
                "tollgate_history_full_total",
                "Rules that the console has no chart of, each minute, because too many are counted (history_rules_max).",
            ),
        }))
    }

    /// Takes samples for as long as the process lives.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let start = |kept: &Kept| kept.samples.front().map(|sample| sample.at);
        let mut minute = start(&self.0.kept.lock()).map_or(0, minute_of);
        for tick in 0_u64.. {
            ticks.tick().await;
            let second = self.0.clock.now().as_micros() / MICROS_PER_SECOND;
            let calls = totals(&self.0.responses.totals());
            {
                let kept = &mut *self.0.kept.lock();
                kept.seconds.keep(second, calls);
                kept.second = second;
            }
            if !tick.is_multiple_of(TICKS_OF_SAMPLE) {
                continue;
            }
            let sample = self.sample(&self.0.metrics.snapshot());
            let started = minute_of(sample.at);
            if minute != started {
                minute = started;
                self.keep_minute(minute, totals(&sample.calls));
            }
            self.0.kept.lock().add(sample);
        }
    }

    /// The current totals.
    fn sample(&self, snapshot: &Snapshot) -> Sample {
        Sample {
            at: self.0.clock.now(),
            calls: self.0.responses.totals(),
            latency: snapshot.times(LATENCY).cloned(),
        }
    }

    /// Compares current totals with those of a minute before.
    pub(crate) fn recent(&self, snapshot: &Snapshot) -> Recent {
        let now = &self.sample(snapshot);
        let kept = self.0.kept.lock();
        let since = |period| {
            let mut samples = kept.samples.iter();
            let earlier = samples.find(|sample| now.at.since(sample.at) <= period);
            now.after(earlier.unwrap_or(now))
        };
        Recent { calls_per_second: since(RATE_PERIOD).calls_per_second, ..since(RECENT) }
    }

    /// Calls since the start of the process.
    pub(crate) fn totals(&self) -> CallCounts {
        self.0.responses.totals()
    }

    /// Calls of the last hour, by minute. The last one has not ended.
    pub(crate) fn chart(&self) -> Chart {
        let minute = self.minute();
        let now = totals(&self.0.responses.totals());
        self.0.kept.lock().calls.chart(minute, now)
    }

    /// Calls of the last minute, by second. The last one has ended.
    pub(crate) fn seconds(&self) -> Chart {
        let kept = self.0.kept.lock();
        let totals = kept.seconds.0.back().map_or([0; 3], |(_, totals)| *totals);
        kept.seconds.chart(kept.second.saturating_sub(1), totals)
    }

    /// Hits of a rule in the last hour.
    pub(crate) fn last_hour(&self, rule: &Rule) -> Bar {
        let hits = rule.stats.hits();
        let mut sum = Bar::default();
        if hits[0] > 0 {
            for minute in self.chart_of(&rule.path, hits) {
                sum.add(minute);
            }
        }
        sum
    }

    /// The last hour of a rule with these hits.
    pub(crate) fn chart_of(&self, path: &str, now: [u64; 3]) -> Chart {
        let minute = self.minute();
        let kept = self.0.kept.lock();
        let none = Totals::default();
        kept.rules.get(path).unwrap_or(&none).chart(minute, now)
    }

    fn minute(&self) -> u64 {
        minute_of(self.0.clock.now())
    }

    fn keep_minute(&self, minute: u64, calls: [u64; 3]) {
        let rules = self.0.rules.load();
        let mut kept = self.0.kept.lock();
        kept.calls.keep(minute, calls);
        let Some(rules) = &*rules else { return };
        for rule in rules.rules() {
            let hits = rule.stats.hits();
            if let Some(totals) = kept.rules.get_mut(&rule.path) {
                totals.keep(minute, hits);
            } else if hits[0] == 0 {
            } else if kept.rules.len() < HISTORY_RULES_MAX {
                let mut totals = Totals::default();
                totals.keep(minute, hits);
                kept.rules.insert(rule.path.clone(), totals);
            } else {
                self.0.full.inc();
            }
        }
        kept.rules.retain(|_, totals| totals.is_recent(minute));
    }
}

impl Kept {
    fn add(&mut self, sample: Sample) {
        let is_late = |first: &Sample| sample.at.since(first.at) > RECENT;
        while self.samples.front().is_some_and(is_late) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }
}

impl Sample {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn after(&self, earlier: &Self) -> Recent {
        let seconds = self.at.since(earlier.at).as_secs_f64();
        let calls = self.calls.since(&earlier.calls);
        Recent {
            calls_per_second: if seconds > 0.0 { calls.calls as f64 / seconds } else { 0.0 },
            calls,
            latency: quantiles(self.latency.as_ref(), earlier.latency.as_ref()),
        }
    }
}

impl Totals {
    fn keep(&mut self, start: u64, totals: [u64; 3]) {
        if self.0.back().is_none_or(|(_, last)| *last != totals) {
            self.0.push_back((start, totals));
        }
        // One before the chart stays: its first bar begins with it.
        while self.0.get(1).is_some_and(|(second, _)| second + BARS as u64 <= start) {
            self.0.pop_front();
        }
    }

    /// Whether they changed in the last hour.
    fn is_recent(&self, minute: u64) -> bool {
        self.0.back().is_some_and(|(last, _)| last + BARS as u64 > minute)
    }

    /// The bars up to the one that begins at `last`, which ends with the totals of `now`.
    fn chart(&self, last: u64, now: [u64; 3]) -> Chart {
        let mut kept = self.0.iter().peekable();
        // Nothing is kept of a rule that was not counted before.
        let mut at_start = [0; 3];
        let mut starts = Vec::new();
        for start in (last + 1).saturating_sub(BARS as u64)..=last {
            while let Some((_, totals)) = kept.next_if(|(of, _)| *of <= start) {
                at_start = *totals;
            }
            starts.push(at_start);
        }
        let ends = starts.iter().skip(1).copied().chain([now]);
        starts.iter().zip(ends).map(|(start, end)| Bar::between(*start, end)).collect()
    }
}

/// The counts of [`Bar`].
fn totals(calls: &CallCounts) -> [u64; 3] {
    [calls.calls, calls.over_limit, calls.admitted.iter().sum()]
}

fn minute_of(time: Time) -> u64 {
    time.as_micros() / MICROS_PER_MINUTE
}

/// Half and 99 %.
fn quantiles(times: Option<&Times>, earlier: Option<&Times>) -> Option<[f64; 2]> {
    let quantile = |share| times?.quantile(share, earlier);
    Some([quantile(0.5)?, quantile(0.99)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_has_the_hits_of_each_minute() {
        let mut totals = Totals::default();
        for (minute, hits) in [(100, 5), (101, 5), (102, 9), (130, 10)] {
            totals.keep(minute, [hits, hits / 2, 0]);
        }
        let chart = totals.chart(131, [12, 5, 0]);
        assert_eq!(chart.len(), 60);
        let hits_of = |minute: usize| {
            let Bar { all, over_limit, .. } = chart[59 - (131 - minute)];
            [all, over_limit]
        };
        assert_eq!([99, 101, 129, 130, 131].map(hits_of), [[5, 2], [4, 2], [1, 1], [0, 0], [2, 0]]);
        assert_eq!(chart.iter().map(|minute| minute.all).sum::<u64>(), 12);
    }

    #[test]
    fn totals_of_the_last_hour_are_kept() {
        let mut totals = Totals::default();
        for minute in 0..200 {
            totals.keep(minute, [minute, 0, 0]);
        }
        assert!(totals.0.len() <= 61, "{}", totals.0.len());
        let chart = totals.chart(199, [200, 0, 0]);
        assert!(chart.iter().all(|minute| minute.all == 1), "{chart:?}");
        assert!(totals.is_recent(258) && !totals.is_recent(259));
    }

    #[test]
    fn rates_are_those_of_the_time_between_samples() {
        let sample = |secs, [calls, over_limit, shadow]: [u64; 3]| Sample {
            at: Time::default().plus(Span::from_secs(secs)),
            calls: CallCounts { calls, over_limit, admitted: [shadow, 0, 0] },
            latency: None,
        };
        let recent = sample(70, [110, 12, 3]).after(&sample(20, [10, 10, 1]));
        assert_eq!(
            recent,
            Recent {
                calls_per_second: 2.0,
                calls: CallCounts { calls: 100, over_limit: 2, admitted: [2, 0, 0] },
                latency: None,
            }
        );
        let mut kept = Kept::default();
        for secs in 0..100 {
            kept.add(sample(secs * 2, [0; 3]));
        }
        assert_eq!(kept.samples.len(), 31);
    }
}
