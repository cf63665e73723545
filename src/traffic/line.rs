//! One line: a request and its time, as Tollgate or Envoy writes them.
//!
//! ```text
//! {"time": "2026-08-01T12:00:00Z", "domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "42"}]}]}
//! {"time": "2026-08-01T12:00:00Z", "ratelimit": {"domain": "shop", "descriptors": [{"entries": ["user=42"]}]}}
//! ```
//!
//! The second form is a line of Envoy's access log. The dynamic metadata is an object in its JSON
//! format, and a text in its text format. It is null for requests that asked for no limit.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde_json::Deserializer as Json;

use crate::api::convert::{self, wire_unit};
use crate::limit::EXACT_MAX;
use crate::rules::query;
use crate::time::Time;
use crate::traffic::fields::{Clear, Fields, Flag, List, Number, Object, Text, seed};

pub(crate) use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor as Descriptor;
pub(crate) use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride as Limit,
};
pub(crate) use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest as Request;

/// Times are exact before this one, in the year 2255. A number beyond is not in seconds.
const SECONDS_MAX: f64 = 9_007_199_254.0;
const NO_TIME: &str = "it has no `time`";

/// The last line that was read.
#[derive(Debug, Default)]
pub(super) struct Line {
    time: Option<Time>,
    message: Message,
    /// Whether it has a field for the metadata of Envoy's filter.
    is_log: bool,
}

/// A request whose memory is reused.
#[derive(Debug, Default)]
struct Message {
    request: Request,
    /// Whether the descriptors are those of this line.
    has_descriptors: bool,
}

/// A time in RFC 3339, or seconds since the epoch.
struct When<'t>(&'t mut Option<Time>);

impl Line {
    /// Reads a line; `None` if it is about no request.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<Option<Time>, String> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        (self.time, self.is_log) = (None, false);
        self.message.clear();
        let mut reader = Json::from_slice(line);
        Object(&mut *self)
            .deserialize(&mut reader)
            .and_then(|()| reader.end())
            .map_err(|error| located(&error))?;
        if self.is_log && self.message.request.domain.is_empty() {
            return Ok(None);
        }
        if !self.message.has_descriptors {
            self.message.request.descriptors.clear();
        }
        convert::validate(&self.message.request)?;
        Ok(Some(self.time.ok_or(NO_TIME)?))
    }

    /// The request of the line.
    pub(super) fn query(&self) -> query::Query<'_> {
        convert::query(&self.message.request)
    }
}

impl Message {
    fn clear(&mut self) {
        self.request.domain.clear();
        self.request.hits_addend = 0;
        self.has_descriptors = false;
    }
}

impl Fields for Line {
    const NAMES: &'static [&'static str] = &[
        "domain",
        "descriptors",
        "hits_addend",
        "hitsAddend",
        "time",
        "ratelimit",
    ];
    const EXPECTED: &'static str = "an object with a time and a request";

    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: usize,
        values: &mut A,
    ) -> Result<(), A::Error> {
        match Self::NAMES[name] {
            "time" => values.next_value_seed(When(&mut self.time)),
            "ratelimit" => {
                self.is_log = true;
                values.next_value_seed(Object(&mut self.message))
            }
            // The first names are those of a request.
            _ => self.message.field(name, values),
        }
    }
}

impl Fields for Message {
    const NAMES: &'static [&'static str] = &["domain", "descriptors", "hits_addend", "hitsAddend"];
    const EXPECTED: &'static str = "a request with a domain and descriptors";

    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: usize,
        values: &mut A,
    ) -> Result<(), A::Error> {
        match Self::NAMES[name] {
            "domain" => values.next_value_seed(Text(&mut self.request.domain)),
            "descriptors" => {
                self.has_descriptors = true;
                values.next_value_seed(List(&mut self.request.descriptors))
            }
            _ => {
                self.request.hits_addend = number(values, "hits_addend")?;
                Ok(())
            }
        }
    }

    /// Metadata as Envoy writes it into a text: JSON, or `-` if there is none.
    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        if matches!(text, "" | "-" | "null") {
            return Ok(());
        }
        let mut reader = Json::from_str(text);
        Object(self)
            .deserialize(&mut reader)
            .and_then(|()| reader.end())
            .map_err(|error| E::custom(format_args!("in the text: {}", located(&error))))
    }
}

impl Fields for Descriptor {
    const NAMES: &'static [&'static str] = &[
        "entries",
        "limit",
        "hits_addend",
        "hitsAddend",
        "is_negative_hits",
        "isNegativeHits",
    ];
    const EXPECTED: &'static str = "a descriptor with entries";

    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: usize,
        values: &mut A,
    ) -> Result<(), A::Error> {
        match Self::NAMES[name] {
            "entries" => values.next_value_seed(List(&mut self.entries)),
            "limit" => values.next_value_seed(Object(&mut self.limit)),
            "hits_addend" | "hitsAddend" => values.next_value_seed(Number(&mut self.hits_addend)),
            _ => values.next_value_seed(Flag(&mut self.is_negative_hits)),
        }
    }
}

impl Clear for Descriptor {
    fn clear(&mut self) {
        self.entries.clear();
        self.limit = None;
        self.hits_addend = None;
        self.is_negative_hits = false;
    }
}

impl Fields for Entry {
    const NAMES: &'static [&'static str] = &["key", "value"];
    const EXPECTED: &'static str = "an entry with a key and a value";

    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: usize,
        values: &mut A,
    ) -> Result<(), A::Error> {
        match Self::NAMES[name] {
            "key" => values.next_value_seed(Text(&mut self.key)),
            _ => values.next_value_seed(Text(&mut self.value)),
        }
    }

    /// An entry of metadata: `key=value`.
    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        let entry = query::Entry::parse(text).map_err(E::custom)?;
        self.key.extend_from_slice(entry.key);
        self.value.extend_from_slice(entry.value);
        Ok(())
    }
}

impl Clear for Entry {
    fn clear(&mut self) {
        self.key.clear();
        self.value.clear();
    }
}

impl Fields for Option<Limit> {
    const NAMES: &'static [&'static str] = &["requests_per_unit", "requestsPerUnit", "unit"];
    const EXPECTED: &'static str = "a limit with requests_per_unit and unit";

    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: usize,
        values: &mut A,
    ) -> Result<(), A::Error> {
        let limit = self.get_or_insert_default();
        if Self::NAMES[name] == "unit" {
            let mut unit = Vec::new();
            values.next_value_seed(Text(&mut unit))?;
            limit.unit = wire_unit(&String::from_utf8_lossy(&unit)).map_err(A::Error::custom)?;
            return Ok(());
        }
        limit.requests_per_unit = number(values, "requests_per_unit")?;
        Ok(())
    }

    /// A limit of metadata, in protobuf's text form: `requests_per_unit:5 unit:MINUTE`.
    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        let limit = self.get_or_insert_default();
        for field in text.split_whitespace() {
            match field.split_once(':') {
                Some(("requests_per_unit", number)) => {
                    limit.requests_per_unit = number.parse().map_err(E::custom)?;
                }
                Some(("unit", unit)) => limit.unit = wire_unit(unit).map_err(E::custom)?,
                _ => return Err(E::invalid_value(Unexpected::Str(text), &Self::EXPECTED)),
            }
        }
        Ok(())
    }
}

/// Reads a number of 32 bits; null is 0.
fn number<'de, A: MapAccess<'de>>(values: &mut A, name: &str) -> Result<u32, A::Error> {
    let mut number = None;
    values.next_value_seed(Number(&mut number))?;
    let number = u32::try_from(number.unwrap_or(0));
    number.map_err(|_| A::Error::custom(format_args!("{name} is above 2^32 - 1")))
}

seed!(When);

impl Visitor<'_> for When<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a time of RFC 3339 or seconds since 1970, before the year 2255")
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<(), E> {
        let micros = seconds.checked_mul(1_000_000);
        match micros.filter(|&micros| micros < EXACT_MAX) {
            Some(micros) => *self.0 = Some(Time::from_micros(micros)),
            None => return Err(E::invalid_value(Unexpected::Unsigned(seconds), &self)),
        }
        Ok(())
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 2^53"
    )]
    fn visit_f64<E: Error>(self, seconds: f64) -> Result<(), E> {
        if !(0.0..SECONDS_MAX).contains(&seconds) {
            return Err(E::invalid_value(Unexpected::Float(seconds), &self));
        }
        *self.0 = Some(Time::from_micros((seconds * 1e6).round() as u64));
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if let Some(time) = Time::from_rfc3339(text) {
            if time.as_micros() >= EXACT_MAX {
                return Err(E::invalid_value(Unexpected::Str(text), &self));
            }
            *self.0 = Some(time);
            return Ok(());
        }
        match text.parse() {
            Ok(seconds) => self.visit_f64(seconds),
            Err(_) => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

/// An error without its line, which is always the first.
fn located(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (line, column) = (error.line(), error.column());
    let end = format!(" at line {line} column {column}");
    match text.strip_suffix(&*end) {
        Some(text) => format!("{text}, column {column}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Hits;

    /// The time, the domain, and each descriptor: its entries, hits and limit.
    fn shown(line: &str) -> String {
        let mut read = Line::default();
        // What was read before is gone.
        let before = r#"{"time": 1, "domain": "d", "hits_addend": 3, "descriptors": [{"entries": [{"key": "a", "value": "b"}, {"key": "c"}], "hits_addend": 5, "is_negative_hits": true, "limit": {"unit": "DAY", "requests_per_unit": 1}}, {"entries": ["x=y"]}]}"#;
        read.read(before.as_bytes()).expect("it is valid");
        let time = match read.read(line.as_bytes()) {
            Ok(Some(time)) => time.to_rfc3339(),
            Ok(None) => return "nothing".to_owned(),
            Err(error) => return error,
        };
        let query = read.query();
        let mut text = format!("{time} {}", crate::text::Text(query.domain));
        for descriptor in &query.descriptors {
            for entry in &descriptor.entries {
                text += &format!(" {entry}");
            }
            match descriptor.hits {
                Hits::Add(1) => {}
                other => text += &format!(" {other:?}"),
            }
            if let Some(limit) = descriptor.limit {
                let unit = limit.unit.map_or("?", |unit| unit.name());
                text += &format!(" {}/{unit}", limit.requests_per_unit);
            }
            text += ";";
        }
        text
    }

    /// A line => what is read of it.
    const LINES: &str = r#"
{"time": "2026-08-01T12:00:00Z", "domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "42"}]}]} => 2026-08-01T12:00:00Z shop user=42;
{"time": 1785585600.25, "domain": "shop", "descriptors": [{"entries": [{"key": "a", "value": "1"}, {"key": "b"}]}, {"entries": [{"key": "c", "value": "=\"\n"}]}]} => 2026-08-01T12:00:00.250000Z shop a=1 b=; c=="
{"time": "1785585600", "domain": "shop", "descriptors": [{"entries": [{"key": "a"}]}], "hits_addend": 2, "other": [{}]} => 2026-08-01T12:00:00Z shop a= Add(2);
{"hitsAddend": "2", "descriptors": [{"entries": [{"key": "a"}], "hitsAddend": 0}, {"isNegativeHits": true}], "domain": "shop", "time": 0} => 1970-01-01T00:00:00Z shop a= Peek; Refund(2);
{"time": 0, "domain": "d", "descriptors": [{"entries": [{"key": "a"}], "limit": {"requestsPerUnit": 5, "unit": "MINUTE"}}]} => 1970-01-01T00:00:00Z d a= 5/minute;
{"time": 0, "method": "GET", "ratelimit": {"domain": "d", "descriptors": [{"entries": ["a=b=c", "e"], "limit": "requests_per_unit:5 unit:HOUR", "hitsAddend": 3.0}], "metadata": {"x": 1}}} => 1970-01-01T00:00:00Z d a=b=c e= Add(3) 5/hour;
{"time": 0, "ratelimit": "{\"domain\":\"d\",\"descriptors\":[{\"entries\":[\"a=b\"]}],\"hitsAddend\":7}"} => 1970-01-01T00:00:00Z d a=b Add(7);
{"time": 0, "ratelimit": null} => nothing
{"time": 0, "ratelimit": "-"} => nothing
{"time": 0, "ratelimit": {}} => nothing
  => nothing
{"time": 0, "domain": "d"} => rate limit descriptor list must not be empty
{"time": 0, "domain": "d", "descriptors": null} => rate limit descriptor list must not be empty
{"time": 0, "descriptors": [{"entries": ["a=b"]}]} => rate limit domain must not be empty
{"domain": "d", "descriptors": [{"entries": ["a=b"]}]} => it has no `time`
{"time": 0, "domain": "d", "descriptors": [{"entries": ["=b"]}]} => the entry `=b` has no key; write key=value, column 60
{"time": 1785585600000, "domain": "d"} => invalid value: integer `1785585600000`, expected a time of RFC 3339 or seconds since 1970, before the year 2255, column 22
{"time": -1, "domain": "d"} => invalid type: integer `-1`, expected a time of RFC 3339 or seconds since 1970, before the year 2255, column 11
{"time": "noon", "domain": "d"} => invalid value: string "noon", expected a time of RFC 3339 or seconds since 1970, before the year 2255, column 15
{"time": 0, "domain": 5} => invalid type: integer `5`, expected a text, column 23
{"time": 0, "domain": "d", "descriptors": [5]} => invalid type: integer `5`, expected a descriptor with entries, column 44
{"time": 0, "domain": "d", "hits_addend": 4294967296} => hits_addend is above 2^32 - 1, column 53
{"time": 0, "domain": "d", "descriptors": [{"limit": {"unit": "EON"}}]} => `EON` is no unit, column 68
{"time": 0, "ratelimit": "{"} => in the text: EOF while parsing an object, column 1, column 28
{"time": 0 => EOF while parsing an object, column 10
[] => invalid type: sequence, expected an object with a time and a request, column 2
127.0.0.1 - - GET / => invalid type: floating point `127.0`, expected an object with a time and a request, column 5
{"time": 0, "domain": "d", "descriptors": [{"entries": ["a=b"]}]} x => trailing characters, column 67
"#;

    #[test]
    fn lines_are_requests_or_say_why_not() {
        let mut wrong = String::new();
        for case in LINES.lines().filter(|line| !line.is_empty()) {
            let (line, expected) = case.split_once(" => ").expect("two parts");
            let shown = shown(line);
            if shown.lines().next() != Some(expected) {
                wrong += &format!("{line}\n  expected {expected}\n  found    {shown}\n");
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }
}
