//! The values of `calendar` and `warn_at`, and amounts.

use std::sync::Arc;

use crate::limits::{
    AMOUNT_MAX, CalendarSpec, DAYS_OF_SHORTEST_MONTH, WARN_AT_MAX, WarnAt, Weekday,
};
use crate::rules::config::calendar::{CalendarError, check_zone, time_of_day};
use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::{Text, keys, values};
use crate::rules::config::tollgate::reader::{self, NOT_ELSEWHERE};
use crate::rules::config::tollgate::value::OptionValue;
use crate::rules::config::yaml::{Diagnostic, Location, Node};

keys! {
    /// Where calendar periods begin.
    pub(crate) enum CalendarKeys {
        /// IANA name of a time zone, such as `Europe/Berlin`
        time_zone: Text, required;
        /// Day that weeks begin on; default `monday`
        first_weekday: Weekday;
        /// Day that months begin on, 1 (default) to 28
        first_day: DayOfMonth;
        /// Local time that periods begin at, such as "06:00"; default "00:00"
        at: TimeOfDay;
    }
}

values! {
    /// A time zone, or a map.
    pub(crate) enum CalendarForm(schemas) = {"anyOf": [{"type": "string"},
        schemas.subschema_for::<CalendarKeys>()]};
    /// A day that every month has.
    pub(crate) enum DayOfMonth = {"type": "integer", "minimum": 1,
        "maximum": DAYS_OF_SHORTEST_MONTH};
    /// Hours and minutes.
    pub(crate) enum TimeOfDay = {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"};
    /// A whole number that is counted exactly.
    pub(crate) enum Amount = {"type": "integer", "minimum": 0, "maximum": AMOUNT_MAX};
    /// One percentage, or several.
    pub(crate) enum Percentages = {"anyOf": [
        {"type": "string", "pattern": "^(100|[1-9][0-9]?)%$"},
        {"type": "array", "minItems": 1, "maxItems": WARN_AT_MAX, "uniqueItems": true,
            "items": {"type": "string", "pattern": "^(100|[1-9][0-9]?)%$"}}]};
}

impl OptionValue for bool {
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        Some(reader::flag(node, key, findings))
    }

    fn display(&self) -> Arc<str> {
        self.to_string().into()
    }
}

impl OptionValue for WarnAt {
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let percent = |node: &Node| node.text().strip_suffix('%')?.parse().ok();
        let percents: Option<Vec<u8>> = match node.items() {
            Some(items) => items.iter().map(percent).collect(),
            None => percent(node).map(|percent| vec![percent]),
        };
        let warn_at = percents.and_then(|percents| Self::new(&percents));
        if warn_at.is_none() {
            let text = format!("`{key}` has 1 to {WARN_AT_MAX} different shares from 1% to 100%");
            findings.reject(node.location, text, "write `warn_at: 80%`, or `warn_at: [50%, 80%]`");
        }
        warn_at
    }

    fn display(&self) -> Arc<str> {
        match self.percents() {
            [_] => self.to_string().into(),
            _ => format!("[{self}]").into(),
        }
    }
}

impl OptionValue for CalendarSpec {
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let problems = findings.problem_count();
        let mut spec = Self::of("");
        if node.pairs().is_none() {
            if node.scalar().is_none() || node.is_null() {
                let text = "`calendar` must be a time zone or a map";
                let hint = "write `calendar: Europe/Berlin`, or `calendar: {time_zone: Europe/Berlin, at: \"06:00\"}`";
                findings.reject(node.location, text, hint);
                return None;
            }
            spec.time_zone = time_zone(node, key, findings)?;
            return Some(spec);
        }
        let findings = &mut findings.at(".calendar");
        for (key, value) in reader::map(node, CalendarKeys::KEYS, findings)? {
            match reader::key(key, CalendarKeys::KEYS, NOT_ELSEWHERE, findings) {
                key @ "time_zone" => {
                    spec.time_zone = time_zone(value, key, findings).unwrap_or_default();
                }
                key @ "first_weekday" => {
                    spec.first_weekday =
                        Weekday::read(value, key, findings).unwrap_or(spec.first_weekday);
                }
                key @ "first_day" => {
                    let day = u32::read(value, key, findings)?;
                    match u8::try_from(day) {
                        Ok(day @ 1..=DAYS_OF_SHORTEST_MONTH) => spec.first_day = day,
                        _ => report(&CalendarError::FirstDay(day), value.location, findings),
                    }
                }
                "at" => match time_of_day(value.text()) {
                    Ok(at) => spec.at = at,
                    Err(error) => report(&error, value.location, findings),
                },
                _ => {}
            }
        }
        if spec.time_zone.is_empty() && findings.problem_count() == problems {
            let problem = Diagnostic::new(node.location, "a calendar without `time_zone`");
            findings.problem(problem.hint("write one, such as `time_zone: Europe/Berlin` or UTC"));
        }
        Some(spec)
    }

    /// The shortest way to write it.
    fn display(&self) -> Arc<str> {
        let usual = Self::of(self.time_zone.clone());
        if *self == usual {
            return (&*self.time_zone).into();
        }
        let mut text = format!("{{time_zone: {}", self.time_zone);
        if self.first_weekday != usual.first_weekday {
            text += &format!(", first_weekday: {}", self.first_weekday.name());
        }
        if self.first_day != usual.first_day {
            text += &format!(", first_day: {}", self.first_day);
        }
        if self.at != usual.at {
            text += &format!(", at: \"{:02}:{:02}\"", self.at.0, self.at.1);
        }
        (text + "}").into()
    }
}

fn report(error: &CalendarError, location: Location, findings: &mut SourceFindings<'_>) {
    findings.problem(Diagnostic::new(location, error.to_string()));
}

fn time_zone(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Box<str>> {
    let name = reader::text(node, key, findings)?;
    let checked = check_zone(name).map_err(|error| report(&error, node.location, findings));
    checked.is_ok().then(|| name.into())
}
