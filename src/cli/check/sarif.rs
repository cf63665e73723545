//! SARIF 2.1.0 (<https://docs.oasis-open.org/sarif/sarif/v2.1.0/>): what code scanning of GitHub and
//! others reads.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::cli::check::report::{Report, Severity};
use crate::config::error::Finding;

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";
/// What a path of a URI has besides letters and digits.
const OF_PATH: AsciiSet = NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Identifiers of the kinds of findings, and what they mean.
const KINDS: [(Severity, &str, &str); 3] = [
    (
        Severity::Error,
        "invalid-rules",
        "The rules are invalid and would not be loaded",
    ),
    (
        Severity::Warning,
        "ambiguous-rules",
        "The rules may not mean what their author thinks",
    ),
    (
        Severity::Note,
        "requirement",
        "The rules need a setting of another system",
    ),
];

pub(super) fn log(report: &Report) -> Value {
    let rules = KINDS.map(|(_, id, text)| json!({"id": id, "shortDescription": {"text": text}}));
    let results = report
        .findings
        .iter()
        .map(|(severity, finding)| result(report, *severity, finding));
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "tollgate",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            // Characters, not UTF-16.
            "columnKind": "unicodeCodePoints",
            "results": results.collect::<Vec<_>>(),
        }],
    })
}

fn result(report: &Report, severity: Severity, finding: &Finding) -> Value {
    let place = report.place(finding);
    let index = KINDS.iter().position(|(kind, ..)| *kind == severity);
    let path = utf8_percent_encode(place.file, &OF_PATH).to_string();
    let uri = if path.starts_with('/') {
        format!("file://{path}")
    } else {
        path
    };
    let mut physical = json!({"artifactLocation": {"uri": uri}});
    if let Some((line, column, end)) = place.range {
        physical["region"] = json!({"startLine": line, "startColumn": column, "endColumn": end});
    }
    json!({
        "ruleId": index.map(|index| KINDS[index].1),
        "ruleIndex": index,
        "level": severity.name(),
        "message": {"text": report.message(finding)},
        "locations": [{"physicalLocation": physical}],
    })
}
