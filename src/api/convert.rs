//! Converts between protobuf and the types of the limiter: requests, deadlines, responses.

use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};
use tonic::Status;

use crate::api::request_size::RequestSize;
use crate::base::proto::envoy::config::core::v3::HeaderValue;
use crate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit::Unit as WireUnit,
};
use crate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::base::time::{Span, Time};
use crate::limiter::response::{Header, Response, Status as OurStatus};
use crate::limiter::{self, LimiterError};
use crate::limits::check::Hits;
use crate::limits::{Limit, Unit};
use crate::rules::Metadata;
use crate::rules::query::{Descriptor, Entry, Override, Query};

/// Time to write a response and to send it.
const SENDING: Span = Span::from_micros(2_000);
/// The shortest time before a caller's deadline at which its response must be sent.
///
/// ```text
///  asked                                     answer                 20 ms
///    |------------------------------------------|---------------------|---------> time
///                                               12   14     15  16
///                             our timer rings between   sent |  Envoy's may ring from here on
/// ```
/// Ours goes by whole milliseconds, and rings up to two of them late; to write, send and read the
/// answer takes up to another. Envoy's goes by a clock that is set forward once in a kernel tick
/// (libevent and CLOCK_MONOTONIC_COARSE: 4 ms where HZ is 250), and rings up to that much early:
/// its 20 ms were seen to be over after less than 17.
const MARGIN_MIN: Span = Span::from_micros(8_000);

const UNITS: [(Unit, WireUnit); 7] = [
    (Unit::Second, WireUnit::Second),
    (Unit::Minute, WireUnit::Minute),
    (Unit::Hour, WireUnit::Hour),
    (Unit::Day, WireUnit::Day),
    (Unit::Week, WireUnit::Week),
    (Unit::Month, WireUnit::Month),
    (Unit::Year, WireUnit::Year),
];

/// When a caller that waits for this time from `now` on must have its response sent: before it
/// stops waiting, by the time that sending takes.
pub fn deadline_after(timeout: Span, now: Time) -> Time {
    let micros = timeout.as_micros();
    // Of a timeout of a few milliseconds half is for the store, if the rest is enough to respond.
    let margin = (micros / 5).max(MARGIN_MIN.as_micros().min(micros / 2)).max(SENDING.as_micros());
    now.plus(Span::from_micros(micros.saturating_sub(margin)))
}

/// A grpc-timeout. `None` if the value is invalid.
pub fn timeout(grpc_timeout: &str) -> Option<Span> {
    let (number, unit) = grpc_timeout.split_at_checked(grpc_timeout.len().checked_sub(1)?)?;
    // At most eight digits, so nothing overflows.
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    let micros = match unit {
        "H" => number * 3_600_000_000,
        "M" => number * 60_000_000,
        "S" => number * 1_000_000,
        "m" => number * 1_000,
        "u" => number,
        "n" => number / 1_000,
        _ => return None,
    };
    Some(Span::from_micros(micros))
}

/// A request that owns its texts, as the limiter takes it. A call is decoded without one: see
/// `decode.rs`.
pub(crate) fn query(request: &RateLimitRequest) -> Query<'_> {
    let descriptors = request.descriptors.iter().map(|sent| Descriptor {
        entries: sent.entries.iter().map(|entry| Entry::new(&entry.key, &entry.value)).collect(),
        limit: sent.limit.map(|limit| override_limit(limit.requests_per_unit, limit.unit)),
        hits: hits(sent.hits_addend, request.hits_addend, sent.is_negative_hits),
        hits_addend: sent.hits_addend,
    });
    Query {
        domain: &request.domain,
        descriptors: descriptors.collect(),
        hits_addend: request.hits_addend,
        deadline: None,
    }
}

/// Why the service would not decide a request, whatever its rules are.
pub(crate) fn validate(request: &RateLimitRequest) -> Result<(), String> {
    let query = query(request);
    limiter::validate(&query).map_err(|error| error.to_string())?;
    RequestSize::of(&query).map_err(|error| error.to_string())?;
    Ok(())
}

/// `hits_addend` of a descriptor, of which 0 reads without consuming; else of the request, of which
/// 0 means 1.
pub(crate) fn hits(own: Option<u64>, of_request: u32, is_negative: bool) -> Hits {
    match own.unwrap_or(u64::from(of_request.max(1))) {
        0 => Hits::Peek,
        hits if is_negative => Hits::Refund(hits),
        hits => Hits::Add(hits),
    }
}

/// The enum of an override's unit has no week, but 7 is a week in responses, and the reference
/// accepts it.
pub(crate) fn override_limit(requests_per_unit: u32, wire_unit: i32) -> Override {
    Override { requests_per_unit, wire_unit, unit: unit(wire_unit) }
}

/// `None` for a number that is no unit's.
pub(crate) fn unit(wire_unit: i32) -> Option<Unit> {
    let is_sent = |(_, of_wire): &&(Unit, WireUnit)| *of_wire as i32 == wire_unit;
    UNITS.iter().find(is_sent).map(|(unit, _)| *unit)
}

/// The number of a unit on the wire, by its name or as a number.
pub(crate) fn wire_unit(text: &str) -> Result<i32, String> {
    let named = WireUnit::from_str_name(text).map(i32::from);
    named.or_else(|| text.parse().ok()).ok_or_else(|| format!("`{text}` is no unit"))
}

/// The response of a decision.
pub fn response(answer: Response) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(answer.over_limit).into(),
        statuses: answer.statuses.into_iter().map(descriptor_status).collect(),
        response_headers_to_add: answer.response_headers.into_iter().map(header).collect(),
        request_headers_to_add: answer.request_headers.into_iter().map(header).collect(),
        raw_body: answer.body.map(String::from).unwrap_or_default().into(),
        dynamic_metadata: answer.dynamic_metadata.map(|metadata| structure(&metadata)),
        ..RateLimitResponse::default()
    }
}

/// The gRPC status of an error. The reference's three errors are UNKNOWN with its texts, since
/// operators may search for them.
pub fn status(error: &LimiterError) -> Status {
    match error {
        // So that Envoy's failure_mode_deny decides what happens to the request.
        LimiterError::Store(_) => Status::unavailable(error.to_string()),
        LimiterError::NoDomain | LimiterError::NoDescriptors | LimiterError::NoRules => {
            Status::unknown(error.to_string())
        }
        LimiterError::Invalid(_) => Status::invalid_argument(error.to_string()),
    }
}

fn code(over_limit: bool) -> Code {
    if over_limit { Code::OverLimit } else { Code::Ok }
}

fn descriptor_status(status: OurStatus) -> DescriptorStatus {
    let seconds = i64::try_from(status.reset_secs).unwrap_or(i64::MAX);
    DescriptorStatus {
        code: code(status.over_limit).into(),
        // Whole seconds: Envoy truncates fractions, and clients would retry too early.
        duration_until_reset: status.limit.is_some().then_some(Duration { seconds, nanos: 0 }),
        current_limit: status.limit.map(|(of, name)| limit(of, name)),
        limit_remaining: saturated(status.remaining),
        quota: None,
    }
}

/// The wire has 32 bits; headers and JSON are exact.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn limit(limit: Limit, name: Box<str>) -> RateLimit {
    // Without a unit Envoy writes the limit without a window, which is correct for a period that is
    // not one unit.
    let of_limit = limit.unit();
    let is_of = |(unit, _): &&(Unit, WireUnit)| Some(*unit) == of_limit;
    let unit = UNITS.iter().find(is_of).map_or(WireUnit::Unknown, |(_, of_wire)| *of_wire);
    RateLimit { requests_per_unit: saturated(limit.requests), unit: unit.into(), name: name.into() }
}

fn header((name, value): Header) -> HeaderValue {
    HeaderValue { key: name.into(), value, raw_value: Vec::new() }
}

fn structure(metadata: &Metadata) -> Struct {
    Struct { fields: metadata.iter().map(|(key, inner)| (key.clone(), value(inner))).collect() }
}

fn value(json: &serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(flag) => Kind::BoolValue(*flag),
        // Protobuf has doubles only, which hold every number of JSON, if not always exactly.
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::MAX)),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(value).collect() })
        }
        serde_json::Value::Object(map) => Kind::StructValue(structure(map)),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_sent_before_the_deadline() {
        let now = Time::from_micros(7);
        let left = |text: &str| {
            let deadline = deadline_after(timeout(text)?, now);
            Some(deadline.since(now).as_micros())
        };
        assert_eq!(left("250m"), Some(200_000), "a fifth");
        assert_eq!(left("20m"), Some(12_000), "eight ms");
        assert_eq!(left("5m"), Some(2_500), "half");
        assert_eq!((left("3m"), left("1m")), (Some(1_000), Some(0)), "two ms");
        assert_eq!(left("0m"), Some(0));
        assert_eq!(left("10S"), Some(8_000_000));
        assert_eq!(left("99999999H"), Some(99_999_999 * 3_600_000_000 / 5 * 4));
        for nothing in ["", "m", "20", "-1m", "1x", "123456789m", "20mé"] {
            assert_eq!(left(nothing), None, "{nothing}");
        }
    }
}
