//! Units of periods, kinds of months, and the ticks that states measure time in.

use std::fmt;

use crate::time::{MICROS_PER_SECOND, Span, Time};

/// The unit of a period. A month has 30 days and a year 365, and weeks begin on Thursdays, because
/// windows are aligned to the epoch as in envoyproxy/ratelimit; see also [`Months::Calendar`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s
    Second,
    /// 60 s
    Minute,
    /// 3,600 s
    Hour,
    /// 86,400 s
    Day,
    /// 7 days
    Week,
    /// 30 days; see [`Months`]
    Month,
    /// 365 days
    Year,
}

/// The month of a fixed window whose period is one [`Unit::Month`]. For every other limit a month is
/// 30 days: sliding windows, logs and buckets count any 30 days, and calendar months of different
/// lengths cannot be multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Months {
    /// 30 days, counted from the epoch.
    #[default]
    ThirtyDays,
    /// A calendar month in UTC.
    Calendar,
}

/// The resolution of the time in a counter's state: the finest with which its numbers stay exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tick {
    /// 1 µs
    Micro,
    /// 1,000 µs
    Milli,
    /// 1,000,000 µs
    Second,
}

impl Unit {
    /// Shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// Length.
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

    /// As rules write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Case-insensitive.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit of exactly this length.
    pub fn of(period: Span) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.span() == period)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Tick {
    /// Finest first.
    pub(super) const ALL: [Self; 3] = [Self::Micro, Self::Milli, Self::Second];

    /// Length.
    pub const fn span(self) -> Span {
        Span::from_micros(match self {
            Self::Micro => 1,
            Self::Milli => 1_000,
            Self::Second => MICROS_PER_SECOND,
        })
    }

    /// As counter keys write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Micro => "us",
            Self::Milli => "ms",
            Self::Second => "s",
        }
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
