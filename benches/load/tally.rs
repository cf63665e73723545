//! Accounts for requests: every one that was sent has exactly one fate, and the sum shows it.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// What became of a request.
pub enum Fate {
    Ok,
    OverLimit,
    /// Answered with anything else.
    Error(String),
    /// Sent, and not answered, and why.
    Unanswered(String),
    /// Due, and given up before it was sent: no place or no connection was free in time.
    Unsent,
}

/// When a request was due, sent, and answered or given up.
#[derive(Clone, Copy)]
pub struct Times {
    pub due: Instant,
    pub sent: Instant,
    pub ended: Instant,
}

/// The account of one part of a run.
pub struct Tally {
    /// Counted when sent, the fates below when known: two counts that have to agree.
    pub sent: u64,
    pub ok: u64,
    pub over_limit: u64,
    pub errors: BTreeMap<String, u64>,
    pub unanswered: BTreeMap<String, u64>,
    pub unsent: u64,
    /// From when to when a request was under way whose answer, counted above, took longer than the
    /// deadline.
    pub overdue: Vec<Range<Instant>>,
    /// Attempts the server rejected unprocessed, made again on another stream. Not requests of
    /// their own.
    pub resent: u64,
    /// From due to answered, in ns.
    pub latency: Histogram<u64>,
    /// From due to sent, in ns: the generator's own lateness, and waiting for a free place.
    pub lateness: Histogram<u64>,
    /// For an answer, counted from when its request was sent: to be sent late is this generator's
    /// doing, or that of the answers before it.
    deadline: Option<Duration>,
}

/// What came in each second of a run, counted from its beginning.
pub struct Timeline {
    origin: Instant,
    took: Histogram<u64>,
    current: Second,
    /// Without the second in which the run ended.
    pub over: Vec<Second>,
}

/// An answer belongs to the second in which it came.
#[derive(Default)]
pub struct Second {
    /// OK and OVER_LIMIT.
    pub answered: u64,
    /// Everything else that became of a request.
    pub failed: u64,
    /// From sent to answered, in ns.
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
    /// From due to sent, in ns.
    pub late_max: u64,
}

/// What each value was granted, for `--check-limit`.
pub struct LimitCheck {
    limit: u64,
    hits: u64,
    /// OK, over limit, and errors and lost answers, which the service may have counted.
    values: BTreeMap<u32, [u64; 3]>,
}

impl Tally {
    pub fn new(deadline: Option<Duration>) -> Self {
        Self {
            sent: 0,
            ok: 0,
            over_limit: 0,
            errors: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            unsent: 0,
            overdue: Vec::new(),
            resent: 0,
            latency: histogram(),
            lateness: histogram(),
            deadline,
        }
    }

    pub fn record(&mut self, fate: Fate, times: Times) {
        if let Fate::Ok | Fate::OverLimit | Fate::Error(_) = fate {
            self.latency.saturating_record(nanos(times.ended - times.due));
            let took = times.ended - times.sent;
            if self.deadline.is_some_and(|deadline| took > deadline) {
                self.overdue.push(times.sent..times.ended);
            }
        }
        if !matches!(fate, Fate::Unsent) {
            self.lateness.saturating_record(nanos(times.sent - times.due));
        }
        match fate {
            Fate::Ok => self.ok += 1,
            Fate::OverLimit => self.over_limit += 1,
            Fate::Error(error) => *self.errors.entry(error).or_default() += 1,
            Fate::Unanswered(why) => *self.unanswered.entry(why).or_default() += 1,
            Fate::Unsent => self.unsent += 1,
        }
    }

    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    pub fn unanswered_count(&self) -> u64 {
        self.unanswered.values().sum()
    }

    /// Requests that were sent and whose fate is known.
    pub fn accounted(&self) -> u64 {
        self.ok + self.over_limit + self.error_count() + self.unanswered_count()
    }

    /// Something was asked, and everything was answered OK or OVER_LIMIT, in time.
    pub fn is_clean(&self) -> bool {
        self.sent > 0
            && self.sent == self.ok + self.over_limit
            && self.unsent == 0
            && self.overdue.is_empty()
    }
}

impl Timeline {
    pub fn new(origin: Instant) -> Self {
        Self { origin, took: histogram(), current: Second::default(), over: Vec::new() }
    }

    pub fn record(&mut self, fate: &Fate, times: Times) {
        while (self.over.len() as u64) < (times.ended - self.origin).as_secs() {
            self.over.push(Second {
                p50: self.took.value_at_quantile(0.5),
                p99: self.took.value_at_quantile(0.99),
                max: self.took.max(),
                ..mem::take(&mut self.current)
            });
            self.took.reset();
        }
        match fate {
            Fate::Ok | Fate::OverLimit => self.current.answered += 1,
            _ => self.current.failed += 1,
        }
        self.took.saturating_record(nanos(times.ended - times.sent));
        let late = nanos(times.sent - times.due);
        self.current.late_max = self.current.late_max.max(late);
    }
}

impl LimitCheck {
    pub fn new(limit: u64, hits: u64) -> Self {
        let values = BTreeMap::new();
        Self { limit, hits, values }
    }

    pub fn record(&mut self, value: u32, fate: &Fate) {
        let which = match fate {
            Fate::Ok => 0,
            Fate::OverLimit => 1,
            Fate::Error(_) | Fate::Unanswered(_) => 2,
            Fate::Unsent => return,
        };
        self.values.entry(value).or_default()[which] += 1;
    }

    /// How many values were asked for, how many of them were let through for more hits than the
    /// limit, and how many were over limit although one more request would have fitted.
    pub fn verdict(&self) -> [usize; 3] {
        let count =
            |is: &dyn Fn(&[u64; 3]) -> bool| self.values.values().filter(|&v| is(v)).count();
        let limit = self.limit;
        let hits = self.hits;
        [
            self.values.len(),
            count(&|[ok, ..]| ok * hits > limit),
            count(&|[ok, over, unknown]| *over > 0 && (ok + unknown + 1) * hits <= limit),
        ]
    }
}

/// From a microsecond to ten minutes, to 0.1 % of the value.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 600_000_000_000, 3)
        .expect("the bounds are in order and three digits are allowed")
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
