//! What operators read: plain types without I/O, each field named once.
//!
//! A producer returns such a type; JSON, text, Markdown, the console and the OpenAPI document present
//! it, and commands read it from a service.

use serde::Serialize;

pub(crate) mod answer;
pub(crate) mod change;
pub(crate) mod comparison;
pub(crate) mod counter;
pub mod dump;
pub(crate) mod finding;
pub(crate) mod rule;
pub(crate) mod rule_file;
pub(crate) mod top;

/// The JSON of a report.
pub(crate) fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("the keys of its maps are texts")
}
