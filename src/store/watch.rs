//! Watches whether the store decides checks: samples its metrics, keeps an hour of them, and
//! reports what is wrong in the log, on `/ready` and in the console.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::runtime;
use crate::base::shutdown::{Lifecycle, StoreProblem};
use crate::base::time::{self, Clock, Span, Time};
use crate::limits::check::StoreError;
use crate::store::redis::Redis;
use crate::store::redis::topology::health::Health;
use crate::store::watch::diagnosis::{ByCause, Norms, Period, Problem, SLOW};
use crate::telemetry::metric::{Metrics, Snapshot, Times};

pub(crate) mod diagnosis;

/// Checks without a verdict of the store, by `cause`.
pub(crate) const FALLBACKS: &str = "tollgate_store_fallbacks_total";
/// Checks with one.
pub(crate) const VERDICTS: &str = "tollgate_store_verdicts_total";
/// The histogram of the timeouts of callers.
pub(crate) const DEADLINES: &str = "tollgate_call_deadline_seconds";
/// The histogram of calls to Redis.
pub(crate) const CALLS: &str = "tollgate_store_call_seconds";

/// Minutes that are kept.
pub(crate) const MINUTES: u64 = 60;
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
const MINUTE: Span = Span::from_secs(60);
const RECENT: Span = Span::from_secs(10);
/// What to do about a problem is logged again if it changes, at most as often as this.
const LOG_AGAIN: Span = MINUTE;

/// The watch of a store. Clones share it.
#[derive(Debug, Clone)]
pub struct StoreWatch {
    clock: Clock,
    metrics: Metrics,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Of the last minute, the oldest first.
    samples: VecDeque<Sample>,
    /// Of the last hour, the oldest first. Without those before the start.
    minutes: VecDeque<Minute>,
    /// The totals at the start of the last minute of them.
    minute_start: Sample,
    /// The last known p99 of calls to Redis in seconds.
    latency: Option<f64>,
    episode: Option<Episode>,
}

/// Totals at one time.
#[derive(Debug, Clone, Default)]
struct Sample {
    at: Time,
    decided: u64,
    undecided: ByCause,
    /// How long workers waited for a CPU.
    cpu_wait: Span,
    calls: Option<Times>,
    deadlines: Option<Times>,
}

/// What the store did in a minute.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Minute {
    /// Since the epoch.
    pub(crate) number: u64,
    /// Checks that it did not decide.
    pub(crate) undecided: ByCause,
    /// Half and 99 % of the calls took no longer than this; in seconds.
    pub(crate) latency: Option<[f64; 2]>,
    /// The p99 of its fastest second.
    fastest: Option<f64>,
}

/// A problem that was logged and has not ended.
#[derive(Debug, Clone)]
struct Episode {
    problem: Problem,
    /// What was logged last.
    logged: StoreProblem,
    /// When something else was logged than at the begin.
    logged_again: Option<Time>,
    /// The totals before it.
    before: Sample,
}

impl StoreWatch {
    /// Knows nothing until it runs.
    pub fn new(clock: Clock, metrics: &Metrics) -> Self {
        Self { clock, metrics: metrics.clone(), kept: Arc::default() }
    }

    /// Takes samples for as long as the process lives. `scripted` returns the rules that Redis
    /// decides by its script.
    pub async fn run(
        self,
        redis: Arc<Redis>,
        lifecycle: Lifecycle,
        scripted: impl Fn() -> Vec<String>,
    ) {
        let mut ticks = time::ticks(SAMPLE_INTERVAL);
        let mut logged = None;
        loop {
            ticks.tick().await;
            let sample = self.sample();
            let report = {
                let mut kept = self.kept.lock();
                kept.add(sample);
                redis.lateness.set_normal(kept.normal());
                let latency = kept.latency;
                kept.report(&Norms {
                    store_timeout: redis.store_timeout,
                    latency,
                    fails_late: redis.pools().any(|pool| pool.has_any(Health::fails_late)),
                    rejection: redis.pools().find_map(|pool| pool.find(Health::rejection)),
                })
            };
            let (problem, described) = report.unzip();
            let refusal = redis.refusal(&scripted);
            if let Some(refusal) = refusal.as_ref().filter(|_| refusal != logged) {
                tracing::warn!("{refusal}");
                logged = Some(refusal.clone());
            }
            let is_rejected = problem == Some(Problem::Undecided(StoreError::Rejected));
            let first = refusal.clone().filter(|_| is_rejected).or(described);
            let others = refusal.or_else(|| redis.durability.problem());
            lifecycle.set_store_problem(first.or(others));
            let has_short_deadlines =
                problem == Some(Problem::Undecided(StoreError::ShortDeadline));
            if has_short_deadlines && self.kept.lock().latency.is_none() {
                // No caller gave it enough time for a call.
                let ping = slowest_ping(&redis).await;
                self.kept.lock().latency = ping;
            }
        }
    }

    /// Half and 99 % of the calls of the last minute took no longer than this; in seconds.
    pub(crate) fn latency(&self) -> Option<[f64; 2]> {
        let kept = self.kept.lock();
        kept.since(MINUTE)?.latency
    }

    /// When the store began to leave checks undecided, if it does.
    pub(crate) fn undecided_since(&self) -> Option<Time> {
        let kept = self.kept.lock();
        let episode = kept.episode.as_ref()?;
        matches!(episode.problem, Problem::Undecided(_)).then_some(episode.before.at)
    }

    /// The last [`MINUTES`]; the last one has not ended.
    pub(crate) fn hour(&self) -> Vec<Minute> {
        let kept = self.kept.lock();
        let last = minute_of(self.clock.now());
        let minutes = last.saturating_sub(MINUTES - 1)..=last;
        let kept_of = |number| {
            let mut kept = kept.minutes.iter();
            kept.find(|minute| minute.number == number).copied()
        };
        minutes
            .map(|number| kept_of(number).unwrap_or(Minute { number, ..Minute::default() }))
            .collect()
    }

    fn sample(&self) -> Sample {
        let snapshot = self.metrics.snapshot();
        Sample {
            at: self.clock.now(),
            decided: snapshot.count(VERDICTS),
            undecided: undecided(&snapshot),
            cpu_wait: runtime::workers_cpu_wait(),
            calls: snapshot.times(CALLS).cloned(),
            deadlines: snapshot.times(DEADLINES).cloned(),
        }
    }
}

impl Kept {
    fn add(&mut self, now: Sample) {
        // Calls may be served before the first sample is taken.
        let previous =
            self.samples.back().cloned().unwrap_or(Sample { at: now.at, ..Sample::default() });
        let number = minute_of(now.at);
        if self.minutes.back().is_none_or(|minute| minute.number != number) {
            self.minute_start = previous.clone();
            self.minutes.push_back(Minute { number, ..Minute::default() });
        }
        self.minutes.retain(|minute| minute.number + MINUTES > number);
        let second = now.after(&previous);
        let so_far = now.after(&self.minute_start);
        if let Some(minute) = self.minutes.back_mut() {
            minute.undecided = so_far.undecided;
            minute.latency = so_far.latency;
            minute.fastest = fastest([minute.fastest, second.p99()]);
        }
        self.latency = second.p99().or(self.latency);
        let is_old = |first: &Sample| now.at.since(first.at) > MINUTE;
        while self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        if self.samples.is_empty() {
            self.samples.push_back(previous);
        }
        self.samples.push_back(now);
    }

    /// The time in which Redis answers if nothing slows it: the p99 of the fastest second of the
    /// hour. Zero if it is unknown.
    fn normal(&self) -> Span {
        let fastest = fastest(self.minutes.iter().map(|minute| minute.fastest));
        Span::from(Duration::from_secs_f64(fastest.unwrap_or_default()))
    }

    /// What happened in the last part of a minute.
    fn since(&self, period: Span) -> Option<Period> {
        let now = self.samples.back()?;
        let mut samples = self.samples.iter();
        let first = samples.find(|sample| now.at.since(sample.at) <= period)?;
        Some(now.after(first))
    }

    /// The last sample before the first undecided check of the last ten seconds; the first one of
    /// the minute if there was none.
    fn before_fallbacks(&self) -> Option<&Sample> {
        let now = self.samples.back()?;
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        let mut recent = pairs.filter(|(first, _)| now.at.since(first.at) <= RECENT);
        let found = recent.find(|(first, second)| first.undecided != second.undecided);
        found.map_or(self.samples.front(), |(first, _)| Some(first))
    }

    /// The problem of the last samples, if there is one. Logs one that began or ended.
    fn report(&mut self, norms: &Norms) -> Option<(Problem, StoreProblem)> {
        let minute = self.since(MINUTE)?;
        let recent = self.since(RECENT)?;
        let current = self.episode.as_ref().map(|episode| episode.problem);
        let problem = Problem::find(&minute, &recent, current);
        let now = self.samples.back()?.clone();
        let before = self.before_fallbacks()?.clone();
        let period = now.after(&before);
        let described = problem.map(|problem| (problem, problem.describe(&period, norms)));
        self.follow(described.clone(), &now, before);
        described
    }

    /// Begins, continues or ends an episode.
    fn follow(&mut self, current: Option<(Problem, StoreProblem)>, now: &Sample, before: Sample) {
        if let (Some(episode), Some((problem, described))) = (&mut self.episode, &current)
            && episode.problem.is_same_kind(*problem)
        {
            episode.problem = *problem;
            let new = cure(described).filter(|new| cure(&episode.logged) != Some(*new));
            let is_recent = |last| now.at.since(last) < LOG_AGAIN;
            if new.is_some() && !episode.logged_again.is_some_and(is_recent) {
                tracing::warn!("{described}");
                episode.logged = described.clone();
                episode.logged_again = Some(now.at);
            }
            return;
        }
        if let Some(ended) = self.episode.take() {
            let period = now.after(&ended.before);
            let lasted = now.at.since(ended.before.at);
            // A slow Redis that decides no more has not recovered.
            if current.is_none() || ended.problem != Problem::Slow {
                let minute = self.samples.front().map(|first| now.after(first));
                let recovery = ended.problem.recovery(&period, &minute.unwrap_or_default(), lasted);
                tracing::warn!("{recovery}");
            }
        }
        if let Some((problem, logged)) = current {
            tracing::warn!("{logged}");
            self.episode = Some(Episode { problem, logged, logged_again: None, before });
        }
    }
}

impl Sample {
    /// What happened since an earlier sample.
    fn after(&self, earlier: &Self) -> Period {
        let mut period = Period {
            decided: self.decided - earlier.decided,
            undecided: std::array::from_fn(|cause| {
                self.undecided[cause] - earlier.undecided[cause]
            }),
            cpu_wait: self.cpu_wait.less(earlier.cpu_wait),
            ..Period::default()
        };
        if let Some(calls) = &self.calls {
            let earlier = earlier.calls.as_ref();
            period.calls = calls.count_since(earlier);
            period.slow_calls = calls.above(SLOW, earlier);
            period.latency = calls.median_and_p99(earlier);
        }
        if let Some(deadlines) = &self.deadlines {
            let share = period.share_of_typical_deadline();
            period.deadline = deadlines.bound(share, earlier.deadlines.as_ref());
        }
        period
    }
}

async fn slowest_ping(redis: &Redis) -> Option<f64> {
    let nodes = redis.status().await.into_iter();
    let pings = nodes.filter_map(|node| node.ping.ok());
    pings.max().map(Span::as_secs_f64)
}

fn undecided(snapshot: &Snapshot) -> ByCause {
    let mut undecided = ByCause::default();
    for ([name], count) in snapshot.counts(FALLBACKS, ["cause"]) {
        if let Ok(cause) = name.parse::<StoreError>() {
            undecided[cause as usize] += count;
        }
    }
    undecided
}

/// What to do.
fn cure(problem: &StoreProblem) -> Option<&str> {
    problem.explanation.split_once("; ").map(|(_, cure)| cure)
}

fn fastest(times: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    times.into_iter().flatten().reduce(f64::min)
}

fn minute_of(time: Time) -> u64 {
    time.as_micros() / MINUTE.as_micros()
}
