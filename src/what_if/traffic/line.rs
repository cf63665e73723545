//! A line of Envoy's access log: a time, and a request as the dynamic metadata of the rate limit
//! filter.
//!
//! ```text
//! {"time": "2026-08-01T12:00:00Z", "ratelimit": {"domain": "shop", "descriptors": [{"entries": ["user=42"]}]}}
//! ```
//!
//! The metadata is an object in Envoy's JSON format, and a text in its text format. It is null for
//! requests that asked for no limit.
//!
//! Fields have the names of protobuf's JSON in either spelling. Null is an absent field, other
//! fields are skipped.

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected};
use serde_json::Value;

use crate::api::convert::{self, wire_unit};
use crate::base::time::Time;
use crate::limits::EXACT_MAX;
use crate::rules::query;
use crate::what_if::traffic::message::{Form, Message, list};

pub(crate) use crate::base::proto::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor as Descriptor,
    rate_limit_descriptor::{Entry, RateLimitOverride as Limit},
};
pub(crate) use crate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest as Request;

/// Of a line that is not of an access log.
const NO_METADATA: &str = "it has no `ratelimit`, the metadata of Envoy's rate limit filter";

/// A request and its time.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) time: Time,
    pub(super) request: Request,
}

impl Line {
    /// Reads a line; `None` if it is about no request.
    pub(super) fn read(line: &[u8]) -> Result<Option<Self>, String> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let Message(fields) =
            serde_json::from_slice::<Message<LineFields>>(line).map_err(|error| located(&error))?;
        let request = fields.ratelimit.ok_or(NO_METADATA)?;
        if request.domain.is_empty() {
            return Ok(None);
        }
        convert::validate(&request)?;
        let time = fields.time.ok_or("it has no `time`")?;
        Ok(Some(Self { time, request }))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LineFields {
    #[serde(deserialize_with = "time")]
    time: Option<Time>,
    /// The metadata of Envoy's filter.
    #[serde(deserialize_with = "metadata")]
    ratelimit: Option<Request>,
}

#[derive(Deserialize)]
#[serde(remote = "Request")]
struct RequestFields {
    #[serde(default, deserialize_with = "text")]
    domain: Vec<u8>,
    #[serde(default, deserialize_with = "list")]
    descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hitsAddend", deserialize_with = "number")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(remote = "Descriptor")]
struct DescriptorFields {
    #[serde(default, deserialize_with = "list")]
    entries: Vec<Entry>,
    #[serde(default, deserialize_with = "limit")]
    limit: Option<Limit>,
    #[serde(default, alias = "hitsAddend", deserialize_with = "optional_number")]
    hits_addend: Option<u64>,
    /// Metadata does not have it.
    #[serde(skip)]
    is_negative_hits: bool,
}

impl Form for LineFields {
    const EXPECTED: &'static str = "an object with a time and a request";

    fn from_object<'de, D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        Self::deserialize(object)
    }
}

impl Form for Request {
    const EXPECTED: &'static str = "a request with a domain and descriptors";

    fn from_object<'de, D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        RequestFields::deserialize(object)
    }

    /// Metadata as Envoy writes it into a text: JSON, or `-` if there is none.
    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        if matches!(text, "" | "-") {
            return Ok(Self::default());
        }
        match serde_json::from_str(text) {
            Ok(Message(request)) => Ok(request),
            Err(error) => Err(E::custom(format_args!("in the text: {}", located(&error)))),
        }
    }
}

impl Form for Descriptor {
    const EXPECTED: &'static str = "a descriptor with entries";

    fn from_object<'de, D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        DescriptorFields::deserialize(object)
    }
}

impl Form for Entry {
    const EXPECTED: &'static str = "an entry, key=value";

    /// An entry of metadata: `key=value`.
    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        let entry = query::Entry::parse(text).map_err(E::custom)?;
        Ok(Self { key: entry.key.to_vec(), value: entry.value.to_vec() })
    }
}

impl Form for Limit {
    const EXPECTED: &'static str = "a limit, requests_per_unit:NUMBER unit:UNIT";

    /// A limit of metadata, in protobuf's text form: `requests_per_unit:5 unit:MINUTE`.
    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        let mut limit = Self::default();
        for field in text.split_whitespace() {
            match field.split_once(':') {
                Some(("requests_per_unit", number)) => {
                    limit.requests_per_unit = number.parse().map_err(E::custom)?;
                }
                Some(("unit", unit)) => limit.unit = wire_unit(unit).map_err(E::custom)?,
                _ => return Err(E::invalid_value(Unexpected::Str(text), &Self::EXPECTED)),
            }
        }
        Ok(limit)
    }
}

fn metadata<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Request>, D::Error> {
    let Message(request) = Message::deserialize(value)?;
    Ok(Some(request))
}

fn limit<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Limit>, D::Error> {
    let limit: Option<Message<Limit>> = Option::deserialize(value)?;
    Ok(limit.map(|Message(limit)| limit))
}

fn text<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<u8>, D::Error> {
    let text: Option<String> = Option::deserialize(value)?;
    Ok(text.unwrap_or_default().into_bytes())
}

fn number<'de, D: Deserializer<'de>>(value: D) -> Result<u32, D::Error> {
    let number = optional_number(value)?.unwrap_or(0);
    u32::try_from(number).map_err(|_| D::Error::custom(format_args!("{number} is above 2^32 - 1")))
}

/// A whole number, which protobuf's JSON may write as a text or a float.
fn optional_number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    let written = Value::deserialize(value)?;
    let whole = |number: f64| rounded(number).filter(|_| number.fract() == 0.0);
    let number = match &written {
        Value::Null => return Ok(None),
        Value::String(text) => text.parse().ok(),
        number => number.as_u64().or_else(|| whole(number.as_f64()?)),
    };
    expected(number, &written, "a whole number")
}

/// A time in RFC 3339, or seconds since the epoch.
fn time<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Time>, D::Error> {
    const EXPECTED: &str = "a time of RFC 3339 or seconds since 1970, before the year 2255";
    let written = Value::deserialize(value)?;
    let of_seconds = |seconds: f64| rounded(seconds * 1e6).map(Time::from_micros);
    let time = match &written {
        Value::Null => return Ok(None),
        Value::String(text) => Time::from_rfc3339(text).or_else(|| of_seconds(text.parse().ok()?)),
        seconds => seconds.as_f64().and_then(of_seconds),
    };
    let time = time.filter(|time| time.as_micros() < EXACT_MAX);
    expected(time, &written, EXPECTED)
}

/// A number that floats represent exactly, rounded.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a whole number from 0 to 2^53"
)]
fn rounded(number: f64) -> Option<u64> {
    let is_exact = (0.0..EXACT_MAX as f64).contains(&number);
    is_exact.then(|| number.round() as u64)
}

/// The read value, or an error that names the expected one.
fn expected<T, E: Error>(read: Option<T>, value: &Value, expected: &str) -> Result<Option<T>, E> {
    match read {
        Some(read) => Ok(Some(read)),
        None => Err(E::custom(format_args!("invalid value: {value}, expected {expected}"))),
    }
}

/// An error without its line, which is always the first.
fn located(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let line = error.line();
    let column = error.column();
    let end = format!(" at line {line} column {column}");
    match text.strip_suffix(&*end) {
        Some(text) => format!("{text}, column {column}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::check::Hits;

    /// The time, the domain, and each descriptor: its entries, hits and limit.
    fn shown(line: &str) -> String {
        let read = match Line::read(line.as_bytes()) {
            Ok(Some(read)) => read,
            Ok(None) => return "nothing".to_owned(),
            Err(error) => return error,
        };
        let time = read.time.to_rfc3339();
        let query = convert::query(&read.request);
        let mut text = format!("{time} {}", crate::base::text::Text(query.domain));
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
{"time": "2026-08-01T12:00:00Z", "ratelimit": {"domain": "shop", "descriptors": [{"entries": ["user=42"]}]}} => 2026-08-01T12:00:00Z shop user=42;
{"time": 1785585600.25, "ratelimit": {"domain": "shop", "descriptors": [{"entries": ["a=1", "b"]}, {"entries": ["c==\"\n"]}]}} => 2026-08-01T12:00:00.250000Z shop a=1 b=; c=="
{"time": "1785585600", "ratelimit": {"domain": "shop", "descriptors": [{"entries": ["a"]}], "hits_addend": 2}, "other": [{}]} => 2026-08-01T12:00:00Z shop a= Add(2);
{"ratelimit": {"hitsAddend": "2", "descriptors": [{"entries": ["a"], "hitsAddend": 0}, {"entries": ["b"]}], "domain": "shop"}, "time": 0} => 1970-01-01T00:00:00Z shop a= Peek; b= Add(2);
{"time": 0, "method": "GET", "ratelimit": {"domain": "d", "descriptors": [{"entries": ["a=b=c", "e"], "limit": "requests_per_unit:5 unit:HOUR", "hitsAddend": 3.0}], "metadata": {"x": 1}}} => 1970-01-01T00:00:00Z d a=b=c e= Add(3) 5/hour;
{"time": 0, "ratelimit": "{\"domain\":\"d\",\"descriptors\":[{\"entries\":[\"a=b\"]}],\"hitsAddend\":7}"} => 1970-01-01T00:00:00Z d a=b Add(7);
{"time": 0, "ratelimit": null} => nothing
{"time": 0, "ratelimit": "-"} => nothing
{"time": 0, "ratelimit": {}} => nothing
  => nothing
{"time": 0, "ratelimit": {"domain": "d"}} => rate limit descriptor list must not be empty
{"time": 0, "ratelimit": {"domain": "d", "descriptors": null}} => rate limit descriptor list must not be empty
{"time": 0, "domain": "d", "descriptors": [{"entries": ["a=b"]}]} => it has no `ratelimit`, the metadata of Envoy's rate limit filter
{"ratelimit": {"domain": "d", "descriptors": [{"entries": ["a=b"]}]}} => it has no `time`
{"time": 0, "ratelimit": {"descriptors": [{"entries": ["=b"]}]}} => the entry `=b` has no key; write key=value, column 59
{"time": 1785585600000, "ratelimit": null} => invalid value: 1785585600000, expected a time of RFC 3339 or seconds since 1970, before the year 2255, column 22
{"time": -1, "ratelimit": null} => invalid value: -1, expected a time of RFC 3339 or seconds since 1970, before the year 2255, column 11
{"time": "noon", "ratelimit": null} => invalid value: "noon", expected a time of RFC 3339 or seconds since 1970, before the year 2255, column 15
{"time": 0, "ratelimit": {"domain": 5}} => invalid type: integer `5`, expected a string, column 37
{"time": 0, "ratelimit": {"descriptors": [5]}} => invalid type: integer `5`, expected a descriptor with entries, column 43
{"time": 0, "ratelimit": {"descriptors": [{"entries": [{"key": "a"}]}]}} => invalid type: map, expected an entry, key=value, column 56
{"time": 0, "ratelimit": {"hits_addend": 4294967296}} => 4294967296 is above 2^32 - 1, column 52
{"time": 0, "ratelimit": {"descriptors": [{"limit": "unit:EON"}]}} => `EON` is no unit, column 62
{"time": 0, "ratelimit": "{"} => in the text: EOF while parsing an object, column 1, column 28
{"time": 0 => EOF while parsing an object, column 10
[] => invalid type: sequence, expected an object with a time and a request, column 2
127.0.0.1 - - GET / => invalid type: floating point `127.0`, expected an object with a time and a request, column 5
{"time": 0, "ratelimit": null} x => trailing characters, column 32
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
