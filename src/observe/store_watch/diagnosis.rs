//! Decides whether the store decides the checks, and if not, names cause and cure.
//!
//! A problem begins when more than 1 % of a minute and of its last ten seconds are affected: the
//! minute, so that a pause of a fraction of a second is none; the seconds, so that one that is over
//! does not begin again. It ends when less than 0.5 % of the last ten seconds are affected.

use std::time::Duration;

use crate::base::time::Span;
use crate::check::StoreError;

/// A call to Redis that takes longer than this delays requests noticeably; in seconds.
pub(crate) const SLOW: f64 = 0.01;
/// Parts in a thousand that are affected when a problem begins, and until it ends.
const BEGINS: u64 = 10;
const LASTS: u64 = 5;
/// Fewer in a minute are accidents.
const AFFECTED_MIN: u64 = 3;
/// A timeout of Envoy's filter that leaves Redis the default of STORE_TIMEOUT.
const LONG_ENOUGH: &str = "0.15s";

const FIND_SLOW: &str = "find what blocks it with SLOWLOG GET and INFO commandstats";
const MORE_CPU: &str = "this process waits for CPU, raise its limit";

/// Numbers of something by the cause of its failure.
pub(crate) type ByCause = [u64; StoreError::ALL.len()];

/// Those that are not zero, such as `3 late, 1 refused`.
pub(crate) fn causes(counts: &ByCause) -> String {
    let named = StoreError::ALL.into_iter().zip(counts);
    let named = named.filter(|(_, count)| **count > 0);
    let named: Vec<_> = named
        .map(|(cause, count)| format!("{count} {}", cause.name()))
        .collect();
    named.join(", ")
}

/// What prevents the store from deciding checks in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Checks have no verdict of the store, most of them for this cause.
    Undecided(StoreError),
    /// The store decides, but slowly.
    Slow,
}

/// What the store did in some time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Period {
    /// Checks that the store decided.
    pub(crate) decided: u64,
    /// Checks that it did not decide.
    pub(crate) undecided: ByCause,
    /// Calls to Redis.
    pub(crate) calls: u64,
    /// Those that took longer than [`SLOW`].
    pub(crate) slow_calls: u64,
    /// Half and 99 % of the calls took no longer than this; in seconds.
    pub(crate) latency: Option<[f64; 2]>,
    /// How long typical callers of undecided checks wait, in seconds, if they say.
    pub(crate) deadline: Option<f64>,
}

/// Times to compare those of a period with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norms {
    /// STORE_TIMEOUT.
    pub(crate) store_timeout: Span,
    /// The last known latency of Redis in seconds, for periods without calls.
    pub(crate) latency: Option<f64>,
}

/// How many of how many are affected.
#[derive(Debug, Clone, Copy)]
struct Share {
    affected: u64,
    all: u64,
}

impl Problem {
    /// The problem of the last minute and its last ten seconds. `current` is that of a second ago.
    pub(crate) fn find(minute: &Period, recent: &Period, current: Option<Self>) -> Option<Self> {
        let has = |share: fn(&Period) -> Share, is_current: bool| {
            let (minute, recent) = (share(minute), share(recent));
            if is_current {
                minute.all > 0 && (recent.all == 0 || recent.is_above(LASTS))
            } else {
                minute.affected >= AFFECTED_MIN
                    && minute.is_above(BEGINS)
                    && recent.is_above(BEGINS)
            }
        };
        let is_undecided = matches!(current, Some(Self::Undecided(_)));
        if has(Period::checks, is_undecided) {
            let of_recent = recent.main_cause().or(minute.main_cause());
            of_recent.map(Self::Undecided)
        } else {
            has(Period::all_calls, current == Some(Self::Slow)).then_some(Self::Slow)
        }
    }

    /// Whether a problem that was logged is this one, and not another one.
    pub(crate) fn is_same_kind(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// What happened in a problem that is over.
    pub(crate) fn recovery(self, period: &Period, lasted: Span) -> String {
        let seconds = Duration::from(lasted).as_secs();
        match self {
            Self::Slow => format!("Redis answers in time again after {seconds} s"),
            Self::Undecided(_) => {
                let Share { affected, all } = period.checks();
                format!(
                    "Redis decides checks again; on_store_error answered {affected} of {all} checks in {seconds} s"
                )
            }
        }
    }

    /// What happens, why, and what to do, for the log, `/ready` and the console.
    pub(crate) fn sentence(self, period: &Period, norms: Norms) -> String {
        match self {
            Self::Slow => format!(
                "Redis answers in {} (p99), and requests wait for it; {FIND_SLOW}",
                millis(period.p99().unwrap_or(SLOW))
            ),
            Self::Undecided(cause) => format!(
                "{} % of checks answered by on_store_error: {}",
                period.checks().percent(),
                period.explain(cause, norms)
            ),
        }
    }
}

impl Period {
    /// The p99 of the calls.
    pub(crate) fn p99(&self) -> Option<f64> {
        self.latency.map(|[_, p99]| p99)
    }

    /// Why the store gave no verdict on most of the undecided checks.
    pub(crate) fn main_cause(&self) -> Option<StoreError> {
        let counts = StoreError::ALL.into_iter().zip(self.undecided);
        let affected = counts.filter(|(_, count)| *count > 0);
        affected
            .max_by_key(|(_, count)| *count)
            .map(|(cause, _)| cause)
    }

    /// The part of the deadlines, from the shortest on, that the typical one of undecided checks is
    /// at: those with the shortest deadlines are undecided, where deadlines are the cause.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn share_of_typical_deadline(&self) -> f64 {
        match self.main_cause() {
            Some(StoreError::ShortDeadline) => {
                let Share { affected, all } = self.checks();
                affected as f64 / all as f64 / 2.0
            }
            _ => 0.5,
        }
    }

    fn checks(&self) -> Share {
        let affected = self.undecided.iter().sum();
        Share {
            affected,
            all: self.decided + affected,
        }
    }

    fn all_calls(&self) -> Share {
        Share {
            affected: self.slow_calls,
            all: self.calls,
        }
    }

    /// Cause and cure of undecided checks.
    fn explain(&self, cause: StoreError, norms: Norms) -> String {
        match cause {
            StoreError::ShortDeadline => {
                let given = self.deadline.map_or("too little time".to_owned(), millis);
                let needs = self.p99().or(norms.latency);
                let needs = needs.map(|needs| format!(", Redis needs {}", millis(needs)));
                let needs = needs.unwrap_or_default();
                format!("callers give {given}{needs}; {}", longer_timeout())
            }
            StoreError::TimedOut => self.explain_late(norms),
            StoreError::Unreachable => {
                "Redis is unreachable; check that it runs, REDIS_URL, and the network to it"
                    .to_owned()
            }
            StoreError::Rejected => {
                "Redis rejects commands, its error is in /ready; check maxmemory, ROLE and ACL LOG"
                    .to_owned()
            }
            StoreError::QueueFull => {
                "more requests wait for Redis than it decides; set LOCAL_CACHE_SIZE_IN_BYTES, or use a cluster"
                    .to_owned()
            }
        }
    }

    fn explain_late(&self, norms: Norms) -> String {
        let store_timeout = Duration::from(norms.store_timeout).as_secs_f64();
        let by_caller = self.deadline.filter(|deadline| *deadline <= store_timeout);
        let until = by_caller.map_or_else(
            || {
                // As the setting is written.
                let value = norms.store_timeout.to_string().replace(' ', "");
                format!("STORE_TIMEOUT is {value}")
            },
            |deadline| format!("callers give {}", millis(deadline)),
        );
        match self.p99().or(norms.latency) {
            Some(p99) if p99 > SLOW => {
                format!(
                    "Redis answers in {} (p99), {until}; {FIND_SLOW}",
                    millis(p99)
                )
            }
            Some(p99) => {
                let cure = by_caller.map_or(MORE_CPU.to_owned(), |_| longer_timeout());
                format!("Redis answers in {} (p99), {until}; {cure}", millis(p99))
            }
            None => format!("Redis does not answer, {until}; {FIND_SLOW}"),
        }
    }
}

impl Share {
    /// Whether more than these parts in a thousand are affected.
    fn is_above(self, thousandths: u64) -> bool {
        self.affected.saturating_mul(1_000) > self.all.saturating_mul(thousandths)
    }

    /// At least 1: nothing that is affected is shown as nothing.
    fn percent(self) -> u64 {
        (self.affected.saturating_mul(100) / self.all.max(1)).max(1)
    }
}

fn longer_timeout() -> String {
    format!("set the timeout of Envoy's filter to {LONG_ENOUGH}")
}

/// A time in ms, or in s if it has many of them.
fn millis(seconds: f64) -> String {
    let (number, unit) = if seconds < 1.0 {
        ((seconds * 1e3).max(0.1), "ms")
    } else {
        (seconds, "s")
    };
    let digits = usize::from(number < 10.0);
    let text = format!("{number:.digits$}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORMS: Norms = Norms {
        store_timeout: Span::from_micros(100_000),
        latency: Some(0.000_2),
    };

    /// A hundred checks, of which this many are undecided for this cause.
    fn undecided(cause: StoreError, count: u64) -> Period {
        let mut period = Period {
            decided: 100 - count,
            ..Period::default()
        };
        period.undecided[cause as usize] = count;
        period
    }

    #[test]
    fn sentences_name_cause_and_cure() {
        use StoreError::{QueueFull, Rejected, ShortDeadline, TimedOut, Unreachable};
        let with = |deadline: Option<f64>, p99: Option<f64>, cause, count| Period {
            deadline,
            latency: p99.map(|p99| [p99 / 2.0, p99]),
            ..undecided(cause, count)
        };
        for (period, cause, expected) in [
            (
                with(Some(0.001), None, ShortDeadline, 12),
                ShortDeadline,
                "12 % of checks answered by on_store_error: callers give 1 ms, Redis needs 0.2 ms; set the timeout of Envoy's filter to 0.15s",
            ),
            (
                with(None, Some(0.095), TimedOut, 30),
                TimedOut,
                "30 % of checks answered by on_store_error: Redis answers in 95 ms (p99), STORE_TIMEOUT is 100ms; find what blocks it with SLOWLOG GET and INFO commandstats",
            ),
            (
                with(Some(0.02), Some(0.08), TimedOut, 50),
                TimedOut,
                "50 % of checks answered by on_store_error: Redis answers in 80 ms (p99), callers give 20 ms; find what blocks it with SLOWLOG GET and INFO commandstats",
            ),
            (
                with(None, Some(0.001), TimedOut, 2),
                TimedOut,
                "2 % of checks answered by on_store_error: Redis answers in 1 ms (p99), STORE_TIMEOUT is 100ms; this process waits for CPU, raise its limit",
            ),
            (
                undecided(Unreachable, 100),
                Unreachable,
                "100 % of checks answered by on_store_error: Redis is unreachable; check that it runs, REDIS_URL, and the network to it",
            ),
            (
                undecided(Rejected, 40),
                Rejected,
                "40 % of checks answered by on_store_error: Redis rejects commands, its error is in /ready; check maxmemory, ROLE and ACL LOG",
            ),
            (
                undecided(QueueFull, 5),
                QueueFull,
                "5 % of checks answered by on_store_error: more requests wait for Redis than it decides; set LOCAL_CACHE_SIZE_IN_BYTES, or use a cluster",
            ),
        ] {
            let sentence = Problem::Undecided(cause).sentence(&period, NORMS);
            assert_eq!(sentence, expected);
        }
        let slow = with(None, Some(0.012), TimedOut, 0);
        let sentence = Problem::Slow.sentence(&slow, NORMS);
        assert_eq!(
            sentence,
            "Redis answers in 12 ms (p99), and requests wait for it; find what blocks it with SLOWLOG GET and INFO commandstats"
        );
    }

    #[test]
    fn problem_begins_above_one_percent_and_ends_with_the_last_ten_seconds() {
        use StoreError::{ShortDeadline, Unreachable};
        let problem = |minute, recent, current: Option<Problem>| {
            let [minute, recent] = [minute, recent].map(|count| undecided(Unreachable, count));
            Problem::find(&minute, &recent, current)
        };
        let unreachable = Some(Problem::Undecided(Unreachable));
        assert_eq!(problem(0, 0, None), None);
        assert_eq!(problem(50, 50, None), unreachable);
        // A minute of accidents, and an outage that is over, begin nothing.
        assert_eq!(problem(1, 50, None), None);
        assert_eq!(problem(50, 0, None), None);
        assert_eq!(problem(50, 1, unreachable), unreachable);
        assert_eq!(problem(50, 0, unreachable), None);
        // Without checks nothing is known about its end, until the minute has none either.
        let none = Period::default();
        let minute = undecided(Unreachable, 50);
        assert_eq!(Problem::find(&minute, &none, unreachable), unreachable);
        assert_eq!(Problem::find(&none, &none, unreachable), None);
        // The cause of now is named.
        let recent = undecided(ShortDeadline, 50);
        let found = Problem::find(&minute, &recent, unreachable);
        assert_eq!(found, Some(Problem::Undecided(ShortDeadline)));
        assert!(found.is_some_and(|found| found.is_same_kind(Problem::Undecided(Unreachable))));
    }

    #[test]
    fn redis_is_slow_above_ten_milliseconds_of_one_percent() {
        let slow = |slow_calls| Period {
            calls: 1_000,
            slow_calls,
            ..undecided(StoreError::TimedOut, 0)
        };
        assert_eq!(Problem::find(&slow(10), &slow(10), None), None);
        let found = Problem::find(&slow(11), &slow(11), None);
        assert_eq!(found, Some(Problem::Slow));
        assert_eq!(Problem::find(&slow(11), &slow(6), found), found);
        assert_eq!(Problem::find(&slow(11), &slow(5), found), None);
    }
}
