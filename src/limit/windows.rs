//! The windows of a fixed window.

use std::cmp::Ordering;

use crate::base::time::{MICROS_PER_SECOND, Span, Time};
use crate::limit::calendar::{Calendar, Date, month_of, month_start};
use crate::limit::unit::Unit;

/// How time is cut into windows. For all other algorithms a month is 30 days: sliding windows, logs
/// and buckets count any 30 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Windows {
    /// Multiples of the period, counted from the epoch.
    #[default]
    Aligned,
    /// Calendar months in UTC, with the keys of envoyproxy/ratelimit:
    /// USE_CALENDAR_MONTH_RATE_LIMIT.
    UtcMonths,
    /// The periods of a calendar.
    Calendar(&'static Calendar),
}

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Identifies the window in the state of a counter: its start, or for a calendar midnight UTC
    /// of its local date, which a change of the zone keeps.
    pub id: Time,
    /// The first instant of the window.
    pub start: Time,
    /// The first instant of the next window.
    pub end: Time,
    /// The local date of its first day, with a calendar.
    pub date: Option<Date>,
}

impl Windows {
    /// The window at `now`, of this period if windows are aligned.
    pub(super) fn at(self, period: Span, now: Time) -> Window {
        let (start, end) = match self {
            Self::Aligned => {
                let micros = period.as_micros();
                let start = Time::from_micros(now.as_micros() / micros * micros);
                (start, start.plus(period))
            }
            Self::UtcMonths => {
                let month = month_of(now.as_micros() / MICROS_PER_SECOND);
                let begins = |month| Time::from_micros(month_start(month) * MICROS_PER_SECOND);
                (begins(month), begins(month + 1))
            }
            Self::Calendar(calendar) => {
                let period = calendar.period(now);
                return Window {
                    id: period.nominal_start(),
                    start: period.start,
                    end: period.end,
                    date: Some(period.date),
                };
            }
        };
        Window {
            id: start,
            start,
            end,
            date: None,
        }
    }

    /// Whether the window with this `id` is one of these: not after a change of the first day.
    pub(crate) fn has(self, id: Time) -> bool {
        match self {
            Self::Calendar(calendar) if calendar.unit() != Unit::Day => {
                // The others last for a week or more, and begin within 36 h of midnight UTC.
                let within = id.plus(Span::from_secs(48 * 3_600));
                calendar.period(within).nominal_start() == id
            }
            Self::Aligned | Self::UtcMonths | Self::Calendar(_) => true,
        }
    }

    /// The end of the window with this `id`, which is that of `now` or beside it.
    pub(super) fn end(self, period: Span, id: Time, now: Time) -> Time {
        let Self::Calendar(calendar) = self else {
            return self.at(period, id).end;
        };
        let current = calendar.period(now);
        match id.cmp(&current.nominal_start()) {
            Ordering::Less => current.start,
            Ordering::Equal => current.end,
            Ordering::Greater => calendar.period(current.end).end,
        }
    }
}
