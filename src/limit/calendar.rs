//! Calendar periods: days, weeks, months and years that begin at a local time of a time zone.
//!
//! A [`Calendar`] gets its periods from a function, so that nothing here needs a zone database. It
//! keeps the current period and the ones beside it: clocks of replicas and servers differ by
//! seconds, so most calls find theirs there.
//!
//! Days are converted as in Howard Hinnant's "chrono-compatible low-level date algorithms": a year
//! begins on March 1, so that a leap day is the last day of its year and no month needs a table.
//!
//! ```text
//! day of the year    0    31    61    92   122   153   184   214   245   275   306   337
//! month              Mar   Apr   May   Jun   Jul   Aug   Sep   Oct   Nov   Dec   Jan   Feb
//! ```

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::base::named_enum::named_enum;
use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::limit::unit::Unit;

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

/// A local date, as keys have it: `2026-10-01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    year: i16,
    month: i8,
    day: i8,
}

/// A calendar period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// The first instant whose local time is not before the start.
    pub start: Time,
    /// The start of the next period.
    pub end: Time,
    /// The local date of its first day.
    pub date: Date,
}

/// Periods of one kind in a time zone. Equal to those of the same kind and [`CalendarSpec`].
pub struct Calendar {
    spec: CalendarSpec,
    unit: Unit,
    months: u32,
    period_at: Box<dyn Fn(Time) -> Period + Send + Sync>,
    utc_offset: Box<dyn Fn(Time) -> i32 + Send + Sync>,
    /// The period of the latest call that was not in it, between those before and after.
    cached: ArcSwap<[Period; 3]>,
}

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

impl Date {
    /// A date that exists.
    pub const fn new(year: i16, month: i8, day: i8) -> Self {
        Self { year, month, day }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day } = self;
        write!(formatter, "{year:04}-{month:02}-{day:02}")
    }
}

impl Period {
    /// Midnight UTC of its date, from 1970 on: identifies the period in the state of a counter,
    /// whatever the zone is.
    pub fn nominal_start(&self) -> Time {
        let Date { year, month, day } = self.date;
        let months = (i64::from(year) - 1_970) * 12 + i64::from(month) - 1;
        u64::try_from(months).map_or(Time::default(), |months| {
            let secs = month_start(months) + u64::from(day.unsigned_abs() - 1) * SECS_PER_DAY;
            Time::from_micros(secs * MICROS_PER_SECOND)
        })
    }

    fn contains(&self, at: Time) -> bool {
        self.start <= at && at < self.end
    }
}

impl Calendar {
    /// The calendar whose periods a function finds, and the seconds that local time is ahead of UTC
    /// then. `months` is the length of a month period, else 1.
    pub fn new(
        spec: CalendarSpec,
        unit: Unit,
        months: u32,
        period_at: impl Fn(Time) -> Period + Send + Sync + 'static,
        utc_offset: impl Fn(Time) -> i32 + Send + Sync + 'static,
    ) -> Self {
        let cached = ArcSwap::from_pointee([period_at(Time::default()); 3]);
        Self {
            spec,
            unit,
            months,
            period_at: Box::new(period_at),
            utc_offset: Box::new(utc_offset),
            cached,
        }
    }

    /// The period at a time.
    pub fn period(&self, at: Time) -> Period {
        let cached = self.cached.load();
        if let Some(period) = cached.iter().find(|period| period.contains(at)) {
            return *period;
        }
        let period = (self.period_at)(at);
        let just_before = period.start.as_micros().saturating_sub(1);
        let before = (self.period_at)(Time::from_micros(just_before));
        let after = (self.period_at)(period.end);
        self.cached.store(Arc::new([before, period, after]));
        period
    }

    /// Day, week, month or year.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The months of a period of months, counted from January; else 1.
    pub fn months(&self) -> u32 {
        self.months
    }

    /// Where its periods begin. What its unit does not need has the default.
    pub fn spec(&self) -> &CalendarSpec {
        &self.spec
    }

    /// The time in RFC 3339 with the offset of the zone, to a second.
    pub fn to_rfc3339(&self, at: Time) -> String {
        let offset = (self.utc_offset)(at);
        let micros = i64::from(offset) * MICROS_PER_SECOND.cast_signed();
        let local = Time::from_micros(at.as_micros().saturating_add_signed(micros));
        let (local, minutes) = (local.to_rfc3339_secs(), offset.unsigned_abs() / 60);
        match (offset, local.trim_end_matches('Z')) {
            (0, _) => local,
            (1.., local) => format!("{local}+{:02}:{:02}", minutes / 60, minutes % 60),
            (_, local) => format!("{local}-{:02}:{:02}", minutes / 60, minutes % 60),
        }
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

const SECS_PER_DAY: u64 = 86_400;
/// Days from March 1 of year 0 to January 1, 1970.
const DAYS_TO_EPOCH: u64 = 719_468;
/// Days of 400 years, after which leap years repeat.
const DAYS_PER_ERA: u64 = 146_097;
const YEARS_PER_ERA: u64 = 400;
const MONTHS_PER_YEAR: u64 = 12;
/// Months from January of year 0 to January 1970.
const MONTHS_TO_EPOCH: u64 = 1_970 * MONTHS_PER_YEAR;

/// The calendar month that a second lies in, as the number of months since January 1970.
pub const fn month_of(secs: u64) -> u64 {
    let days = secs / SECS_PER_DAY + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    // January and February belong to the year before. A month is counted from January of year 0,
    // which has index 0.
    (era * YEARS_PER_ERA + year_of_era) * MONTHS_PER_YEAR + months_since_march + 2 - MONTHS_TO_EPOCH
}

/// The first second of a month that [`month_of`] returned, or of the one after it.
pub const fn month_start(month: u64) -> u64 {
    let months = month + MONTHS_TO_EPOCH - 2;
    let (year, months_since_march) = (months / MONTHS_PER_YEAR, months % MONTHS_PER_YEAR);
    let (era, year_of_era) = (year / YEARS_PER_ERA, year % YEARS_PER_ERA);
    let day_of_year = (153 * months_since_march + 2) / 5;
    let day_of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * DAYS_PER_ERA + day_of_era - DAYS_TO_EPOCH) * SECS_PER_DAY
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    /// The last second of the year 9999, up to which humantime formats.
    const SECS_MAX: u64 = 253_402_300_799;

    fn date(secs: u64) -> String {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(secs)).to_string()
    }

    /// The month that a second lies in, as a library formats it.
    fn month_by_library(secs: u64) -> u64 {
        let date = date(secs);
        let number = |part: &str| part.parse::<u64>().expect("a number");
        (number(&date[..4]) - 1970) * 12 + number(&date[5..7]) - 1
    }

    #[test]
    fn months_start_and_end_where_the_calendar_says() {
        for (within, starts, next) in [
            (
                "1970-01-01T00:00:00Z",
                "1970-01-01T00:00:00Z",
                "1970-02-01T00:00:00Z",
            ),
            (
                "2024-02-29T23:59:59Z",
                "2024-02-01T00:00:00Z",
                "2024-03-01T00:00:00Z",
            ),
            (
                "2026-02-28T23:59:59Z",
                "2026-02-01T00:00:00Z",
                "2026-03-01T00:00:00Z",
            ),
            (
                "2100-02-28T12:00:00Z",
                "2100-02-01T00:00:00Z",
                "2100-03-01T00:00:00Z",
            ),
            (
                "2000-02-29T12:00:00Z",
                "2000-02-01T00:00:00Z",
                "2000-03-01T00:00:00Z",
            ),
            (
                "2026-12-31T23:59:59Z",
                "2026-12-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
            ),
            (
                "2027-01-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
                "2027-02-01T00:00:00Z",
            ),
            (
                "2026-08-31T00:00:00Z",
                "2026-08-01T00:00:00Z",
                "2026-09-01T00:00:00Z",
            ),
            (
                "2026-04-30T23:59:59Z",
                "2026-04-01T00:00:00Z",
                "2026-05-01T00:00:00Z",
            ),
        ] {
            let time = humantime::parse_rfc3339(within)
                .expect("a date")
                .duration_since(UNIX_EPOCH)
                .expect("after 1970");
            let month = month_of(time.as_secs());
            assert_eq!(
                (date(month_start(month)), date(month_start(month + 1))),
                (starts.to_owned(), next.to_owned()),
                "{within}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_month_contains_its_seconds_and_is_the_one_a_library_names(secs in 0..SECS_MAX) {
            let month = month_of(secs);
            let (start, end) = (month_start(month), month_start(month + 1));
            prop_assert_eq!(month, month_by_library(secs));
            prop_assert!(start <= secs && secs < end, "{} in {}..{}", secs, start, end);
            let secs_in_month = end - start;
            prop_assert!((28..=31).contains(&(secs_in_month / SECS_PER_DAY)));
            prop_assert_eq!(secs_in_month % SECS_PER_DAY, 0);
            prop_assert_eq!(month_of(start), month);
            prop_assert_eq!(month_of(end - 1), month);
            prop_assert_eq!(month_of(end), month + 1);
        }
    }
}
