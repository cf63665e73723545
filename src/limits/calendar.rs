//! Calendar periods: days, weeks, months and years that begin at a local time of a time zone.
//!
//! A period begins at the first instant whose local time is not before its start: the end of a gap,
//! or the first of two. So a clock that goes back across the start does not reopen the period that
//! ended, and a date that is skipped has no day.
//!
//! ```text
//! Asia/Beirut, 29 March 2026   23:59 ─┐                     a day begins at 01:00
//!                                     └─ 01:00 ──▶
//! Asia/Amman, 29 October 2021  00:00 ── 00:59 ─┐            the day began at the first midnight
//!                                        00:00 └─ 00:00 ──▶
//! ```
//!
//! A [`Calendar`] gets its zone from `config/calendar.rs`, so that nothing here needs a zone
//! database. It keeps the current period and the ones beside it: clocks of replicas and servers
//! differ by seconds, so most calls find theirs there.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::civil::{Date, DateTime};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan as _};

use crate::base::named_enum::named_enum;
use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::limits::unit::Unit;

named_enum! {
    /// The day that weeks begin on.
    pub enum Weekday {
        /// As in ISO 8601
        Monday = "monday",
        /// One day later
        Tuesday = "tuesday",
        /// Two days later
        Wednesday = "wednesday",
        /// Three days later
        Thursday = "thursday",
        /// Four days later
        Friday = "friday",
        /// Five days later
        Saturday = "saturday",
        /// Six days later
        Sunday = "sunday",
    }
}

/// Every month has as many days.
pub const DAYS_OF_SHORTEST_MONTH: u8 = 28;

/// Where periods begin.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CalendarSpec {
    /// An IANA name.
    pub time_zone: Box<str>,
    /// Of weeks.
    pub first_weekday: Weekday,
    /// Of months: 1 to [`DAYS_OF_SHORTEST_MONTH`].
    pub first_day: u8,
    /// The local time that the first day of a period begins at: hour, to 23, and minute, to 59.
    pub at: (u8, u8),
}

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// Periods of one kind in a time zone. Equal to those of the same kind and [`CalendarSpec`].
pub struct Calendar {
    /// Where its periods begin. What its unit does not need has the default.
    pub spec: CalendarSpec,
    /// Day, week, month or year.
    pub unit: Unit,
    /// The months of a period of months, counted from January; else 1.
    pub months: u32,
    zone: TimeZone,
    /// The period of the latest call that was not in it, between those before and after.
    cached: ArcSwap<[Window; 3]>,
}

/// The first second of the year 9000. Later times have the period of this one.
pub(crate) const LAST_SECS: i64 = 221_845_392_000;

/// No local time differs more from UTC.
pub(crate) const LARGEST_OFFSET_SECS: i64 = 26 * 3_600;

impl CalendarSpec {
    /// Periods that begin at local midnight, on a Monday or the first of a month.
    pub fn of(time_zone: impl Into<Box<str>>) -> Self {
        Self {
            time_zone: time_zone.into(),
            first_weekday: Weekday::Monday,
            first_day: 1,
            at: (0, 0),
        }
    }
}

impl Calendar {
    /// The calendar of a valid definition in the zone of its name.
    pub(crate) fn new(spec: CalendarSpec, unit: Unit, months: u32, zone: TimeZone) -> Self {
        Self { spec, unit, months, zone, cached: ArcSwap::default() }
    }

    /// The period at a time. Its id is midnight UTC of its date, from 1970 on.
    pub fn period(&self, at: Time) -> Window {
        let cached = self.cached.load();
        let is_current = |period: &&Window| period.start <= at && at < period.end;
        if let Some(period) = cached.iter().find(is_current) {
            return *period;
        }
        let period = self.find(at);
        let just_before = period.start.as_micros().saturating_sub(1);
        let before = self.find(Time::from_micros(just_before));
        let after = self.find(period.end);
        self.cached.store(Arc::new([before, period, after]));
        period
    }

    /// The time in RFC 3339 with the offset of the zone, to a second.
    pub fn to_rfc3339(&self, at: Time) -> String {
        let at = timestamp(secs(at));
        let offset = self.zone.to_offset(at);
        if offset == Offset::UTC {
            at.to_string()
        } else {
            at.display_with_offset(offset).to_string()
        }
    }

    /// The period at a time, without the cache.
    pub(crate) fn find(&self, at: Time) -> Window {
        let secs = secs(at);
        let local = secs + self.offset(secs) - self.day_start();
        // The local time is not before the start of this date, so its period has begun. So may have
        // later ones, if the clock went back since.
        let mut first = self.first_date(Offset::UTC.to_datetime(timestamp(local)).date());
        loop {
            let next = self.next(first);
            let end = self.start(next);
            if end > secs {
                let is_last = secs == LAST_SECS;
                return Window {
                    id: time(midnight(first)),
                    start: time(self.start(first)),
                    end: if is_last { Time::from_micros(u64::MAX) } else { time(end) },
                    date: Some(first),
                };
            }
            first = next;
        }
    }

    /// The first date of the period with a date.
    fn first_date(&self, date: Date) -> Date {
        match self.unit {
            Unit::Week => {
                let day = date.weekday().to_monday_zero_offset();
                let into_week = (day - self.spec.first_weekday as i8).rem_euclid(7);
                date.saturating_sub(into_week.days())
            }
            Unit::Month => {
                let into_month = i64::from(self.spec.first_day - 1).days();
                let month = date.saturating_sub(into_month).first_of_month();
                let months_before = i64::from(month.month() - 1) % i64::from(self.months);
                let first = month.saturating_sub(months_before.months());
                first.saturating_add(into_month)
            }
            Unit::Year => date.first_of_year(),
            _ => date,
        }
    }

    /// The first date of the next period.
    fn next(&self, first: Date) -> Date {
        first.saturating_add(match self.unit {
            Unit::Week => 1.week(),
            Unit::Month => i64::from(self.months).months(),
            Unit::Year => 1.year(),
            _ => 1.day(),
        })
    }

    /// The first second whose local time is not before the start of a period.
    fn start(&self, first: Date) -> i64 {
        let local = midnight(first) + self.day_start();
        // Offsets change at `from`; the first is before any that can matter.
        let mut from = local - LARGEST_OFFSET_SECS;
        loop {
            let start = from.max(local - self.offset(from));
            let change = self.zone.following(timestamp(from)).next();
            match change.map(|change| change.timestamp().as_second()) {
                Some(change) if change <= start => from = change,
                _ => return start,
            }
        }
    }

    /// Seconds from midnight to the start of a period.
    fn day_start(&self) -> i64 {
        let (hour, minute) = self.spec.at;
        i64::from(hour) * 3_600 + i64::from(minute) * 60
    }

    /// How many seconds local time is ahead of UTC.
    fn offset(&self, secs: i64) -> i64 {
        self.zone.to_offset(timestamp(secs)).seconds().into()
    }

    fn definition(&self) -> (&CalendarSpec, Unit, u32) {
        (&self.spec, self.unit, self.months)
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.definition() == other.definition()
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.definition().hash(state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.definition().fmt(formatter)
    }
}

/// Seconds since the epoch, within the range of dates.
fn secs(at: Time) -> i64 {
    let secs = i64::try_from(at.as_micros() / MICROS_PER_SECOND);
    secs.map_or(LAST_SECS, |secs| secs.min(LAST_SECS))
}

fn timestamp(secs: i64) -> Timestamp {
    Timestamp::from_second(secs).expect("it is before the year 9999")
}

/// Midnight UTC of a date, in seconds since the epoch.
fn midnight(date: Date) -> i64 {
    let midnight = Offset::UTC.to_timestamp(DateTime::from(date));
    midnight.expect("it is before the year 9999").as_second()
}

/// Not before the epoch.
pub(crate) fn time(secs: i64) -> Time {
    Time::from_micros(u64::try_from(secs).unwrap_or(0) * MICROS_PER_SECOND)
}
