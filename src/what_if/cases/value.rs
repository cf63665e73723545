//! Reads maps and values of test cases, and reports what is invalid in them.

use std::ops::RangeInclusive;

use crate::base::parse;
use crate::base::time::Span;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::tollgate::reader;
use crate::rules::config::yaml::{Diagnostic, Node, Value};

/// The known keys of a map with their values; `None` if it is no map.
pub(crate) fn fields<'n>(
    node: &'n Node,
    known: &[&str],
    findings: &mut SourceFindings<'_>,
) -> Option<Vec<(&'n str, &'n Node)>> {
    let pairs = reader::map(node, known, findings)?;
    let named =
        pairs.iter().map(|(key, value)| (reader::key(key, known, (&[], ""), findings), value));
    Some(named.filter(|(key, _)| !key.is_empty()).collect())
}

/// A whole number within two bounds.
pub(crate) fn whole(
    node: &Node,
    key: &str,
    range: RangeInclusive<u64>,
    findings: &mut SourceFindings<'_>,
) -> Option<u64> {
    let number = match node.value() {
        Some(Value::Int(number)) => u64::try_from(number).ok(),
        Some(Value::BigInt(number)) => Some(number),
        _ => None,
    };
    let number = number.filter(|number| range.contains(number));
    if number.is_none() {
        let min = range.start();
        let max = range.end();
        let text = format!("`{key}` must be a whole number from {min} to {max}, without quotes");
        findings.problem(Diagnostic::new(node.location, text));
    }
    number
}

/// A duration, such as `90s` or `365d`.
pub(crate) fn span(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Span> {
    let read = parse::duration(node.text());
    let invalid = |error| Diagnostic::new(node.location, format!("`{key}`: {error}"));
    read.map_err(|error| findings.problem(invalid(error))).ok()
}
