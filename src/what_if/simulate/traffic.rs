//! When calls come. Each time is computed from the call's number alone, in whole µs, so that
//! nothing adds up.
//!
//! ```text
//!  steady   |    |    |    |    |    |    |       the limit's rate, whole µs apart
//!  double   |  | |  | |  | |  | |  | |  | |       twice as many
//!  bursty   .         ||||      .         ||||    two periods' worth around every second edge
//!           +---------+---------+---------+----
//!           a window  ^ an edge
//! ```

use std::fmt;

use crate::base::time::{MICROS_PER_SECOND, Span, Time};

/// A burst goes on for this part of a period, half of it before the edge: short beside the period,
/// and long enough to be seen.
const BURST_PARTS: u64 = 10;
/// Runs begin at the first edge of a window from here on: 2027-01-15, which is on no edge of
/// anything but seconds, minutes and hours.
const BEGINNING: Time = Time::from_micros(1_800_000_000 * MICROS_PER_SECOND);
/// Rates are whole numbers of calls in so many seconds.
const RATE_SECONDS: u64 = 1_000_000;
/// The digits behind a rate's point that there may be.
const RATE_DIGITS: usize = 6;

/// How calls come, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// At the limit's own rate.
    Steady,
    /// At twice that.
    Double,
    /// Two periods' worth at once, every second period.
    Bursty,
    /// So many calls in a million seconds.
    Rate(u64),
}

/// A pattern against a limit: `calls` are spread over the time `over`, again every `every`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) pattern: Pattern,
    /// The period by which it goes.
    pub(crate) period: Span,
    /// When the run begins: at a window's edge.
    pub(crate) start: Time,
    /// When the first call comes, from there.
    first: Span,
    calls: u64,
    over: Span,
    every: Span,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The valid patterns.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        match text {
            "steady" => Ok(Self::Steady),
            "double" => Ok(Self::Double),
            "bursty" => Ok(Self::Bursty),
            _ => rate(text).map(Self::Rate).ok_or_else(|| {
                format!("write steady, double, bursty, or calls a second, such as 20 or 0.5, up to a million, with {RATE_DIGITS} digits behind the point at most")
            }),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steady => formatter.write_str("steady"),
            Self::Double => formatter.write_str("double"),
            Self::Bursty => formatter.write_str("bursty"),
            Self::Rate(rate) if rate % RATE_SECONDS == 0 => {
                write!(formatter, "{}", rate / RATE_SECONDS)
            }
            Self::Rate(rate) => {
                let digits = format!("{:06}", rate % RATE_SECONDS);
                write!(formatter, "{}.{}", rate / RATE_SECONDS, digits.trim_end_matches('0'))
            }
        }
    }
}

impl Traffic {
    /// Calls of `hits` each, against a limit of `requests` per `period`.
    ///
    /// # Errors
    /// A pattern that goes by the limit's rate, where that is none.
    pub(crate) fn new(
        pattern: Pattern,
        requests: u64,
        period: Span,
        hits: u64,
    ) -> Result<Self, String> {
        let micros = period.as_micros();
        if requests == 0 && !matches!(pattern, Pattern::Rate(_)) {
            return Err(format!(
                "a limit of 0 has no rate for {pattern} traffic; write a number of requests per second, such as 10"
            ));
        }
        let worth = micros.saturating_mul(hits);
        let (calls, over, every) = match pattern {
            Pattern::Steady => (1, 0, worth.div_ceil(requests)),
            Pattern::Double => (2 * requests, worth, worth),
            Pattern::Bursty => {
                ((2 * requests / hits).max(2), micros / BURST_PARTS, micros.saturating_mul(2))
            }
            Pattern::Rate(rate) => {
                let over = RATE_SECONDS * MICROS_PER_SECOND;
                (rate, over, over)
            }
        };
        let first = match pattern {
            Pattern::Bursty => micros - over / 2,
            _ => 0,
        };
        let start = BEGINNING.as_micros().div_ceil(micros);
        Ok(Self {
            pattern,
            period,
            start: Time::from_micros(start.saturating_mul(micros)),
            first: Span::from_micros(first),
            calls,
            over: Span::from_micros(over),
            every: Span::from_micros(every),
        })
    }

    /// When the call of that number comes.
    pub(crate) fn at(&self, index: u64) -> Time {
        let rounds = (index / self.calls).saturating_mul(self.every.as_micros());
        let part = u128::from(index % self.calls) * u128::from(self.over.as_micros());
        let part = u64::try_from(part / u128::from(self.calls)).unwrap_or(u64::MAX);
        self.start.plus(self.first).plus(Span::from_micros(rounds)).plus(Span::from_micros(part))
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, calls, over, every, .. } = self;
        let gap = Span::from_micros(over.as_micros() / calls);
        let is_even = over.as_micros().is_multiple_of(*calls);
        match pattern {
            Pattern::Steady => write!(formatter, "{pattern}: a call every {every}"),
            Pattern::Double if is_even => write!(formatter, "{pattern}: a call every {gap}"),
            Pattern::Double => write!(formatter, "{pattern}: {calls} calls every {over}"),
            Pattern::Bursty => write!(
                formatter,
                "{pattern}: {calls} calls within {over} around a window's edge, every {every}"
            ),
            Pattern::Rate(_) if is_even => {
                write!(formatter, "{pattern} calls a second: a call every {gap}")
            }
            Pattern::Rate(_) => write!(formatter, "{pattern} calls a second"),
        }
    }
}

/// Calls in a million seconds, from a number of calls a second.
fn rate(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > RATE_DIGITS {
        return None;
    }
    let whole: u64 = whole.parse().ok().filter(|&whole| whole <= 1_000_000)?;
    let fraction: u64 = format!("{fraction:0<RATE_DIGITS$}").parse().ok()?;
    Some(whole * RATE_SECONDS + fraction).filter(|&rate| rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pattern: Pattern, requests: u64, hits: u64) -> Vec<u64> {
        let traffic = Traffic::new(pattern, requests, Span::from_secs(1), hits);
        let traffic = traffic.expect("there is a rate");
        (0..6).map(|index| traffic.at(index).since(traffic.start).as_micros()).collect()
    }

    #[test]
    fn calls_come_as_the_pattern_says() {
        assert_eq!(
            times(Pattern::Steady, 3, 1),
            [0, 333_334, 666_668, 1_000_002, 1_333_336, 1_666_670]
        );
        assert_eq!(
            times(Pattern::Steady, 3, 3),
            [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]
        );
        assert_eq!(
            times(Pattern::Double, 2, 1),
            [0, 250_000, 500_000, 750_000, 1_000_000, 1_250_000]
        );
        assert_eq!(
            times(Pattern::Bursty, 2, 1),
            [950_000, 975_000, 1_000_000, 1_025_000, 2_950_000, 2_975_000]
        );
        assert_eq!(
            times(Pattern::Rate(500_000), 7, 1),
            [0, 2_000_000, 4_000_000, 6_000_000, 8_000_000, 10_000_000]
        );
    }

    #[test]
    fn a_rate_is_read_exactly() {
        assert_eq!(rate("20"), Some(20_000_000));
        assert_eq!(rate("0.000001"), Some(1));
        for wrong in ["", "0", "0.0", ".5", "-1", "1e3", "0.0000001", "1000001", "1.5.5", "fast"] {
            assert_eq!(rate(wrong), None, "{wrong}");
        }
        for text in ["20", "0.5", "0.000001"] {
            assert_eq!(Pattern::read(text).expect("a rate").to_string(), text);
        }
    }

    #[test]
    fn runs_begin_at_the_edge_of_a_window() {
        for secs in [1, 7, 3_600, 7 * 86_400, 100 * 365 * 86_400] {
            let traffic = Traffic::new(Pattern::Double, 1, Span::from_secs(secs), 1);
            let traffic = traffic.expect("there is a rate");
            assert!(
                traffic.start >= BEGINNING
                    && traffic.start.as_micros().is_multiple_of(secs * MICROS_PER_SECOND)
            );
        }
    }
}
