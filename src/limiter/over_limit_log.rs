//! Samples which responses of OVER_LIMIT are logged, with a maximum of lines per second.
//!
//! Off by default: descriptors may contain personal data, and a flood of requests must not fill disks.

use parking_lot::Mutex;

use crate::sampling::SampleRate;
use crate::telemetry::metric::{Counter, Metrics};
use crate::time::{MICROS_PER_SECOND, Time};

#[derive(Debug)]
pub(crate) struct OverLimitLog {
    /// The part of responses that is logged.
    rate: SampleRate,
    lines_per_second_max: u32,
    second: Mutex<Second>,
    dropped: Counter,
}

/// The lines of the current second.
#[derive(Debug, Default)]
struct Second {
    number: u64,
    lines: u32,
    /// Lines dropped since the last logged one.
    dropped: u64,
}

impl OverLimitLog {
    pub(crate) fn new(rate: SampleRate, lines_per_second_max: u32, metrics: &Metrics) -> Self {
        Self {
            rate,
            lines_per_second_max,
            second: Mutex::default(),
            dropped: metrics.counter(
                "tollgate_over_limit_log_dropped_total",
                "Over-limit log lines dropped by the rate limit (lines_per_second_max).",
            ),
        }
    }

    /// Whether to log this response; if so, how many lines were dropped since the last one.
    pub(crate) fn admit(&self, now: Time) -> Option<u64> {
        if self.rate.is_never() || !self.rate.includes(fastrand::u64(..)) {
            return None;
        }
        let admitted = self.second.lock().admit(now, self.lines_per_second_max);
        if admitted.is_none() {
            self.dropped.inc();
        }
        admitted
    }
}

impl Second {
    fn admit(&mut self, now: Time, lines_max: u32) -> Option<u64> {
        let number = now.as_micros() / MICROS_PER_SECOND;
        if number != self.number {
            (self.number, self.lines) = (number, 0);
        }
        if self.lines >= lines_max {
            self.dropped += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_per_second_are_bounded_and_the_next_line_counts_the_dropped() {
        let (first, next) = (Time::from_micros(5_000_000), Time::from_micros(6_000_000));
        let mut second = Second::default();
        let admitted: Vec<_> = (0..5).map(|_| second.admit(first, 2)).collect();
        assert_eq!(admitted, [Some(0), Some(0), None, None, None]);
        assert_eq!(
            [second.admit(next, 2), second.admit(next, 2)],
            [Some(3), Some(0)]
        );
    }
}
