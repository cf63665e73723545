//! Units of periods, and the ticks that states measure time in.

use std::fmt;

use crate::base::named_enum::named_enum;
use crate::base::time::{MICROS_PER_SECOND, Span, Time};

named_enum! {
    /// The unit of a period, shortest first. A month has 30 days and a year 365, and weeks begin on
    /// Thursdays, because windows are aligned to the epoch as in envoyproxy/ratelimit; see also
    /// [`Windows::UtcMonths`](crate::limits::Windows::UtcMonths).
    pub enum Unit {
        /// 1 s
        Second = "second",
        /// 60 s
        Minute = "minute",
        /// 3,600 s
        Hour = "hour",
        /// 86,400 s
        Day = "day",
        /// 7 days
        Week = "week",
        /// 30 days; see [`Windows`](crate::limits::Windows)
        Month = "month",
        /// 365 days
        Year = "year",
    }
}

named_enum! {
    /// The resolution of the time in a counter's state: the finest with which its numbers stay
    /// exact.
    pub enum Tick {
        /// 1 µs
        Micro = "us",
        /// 1,000 µs
        Milli = "ms",
        /// 1,000,000 µs
        Second = "s",
    }
}

impl Unit {
    /// The length of the unit.
    pub const fn span(self) -> Span {
        Span::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }

    /// The unit of exactly this length.
    pub(crate) fn of(period: Span) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.span() == period)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Tick {
    /// The length of the unit.
    pub const fn span(self) -> Span {
        Span::from_micros(match self {
            Self::Micro => 1,
            Self::Milli => 1_000,
            Self::Second => MICROS_PER_SECOND,
        })
    }

    /// Whole ticks since the epoch.
    pub const fn since_epoch(self, time: Time) -> u64 {
        time.as_micros() / self.span().as_micros()
    }

    /// The start of a tick.
    pub const fn begins(self, tick: u64) -> Time {
        Time::from_micros(tick.saturating_mul(self.span().as_micros()))
    }
}
