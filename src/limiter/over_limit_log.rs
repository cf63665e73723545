//! Which refusals the log tells: by chance one of so many, and never more than so many a second.
//!
//! Off unless it is asked for: what a descriptor says may be personal, and a flood of refusals is
//! no reason to fill disks.

use parking_lot::Mutex;

use crate::sampling::SampleRate;
use crate::telemetry::metric::{Counter, Metrics};
use crate::time::{MICROS_PER_SECOND, Time};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Which part of the refusals is told; `None` for none.
    pub rate: Option<SampleRate>,
    /// How many lines in a second at most.
    pub lines_per_second_max: u32,
}

/// Decides which are told.
#[derive(Debug)]
pub struct OverLimitLog {
    options: Options,
    second: Mutex<Second>,
    left_out: Counter,
}

/// What was told in a second.
#[derive(Debug, Default)]
struct Second {
    number: u64,
    lines: u32,
    /// How many were left out since the last line.
    left_out: u64,
}

impl OverLimitLog {
    /// None were told yet.
    pub fn new(options: Options, metrics: &Metrics) -> Self {
        let left_out = metrics.counter(
            "tollgate_over_limit_log_dropped_total",
            "Refusals that the log would have told, had it not told as many in that second as it may (lines_per_second_max).",
        );
        Self {
            options,
            second: Mutex::default(),
            left_out,
        }
    }

    /// Whether any are told.
    pub const fn are_told(&self) -> bool {
        self.options.rate.is_some()
    }

    /// Whether this one is told; if so, how many were left out since the last that was.
    pub fn admit(&self, now: Time) -> Option<u64> {
        self.options
            .rate
            .filter(|rate| rate.includes(fastrand::u64(..)))?;
        let mut second = self.second.lock();
        let told = second.admit(now, self.options.lines_per_second_max);
        if told.is_none() {
            self.left_out.inc();
        }
        told
    }
}

impl Second {
    fn admit(&mut self, now: Time, lines_max: u32) -> Option<u64> {
        let number = now.as_micros() / MICROS_PER_SECOND;
        if number != self.number {
            (self.number, self.lines) = (number, 0);
        }
        if self.lines >= lines_max {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_the_next_one_tells_how_many_were_left_out() {
        let (first, next) = (Time::from_micros(5_000_000), Time::from_micros(6_000_000));
        let mut second = Second::default();
        let told: Vec<_> = (0..5).map(|_| second.admit(first, 2)).collect();
        assert_eq!(told, [Some(0), Some(0), None, None, None]);
        assert_eq!(
            [second.admit(next, 2), second.admit(next, 2)],
            [Some(3), Some(0)]
        );
    }
}
