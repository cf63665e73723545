//! Accounts for requests: every one that was sent has exactly one fate, and the sum shows it.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use h2::Reason;
use hdrhistogram::Histogram;

use crate::load::answer::Answer;

/// What became of a request.
pub enum Fate {
    Answered(Answer),
    /// Sent, and never answered.
    Unanswered(Loss),
    /// Due, and given up before it was sent: no place or no connection was free in time.
    Unsent,
}

/// Why there was no answer.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Loss {
    Timeout,
    /// By a GOAWAY or REFUSED_STREAM that promises it was not processed, twice.
    Refused,
    /// By RST_STREAM, and its code.
    Reset(u32),
    /// The connection ended first, by a GOAWAY with this error code.
    GoAway(u32),
    /// The connection ended first.
    Disconnected,
}

/// The account of one part of a run.
pub struct Tally {
    /// Counted when sent, the fates below when known: two counts that have to agree.
    pub sent: u64,
    pub ok: u64,
    pub over_limit: u64,
    pub errors: BTreeMap<Answer, u64>,
    pub unanswered: BTreeMap<Loss, u64>,
    pub unsent: u64,
    /// From when to when a request was under way whose answer, counted above, took longer than the
    /// deadline.
    pub overdue: Vec<Range<Instant>>,
    /// Attempts the server refused unprocessed, made again on another stream. Not requests of
    /// their own.
    pub resent: u64,
    /// From due to answered, in ns.
    pub latency: Histogram<u64>,
    /// From due to sent, in ns: the generator's own lateness, and waiting for a free place.
    pub lateness: Histogram<u64>,
    /// For an answer, counted from when its request was sent.
    deadline: Option<Duration>,
}

/// What came in each second of a run.
pub struct Timeline {
    origin: Instant,
    /// The second that is not over: its number, and how long its answers took.
    second: u64,
    took: Histogram<u64>,
    current: Second,
    over: Vec<Second>,
}

/// A second, counted from the run's beginning. An answer belongs to the one in which it came.
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

/// Below this a histogram does not tell times apart.
const RESOLUTION_NS: u64 = 1_000;
/// A longer time counts as this; --timeout is rarely above a second.
const LATENCY_MAX_NS: u64 = 600_000_000_000;
/// 0.1 % of the value.
const SIGNIFICANT_DIGITS: u8 = 3;

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

    pub fn record(&mut self, fate: Fate, due_at: Instant, sent_at: Instant, ended_at: Instant) {
        if !matches!(fate, Fate::Unsent) {
            self.lateness
                .saturating_record(nanoseconds(sent_at - due_at));
        }
        match fate {
            Fate::Answered(answer) => {
                self.latency
                    .saturating_record(nanoseconds(ended_at - due_at));
                // Not from when it was due: to be sent late is this generator's doing, or that of
                // the answers before it.
                if self
                    .deadline
                    .is_some_and(|deadline| ended_at - sent_at > deadline)
                {
                    self.overdue.push(sent_at..ended_at);
                }
                match answer {
                    Answer::Ok => self.ok += 1,
                    Answer::OverLimit => self.over_limit += 1,
                    error => *self.errors.entry(error).or_default() += 1,
                }
            }
            Fate::Unanswered(loss) => *self.unanswered.entry(loss).or_default() += 1,
            Fate::Unsent => self.unsent += 1,
        }
    }

    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    pub fn unanswered_count(&self) -> u64 {
        self.unanswered.values().sum()
    }

    /// Requests whose fate is known.
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
        Self {
            origin,
            second: 0,
            took: histogram(),
            current: Second::default(),
            over: Vec::new(),
        }
    }

    pub fn record(&mut self, fate: &Fate, due_at: Instant, sent_at: Instant, ended_at: Instant) {
        let second = (ended_at - self.origin).as_secs();
        while self.second < second {
            self.turn();
        }
        match fate {
            Fate::Answered(Answer::Ok | Answer::OverLimit) => self.current.answered += 1,
            _ => self.current.failed += 1,
        }
        self.took.saturating_record(nanoseconds(ended_at - sent_at));
        self.current.late_max = self.current.late_max.max(nanoseconds(sent_at - due_at));
    }

    /// All seconds that are over, without the one in which the run ended.
    pub fn seconds(&self) -> &[Second] {
        &self.over
    }

    fn turn(&mut self) {
        let quantile = |quantile| self.took.value_at_quantile(quantile);
        let (p50, p99, max) = (quantile(0.5), quantile(0.99), self.took.max());
        self.over.push(Second {
            p50,
            p99,
            max,
            ..mem::take(&mut self.current)
        });
        self.took.reset();
        self.second += 1;
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("timeout"),
            Self::Refused => f.write_str("refused unprocessed"),
            Self::Reset(code) => write!(f, "stream reset: {:?}", Reason::from(*code)),
            Self::GoAway(code) => {
                write!(f, "connection ended by GOAWAY: {:?}", Reason::from(*code))
            }
            Self::Disconnected => f.write_str("connection lost"),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(RESOLUTION_NS, LATENCY_MAX_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds are in order and three digits are allowed")
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
