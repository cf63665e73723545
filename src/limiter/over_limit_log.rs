//! Samples which responses of OVER_LIMIT are logged, with a maximum of lines per second; crossed
//! thresholds have the same maximum.
//!
//! Off by default: descriptors may contain personal data, and a flood of requests must not fill
//! disks.

use parking_lot::Mutex;

use crate::base::sampling::{PerSecond, SampleRate};
use crate::base::time::Time;
use crate::telemetry::metric::{Counter, Metrics};

#[derive(Debug)]
pub(crate) struct OverLimitLog {
    /// The part of responses that is logged.
    rate: SampleRate,
    lines_per_second_max: u32,
    second: Mutex<PerSecond>,
    second_of_crossings: Mutex<PerSecond>,
    dropped: Counter,
}

impl OverLimitLog {
    pub(crate) fn new(rate: SampleRate, lines_per_second_max: u32, metrics: &Metrics) -> Self {
        Self {
            rate,
            lines_per_second_max,
            second: Mutex::default(),
            second_of_crossings: Mutex::default(),
            dropped: metrics.counter(
                "tollgate_over_limit_log_dropped_total",
                "Log lines about over-limit responses and crossed thresholds dropped by the rate limit (lines_per_second_max).",
            ),
        }
    }

    /// Whether to log this response; if so, how many lines were dropped since the last one.
    pub(crate) fn admit(&self, now: Time) -> Option<u64> {
        if self.rate.is_never() || !self.rate.includes(fastrand::u64(..)) {
            return None;
        }
        self.admit_of(&self.second, now)
    }

    /// Admits the line of a crossed threshold; all of them are in the sample.
    pub(crate) fn admit_crossing(&self, now: Time) -> Option<u64> {
        self.admit_of(&self.second_of_crossings, now)
    }

    fn admit_of(&self, second: &Mutex<PerSecond>, now: Time) -> Option<u64> {
        let admitted = second.lock().admit(now, self.lines_per_second_max);
        if admitted.is_none() {
            self.dropped.inc();
        }
        admitted
    }
}
