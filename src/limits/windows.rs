//! The windows of a fixed window.

use std::cmp::Ordering;

use crate::base::time::{Span, Time};
use crate::limits::calendar::{Calendar, Window};
use crate::limits::unit::Unit;

/// How time is cut into windows. For all other algorithms a month is 30 days: sliding windows, logs
/// and buckets count any 30 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Windows {
    /// Multiples of the period, counted from the epoch.
    #[default]
    Aligned,
    /// Calendar months in UTC, with the keys of envoyproxy/ratelimit:
    /// USE_CALENDAR_MONTH_RATE_LIMIT.
    UtcMonths(&'static Calendar),
    /// The periods of a calendar.
    Calendar(&'static Calendar),
}

impl Windows {
    /// The window at `now`, of this period if windows are aligned.
    pub(super) fn at(self, period: Span, now: Time) -> Window {
        match self {
            Self::Aligned => {
                let micros = period.as_micros();
                let start = Time::from_micros(now.as_micros() / micros * micros);
                Window { id: start, start, end: start.plus(period), date: None }
            }
            Self::UtcMonths(calendar) => Window { date: None, ..calendar.period(now) },
            Self::Calendar(calendar) => calendar.period(now),
        }
    }

    /// Whether the window with this `id` is one of these: not after a change of the first day.
    pub(crate) fn has(self, id: Time) -> bool {
        match self {
            Self::Calendar(calendar) if calendar.unit != Unit::Day => {
                // The others last for a week or more, and begin within 36 h of midnight UTC.
                let within = id.plus(Span::from_secs(48 * 3_600));
                calendar.period(within).id == id
            }
            Self::Aligned | Self::UtcMonths(_) | Self::Calendar(_) => true,
        }
    }

    /// The end of the window with this `id`, which is that of `now` or beside it.
    pub(super) fn end(self, period: Span, id: Time, now: Time) -> Time {
        let Self::Calendar(calendar) = self else {
            return self.at(period, id).end;
        };
        let current = calendar.period(now);
        match id.cmp(&current.id) {
            Ordering::Less => current.start,
            Ordering::Equal => current.end,
            Ordering::Greater => calendar.period(current.end).end,
        }
    }
}
