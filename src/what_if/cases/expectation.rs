//! The expected response: each field by itself, so that each is reported at its place.
//!
//! A field is compared as text, in the form in which it is written in a test.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::base::named_enum::named_enum;
use crate::base::text::counted;
use crate::base::time::Span;
use crate::limiter::response::{Header, Response};
use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::{Text, Whole, keys, values};
use crate::rules::config::tollgate::reader;
use crate::rules::config::yaml::{Diagnostic, Kind, Location, Node};
use crate::what_if::cases::value::{fields, span, whole};

keys! {
    /// What is expected of each response.
    pub(super) enum Expected {
        /// `OK` or `OVER_LIMIT`
        code: Code;
        /// A list with one map for each descriptor, in order; `{}` expects nothing
        statuses: Vec<ExpectedStatus>;
        /// Headers of the response by name; null for an absent one
        headers: ExpectedHeaders;
        /// Headers for the upstream, as of `on_limit: degrade`, by name; null for an absent one
        request_headers: ExpectedHeaders;
    } where {"minProperties": 1}

    /// What is expected of the status of a descriptor.
    enum ExpectedStatus {
        /// `OK` or `OVER_LIMIT`
        code: Code;
        /// A number
        remaining: Whole;
        /// The number of requests, or with the period as `explain` shows it: `10 per second`; null
        /// for none
        limit: Option<Text>;
        /// Until the limit resets, in whole seconds: `30s`; null without a limit
        reset: Option<Text>;
        /// The rule that matches, as `explain` shows it, with or without the domain: `shop.user` or
        /// `user`; null for none
        rule: Option<Text>;
    }
}

values! {
    /// The code of a response or a status.
    enum Code = {"enum": [code(false), code(true)]};
    /// Values of headers, by name.
    enum ExpectedHeaders(schemas) =
        {"type": "object", "additionalProperties": schemas.subschema_for::<Option<Text>>()};
}

/// The expected value of one field of a response.
#[derive(Debug, Clone)]
pub(crate) struct Expectation {
    /// Such as `statuses[0].remaining`.
    pub(crate) name: String,
    pub(crate) field: Field,
    /// `None` if the response must not have it.
    pub(crate) value: Option<String>,
    /// The location of the value.
    pub(crate) location: Location,
}

/// A field of a response.
#[derive(Debug, Clone)]
pub(crate) enum Field {
    Code,
    /// A field of the descriptor with this index.
    Status(usize, StatusField),
    /// For the client, by its name.
    Header(String),
    /// For the upstream, by its name.
    RequestHeader(String),
}

named_enum! {
    /// A field of the status of a descriptor.
    pub enum StatusField {
        /// OK or OVER_LIMIT.
        Code = "code",
        /// Hits that would be admitted now.
        Remaining = "remaining",
        /// The limit.
        Limit = "limit",
        /// The time until it resets.
        Reset = "reset",
        /// The rule that matches.
        Rule = "rule",
    }
}

/// The response to a request, and the rules that its descriptors match.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) domain: String,
    pub(crate) response: Response,
    /// The path of the rule of each descriptor, in order.
    pub(crate) rules: Vec<Option<Arc<str>>>,
}

impl Expectation {
    /// The value of the field, as far as possible in the form of the expected one; `None` if the
    /// response does not have it.
    pub(crate) fn found(&self, answer: &Answer) -> Option<String> {
        let expected = self.value.as_deref().unwrap_or_default();
        match &self.field {
            Field::Code => Some(code(answer.response.over_limit).to_owned()),
            Field::Status(index, field) => field.found(*index, expected, answer),
            Field::Header(name) => header(&answer.response.response_headers, name),
            Field::RequestHeader(name) => header(&answer.response.request_headers, name),
        }
    }
}

impl StatusField {
    fn found(self, index: usize, expected: &str, answer: &Answer) -> Option<String> {
        let status = answer.response.statuses.get(index)?;
        let limit = status.limit.as_ref().map(|(limit, _)| limit);
        match self {
            Self::Code => Some(code(status.over_limit).to_owned()),
            Self::Remaining => Some(status.remaining.to_string()),
            Self::Limit => {
                let limit = limit?;
                if expected.parse::<u32>().is_ok() {
                    return Some(limit.requests.to_string());
                }
                // Without the algorithm and its options.
                limit.to_string().split(", ").next().map(str::to_owned)
            }
            Self::Reset => limit.map(|_| seconds(status.reset_secs)),
            Self::Rule => {
                let path = answer.rules.get(index)?.as_deref()?;
                let short =
                    path.strip_prefix(&*answer.domain).and_then(|path| path.strip_prefix('.'));
                let is_full = expected == path || short.is_none();
                Some(short.filter(|_| !is_full).unwrap_or(path).to_owned())
            }
        }
    }
}

/// Reads `expect`. `descriptors` is the number of those in the request, if it is valid.
pub(crate) fn read(
    node: &Node,
    descriptors: Option<usize>,
    findings: &mut SourceFindings<'_>,
) -> Vec<Expectation> {
    let problems = findings.problem_count();
    let mut expected = Vec::new();
    for (key, value) in fields(node, Expected::KEYS, findings).unwrap_or_default() {
        let mut findings = findings.at(format_args!(".{key}"));
        match key {
            "code" => expected.extend(read_code(value, key, Field::Code, &mut findings)),
            "statuses" => expected.extend(statuses(value, descriptors, &mut findings)),
            "headers" => expected.extend(headers(value, key, Field::Header, &mut findings)),
            _ => expected.extend(headers(value, key, Field::RequestHeader, &mut findings)),
        }
    }
    if expected.is_empty() && findings.problem_count() == problems {
        let keys = Expected::KEYS.join(", ");
        let nothing = Diagnostic::new(node.location, "`expect` expects nothing");
        findings.problem(nothing.hint(format!("write one of {keys}, or leave it out")));
    }
    expected
}

fn statuses(
    node: &Node,
    descriptors: Option<usize>,
    findings: &mut SourceFindings<'_>,
) -> Vec<Expectation> {
    let Kind::List(items) = &node.kind else {
        let expected = Diagnostic::new(node.location, "expected a list of statuses");
        findings.problem(expected.hint("write [{remaining: 9}], one for each descriptor"));
        return Vec::new();
    };
    if let Some(descriptors) = descriptors.filter(|count| *count != items.len()) {
        let text = format!(
            "{} statuses for {}: a response has one for each",
            items.len(),
            counted(descriptors, "descriptor")
        );
        let hint = "write {} for one of which nothing is expected";
        findings.problem(Diagnostic::new(node.location, text).hint(hint));
        return Vec::new();
    }
    let mut expected = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let mut findings = findings.at(format_args!("[{index}]"));
        for (key, value) in fields(item, ExpectedStatus::KEYS, &mut findings).unwrap_or_default() {
            expected.extend(status(key, value, index, &mut findings));
        }
    }
    expected
}

fn status(
    key: &str,
    node: &Node,
    index: usize,
    findings: &mut SourceFindings<'_>,
) -> Option<Expectation> {
    let name = format!("statuses[{index}].{key}");
    let status: StatusField = key.parse().ok()?;
    let field = Field::Status(index, status);
    let value = match status {
        StatusField::Code => return read_code(node, &name, field, findings),
        StatusField::Remaining => {
            Some(whole(node, key, 0..=u32::MAX.into(), findings)?.to_string())
        }
        StatusField::Reset if node.is_null() => None,
        StatusField::Reset => Some(reset(node, key, findings)?),
        StatusField::Limit | StatusField::Rule => optional(node, key, findings),
    };
    Some(Expectation { name, field, value, location: node.location })
}

fn headers(
    node: &Node,
    key: &str,
    field: impl Fn(String) -> Field,
    findings: &mut SourceFindings<'_>,
) -> Vec<Expectation> {
    let Some(pairs) = node.pairs() else {
        let expected = Diagnostic::new(node.location, "expected a map of headers");
        findings.problem(expected.hint("write {retry-after: \"1\"}; null is an absent header"));
        return Vec::new();
    };
    let expected = pairs.iter().map(|(name, value)| Expectation {
        name: format!("{key}.{}", name.text()),
        field: field(name.text().to_owned()),
        value: optional(value, name.text(), findings),
        location: value.location,
    });
    expected.collect()
}

fn read_code(
    node: &Node,
    name: &str,
    field: Field,
    findings: &mut SourceFindings<'_>,
) -> Option<Expectation> {
    let codes = [true, false].map(|over_limit| (code(over_limit), code(over_limit)));
    let value = reader::word(node, "code", &codes, findings)?;
    Some(Expectation {
        name: name.to_owned(),
        field,
        value: Some(value.to_owned()),
        location: node.location,
    })
}

/// A text; `None` for null, and for what is reported as invalid.
fn optional(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<String> {
    if node.is_null() {
        return None;
    }
    reader::text(node, key, findings).map(str::to_owned)
}

fn reset(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<String> {
    let reset = span(node, key, findings)?;
    if reset != Span::from_secs(reset.ceil_secs()) {
        let text = "`reset` is in whole seconds, as in responses";
        findings.problem(Diagnostic::new(node.location, text));
        return None;
    }
    Some(seconds(reset.ceil_secs()))
}

fn seconds(seconds: u64) -> String {
    format!("{seconds}s")
}

const fn code(over_limit: bool) -> &'static str {
    if over_limit { "OVER_LIMIT" } else { "OK" }
}

/// The value of a header; the first of several of a name.
fn header(headers: &[Header], name: &str) -> Option<String> {
    let mut headers = headers.iter();
    let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.clone())
}

/// A response in the form of `expect`.
pub(crate) fn shown(answer: &Answer) -> String {
    const FIELDS: [StatusField; 4] =
        [StatusField::Rule, StatusField::Limit, StatusField::Remaining, StatusField::Reset];
    let mut statuses = Vec::new();
    for (index, status) in answer.response.statuses.iter().enumerate() {
        let mut text = format!("code: {}", code(status.over_limit));
        for field in FIELDS {
            if let Some(value) = field.found(index, "", answer) {
                let _ = write!(text, ", {}: {value}", field.name());
            }
        }
        statuses.push(format!("{{{text}}}"));
    }
    let mut text =
        format!("code: {}, statuses: [{}]", code(answer.response.over_limit), statuses.join(", "));
    for (name, headers) in [
        ("headers", &answer.response.response_headers),
        ("request_headers", &answer.response.request_headers),
    ] {
        let headers: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
        if !headers.is_empty() {
            let _ = write!(text, ", {name}: {{{}}}", headers.join(", "));
        }
    }
    format!("{{{text}}}")
}
