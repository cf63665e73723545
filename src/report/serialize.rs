//! How values are written in JSON.

use std::fmt::Display;

use serde::{Serialize, Serializer};

use crate::base::time::{Span, Time};

pub(crate) fn display<S: Serializer>(value: &impl Display, json: S) -> Result<S::Ok, S::Error> {
    json.collect_str(value)
}

/// In µs.
pub(crate) fn micros<S: Serializer>(span: &Span, json: S) -> Result<S::Ok, S::Error> {
    json.serialize_u64(span.as_micros())
}

pub(crate) fn rfc3339<S: Serializer>(time: &Time, json: S) -> Result<S::Ok, S::Error> {
    json.serialize_str(&time.to_rfc3339())
}

/// The JSON of a report.
pub(crate) fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("the keys of its maps are texts")
}
