//! Decides whether the store decides the checks, and if not, names cause and cure.
//!
//! A problem begins when more than 1 % of a minute and of its last ten seconds are affected: the
//! minute, so that a pause of a fraction of a second is none; the seconds, so that one that is over
//! does not begin again. It ends when less than 0.5 % of the last ten seconds are affected.

use std::time::Duration;

use crate::base::shutdown::StoreProblem;
use crate::base::time::Span;
use crate::limits::check::StoreError;

/// A call to Redis that takes longer than this delays requests noticeably; in seconds.
pub(crate) const SLOW: f64 = 0.01;
/// Parts in a thousand that are affected when a problem begins, and until it ends.
const BEGINS: u64 = 10;
const LASTS: u64 = 5;
/// Fewer in a minute are accidents.
const AFFECTED_MIN: u64 = 3;
/// A timeout of Envoy's filter that leaves Redis the default of STORE_TIMEOUT.
const ENVOY_WAITS: &str = "0.15s";

const FIND_SLOW: &str =
    "find what blocks it with SLOWLOG GET and INFO commandstats, and look at its CPU";
const MORE_CPU: &str = "this process waits for CPU, raise its limit";

/// Numbers of something by the cause of its failure.
pub(crate) type ByCause = [u64; StoreError::ALL.len()];

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
    /// How long workers waited for a CPU.
    pub(crate) cpu_wait: Span,
    /// Half and 99 % of the calls took no longer than this; in seconds.
    pub(crate) latency: Option<[f64; 2]>,
    /// How long typical callers of undecided checks wait, in seconds, if they send it.
    pub(crate) deadline: Option<f64>,
}

/// Times to compare those of a period with.
#[derive(Debug, Clone)]
pub(crate) struct Norms {
    /// STORE_TIMEOUT.
    pub(crate) store_timeout: Span,
    /// The last known latency of Redis in seconds, for periods without calls.
    pub(crate) latency: Option<f64>,
    /// Whether calls had no reply in time, and nothing failed in another way since.
    pub(crate) fails_late: bool,
    /// The error with which Redis rejects commands, and its cure.
    pub(crate) rejection: Option<String>,
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
            let minute = share(minute);
            let recent = share(recent);
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

    /// What happened in the `period` of a problem that is over in the last `minute`.
    pub(crate) fn recovery(self, period: &Period, minute: &Period, lasted: Span) -> String {
        let seconds = Duration::from(lasted).as_secs();
        match self {
            Self::Slow if minute.calls == 0 => {
                "no calls to Redis, which was slow, for a minute".to_owned()
            }
            Self::Slow => format!("recovered: Redis answers in time again after {seconds} s"),
            Self::Undecided(_) => {
                let Share { affected, all } = period.checks();
                let how = match minute.checks().all {
                    0 => "no checks for a minute",
                    _ => "recovered: Redis decides checks again",
                };
                format!("{how}; on_store_error answered {affected} of {all} checks in {seconds} s")
            }
        }
    }

    /// What happens, why, and what to do, for the log, `/ready` and the console.
    pub(crate) fn describe(self, period: &Period, norms: &Norms) -> StoreProblem {
        match self {
            Self::Slow => {
                let p99 = millis(period.p99().unwrap_or(SLOW));
                let (summary, whose) = if period.lacks_cpu() {
                    ("too little CPU", "replies of Redis are read late, after")
                } else {
                    ("slow Redis", "requests wait for its answers,")
                };
                StoreProblem {
                    summary: summary.to_owned(),
                    explanation: format!("{whose} up to {p99} (p99); {}", period.find_slow()),
                    runbook: "tollgatestorereplieslate",
                    is_undecided: false,
                }
            }
            Self::Undecided(cause) => StoreProblem {
                summary: format!(
                    "{} % of checks answered by on_store_error",
                    period.checks().percent()
                ),
                explanation: period.explain(cause, norms),
                runbook: match cause {
                    StoreError::ShortDeadline => "tollgatecallerdeadlinesshort",
                    StoreError::TimedOut | StoreError::QueueFull => "tollgatestorereplieslate",
                    StoreError::Unreachable => "tollgatestorenodeunavailable",
                    StoreError::Rejected => "tollgatestoreerrors",
                },
                is_undecided: true,
            },
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
        affected.max_by_key(|(_, count)| *count).map(|(cause, _)| cause)
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

    /// Whether waiting for a CPU explains half of what slow calls took, or more. Each took at least
    /// [`SLOW`].
    #[expect(clippy::cast_precision_loss, reason = "a comparison of estimates")]
    fn lacks_cpu(&self) -> bool {
        let slow = self.slow_calls as f64 * SLOW;
        slow > 0.0 && self.cpu_wait.as_secs_f64() * 2.0 >= slow
    }

    fn find_slow(&self) -> &'static str {
        if self.lacks_cpu() { MORE_CPU } else { FIND_SLOW }
    }

    fn checks(&self) -> Share {
        let affected = self.undecided.iter().sum();
        Share { affected, all: self.decided + affected }
    }

    fn all_calls(&self) -> Share {
        Share { affected: self.slow_calls, all: self.calls }
    }

    /// Cause and cure of undecided checks.
    fn explain(&self, cause: StoreError, norms: &Norms) -> String {
        if let (StoreError::Unreachable | StoreError::Rejected, Some(error)) =
            (cause, &norms.rejection)
        {
            return format!("Redis rejects commands: {error}");
        }
        match cause {
            StoreError::ShortDeadline => {
                let given = self.deadline.map_or("too little time".to_owned(), millis);
                let needs = self.p99().or(norms.latency);
                let needs = needs.map(|needs| format!(", Redis needs up to {}", millis(needs)));
                let needs = needs.unwrap_or_default();
                format!("callers give {given}{needs}; {}", longer_timeout())
            }
            // The breaker is open after time-outs.
            StoreError::Unreachable if norms.fails_late => self.no_answer(norms),
            StoreError::TimedOut => self.explain_late(norms),
            StoreError::Unreachable => {
                "Redis is unreachable; check that it runs, REDIS_URL, and the network to it"
                    .to_owned()
            }
            StoreError::Rejected => {
                "Redis rejected commands, its log lines have the error"
                    .to_owned()
            }
            StoreError::QueueFull => {
                "more requests wait for Redis than it decides; set LOCAL_CACHE_SIZE_IN_BYTES, or use a cluster"
                    .to_owned()
            }
        }
    }

    fn explain_late(&self, norms: &Norms) -> String {
        let store_timeout = Duration::from(norms.store_timeout).as_secs_f64();
        let by_caller = self.deadline.filter(|deadline| *deadline <= store_timeout);
        let until = by_caller.map_or_else(
            || format!("STORE_TIMEOUT is {}", norms.store_timeout),
            |deadline| format!("callers give {}", millis(deadline)),
        );
        let answers = |p99| format!("Redis answers in up to {} (p99), {until}", millis(p99));
        match self.p99().or(norms.latency) {
            Some(p99) if p99 > SLOW && self.decided > 0 => {
                format!("{}; {}", answers(p99), self.find_slow())
            }
            Some(p99) if p99 <= SLOW => {
                let cure = by_caller.map_or(MORE_CPU.to_owned(), |_| longer_timeout());
                format!("{}; {cure}", answers(p99))
            }
            _ => self.no_answer(norms),
        }
    }

    fn no_answer(&self, norms: &Norms) -> String {
        let store_timeout = norms.store_timeout;
        let cure = self.find_slow();
        format!("Redis does not answer within STORE_TIMEOUT ({store_timeout}); {cure}")
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
    format!("set the timeout of Envoy's filter to {ENVOY_WAITS}")
}

/// A time in ms, or in s if it has many of them.
fn millis(seconds: f64) -> String {
    let (number, unit) =
        if seconds < 1.0 { ((seconds * 1e3).max(0.1), "ms") } else { (seconds, "s") };
    let digits = usize::from(number < 10.0);
    let text = format!("{number:.digits$}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_calls_of_a_process_without_cpu_are_not_the_fault_of_redis() {
        let norms = Norms {
            store_timeout: Span::from(Duration::from_millis(100)),
            latency: None,
            fails_late: false,
            rejection: None,
        };
        let sentence = |slow_calls, waited_ms| {
            let cpu_wait = Span::from(Duration::from_millis(waited_ms));
            let latency = Some([0.001, 0.04]);
            let period = Period { calls: 500, slow_calls, cpu_wait, latency, ..Period::default() };
            Problem::Slow.describe(&period, &norms).to_string()
        };
        let slow =
            "slow Redis: requests wait for its answers, up to 40 ms (p99); find what blocks it";
        let busy = "too little CPU: replies of Redis are read late, after up to 40 ms (p99); this process waits for CPU";
        for (slow_calls, waited_ms, expected) in
            [(20, 0, slow), (20, 99, slow), (20, 100, busy), (20, 4_000, busy)]
        {
            let text = sentence(slow_calls, waited_ms);
            assert!(text.starts_with(expected), "{slow_calls} {waited_ms}: {text}");
        }
    }

    #[test]
    fn each_cause_has_its_cure() {
        let sentence = |cause: StoreError, fails_late, decided, latency, deadline| {
            let mut period = Period { decided, latency, deadline, ..Period::default() };
            period.undecided[cause as usize] = 12;
            let norms = Norms {
                store_timeout: Span::from(Duration::from_millis(100)),
                latency: None,
                fails_late,
                rejection: None,
            };
            Problem::Undecided(cause).describe(&period, &norms).to_string()
        };
        let ms = |median: f64, p99: f64| Some([median / 1e3, p99 / 1e3]);
        for (sentence, expected) in [
            (
                sentence(StoreError::ShortDeadline, false, 88, ms(0.1, 0.2), Some(0.001)),
                "12 % of checks answered by on_store_error: callers give 1 ms, Redis needs up to 0.2 ms; set the timeout of Envoy's filter to 0.15s",
            ),
            (
                sentence(StoreError::TimedOut, false, 88, ms(50.0, 95.0), None),
                "12 % of checks answered by on_store_error: Redis answers in up to 95 ms (p99), STORE_TIMEOUT is 100 ms; find what blocks it with SLOWLOG GET and INFO commandstats, and look at its CPU",
            ),
            (
                sentence(StoreError::Unreachable, true, 0, None, None),
                "100 % of checks answered by on_store_error: Redis does not answer within STORE_TIMEOUT (100 ms); find what blocks it with SLOWLOG GET and INFO commandstats, and look at its CPU",
            ),
            (
                sentence(StoreError::Unreachable, false, 0, None, None),
                "100 % of checks answered by on_store_error: Redis is unreachable; check that it runs, REDIS_URL, and the network to it",
            ),
        ] {
            assert_eq!(sentence, expected);
        }
    }
}
