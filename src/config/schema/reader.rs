//! Reads values of the schema with their locations, and checks the keys of all maps.

use std::rc::Rc;

use crate::config::error::{SourceFindings, did_you_mean};
use crate::config::metadata::go_text_in_message;
use crate::config::yaml::{Diagnostic, Kind, Located, Node, Value};

/// The keys of each level. envoyproxy/ratelimit accepts all of them at every level.
pub(super) const ROOT_KEYS: [&str; 3] = ["domain", "descriptors", "metadata"];
const DESCRIPTOR_KEYS: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const RATE_LIMIT_KEYS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES_KEYS: [&str; 1] = ["name"];

/// The first pass: every key of every map except those below `metadata`.
pub(super) fn check_keys(
    pairs: &[(Node, Node)],
    expected: &[&str],
    findings: &mut SourceFindings<'_>,
) {
    let here = expected.join(", ");
    for (key, value) in pairs {
        if findings.is_full() {
            return;
        }
        let name = key_of(key);
        if name.is_empty() && key.value() != Some(Value::Text) {
            let text = format!(
                "config error, key is not of type string: {}",
                go_text_in_message(key)
            );
            findings.problem(Diagnostic::new(key.location, text).hint(
                "YAML 1.1 reads this as another type than text; the keys are in the documentation",
            ));
            continue;
        }
        if !is_known(name) {
            let text = format!("config error, unknown key '{name}'");
            let hint = did_you_mean(name, expected.iter().copied())
                .or_else(|| did_you_mean(name, all_keys()))
                .map_or_else(
                    || format!("the keys here are {here}"),
                    |word| format!("did you mean `{word}`?"),
                );
            findings.problem(Diagnostic::new(key.location, text).hint(hint));
            continue;
        }
        if !expected.contains(&name) {
            let text =
                format!("`{name}` has no meaning here and is ignored; the keys here are {here}");
            findings.warning(Diagnostic::new(key.location, text));
        }
        if name != "metadata" {
            check_value(value, name, findings);
        }
    }
}

fn check_value(node: &Node, key: &str, findings: &mut SourceFindings<'_>) {
    let below: &[&str] = match key {
        "descriptors" => &DESCRIPTOR_KEYS,
        "rate_limit" => &RATE_LIMIT_KEYS,
        "replaces" => &REPLACES_KEYS,
        _ => &[],
    };
    match &node.kind {
        Kind::Map(pairs) => check_keys(pairs, below, findings),
        Kind::List(items) => {
            for item in items.iter() {
                if findings.is_full() {
                    return;
                }
                if let Kind::Map(pairs) = &item.kind {
                    check_keys(pairs, below, findings);
                    continue;
                }
                let text = format!(
                    "config error, yaml file contains list of type other than map: {}",
                    go_text_in_message(item)
                );
                let hint = if key == "replaces" {
                    "write {name: …}"
                } else {
                    "write a map, such as {key: …}"
                };
                findings.problem(Diagnostic::new(item.location, text).hint(hint));
            }
        }
        Kind::Scalar(scalar) => {
            if matches!(scalar.value(), Value::Float(_) | Value::BigInt(_)) {
                let hint = match key {
                    "requests_per_unit" => "write a whole number up to 4294967295".to_owned(),
                    _ => format!("write it as text: \"{}\"", scalar.text),
                };
                findings
                    .problem(Diagnostic::new(node.location, "error checking config").hint(hint));
            }
        }
    }
}

pub(super) fn text(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Located<String> {
    let value = match node.scalar() {
        Some(_) if node.is_null() => String::new(),
        Some(scalar) => scalar.text.to_string(),
        None => {
            mistyped(node, &format!("text for `{key}`"), findings);
            String::new()
        }
    };
    Located {
        value,
        location: node.location,
    }
}

pub(super) fn flag(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> bool {
    match node.value() {
        Some(Value::Bool(value)) => return value,
        // The first pass reported these numbers.
        Some(Value::Null | Value::Float(_) | Value::BigInt(_)) => {}
        Some(Value::Int(_) | Value::Text) | None => {
            let wanted = format!("true or false, without quotes, for `{key}`");
            mistyped(node, &wanted, findings);
        }
    }
    false
}

pub(super) fn number(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> u32 {
    match node.value() {
        Some(Value::Null | Value::Float(_) | Value::BigInt(_)) => return 0,
        Some(Value::Int(value)) => {
            if let Ok(value) = u32::try_from(value) {
                return value;
            }
        }
        Some(Value::Bool(_) | Value::Text) | None => {}
    }
    let max = u32::MAX;
    let wanted = format!("a whole number from 0 to {max}, without quotes, for `{key}`");
    mistyped(node, &wanted, findings);
    0
}

/// The items of a list; `None` of a null.
pub(super) fn list<'n>(
    node: &'n Node,
    key: &str,
    findings: &mut SourceFindings<'_>,
) -> Option<&'n Rc<[Node]>> {
    if let Kind::List(items) = &node.kind {
        return Some(items);
    }
    if !node.is_null() {
        mistyped(node, &format!("a list for `{key}`"), findings);
    }
    None
}

pub(super) fn map<'n>(
    node: &'n Node,
    key: &str,
    findings: &mut SourceFindings<'_>,
) -> Option<&'n [(Node, Node)]> {
    if node.pairs().is_none() && !node.is_null() {
        mistyped(node, &format!("a map for `{key}`"), findings);
    }
    node.pairs()
}

pub(super) fn mistyped(node: &Node, wanted: &str, findings: &mut SourceFindings<'_>) {
    let found = match &node.kind {
        Kind::Scalar(scalar) if scalar.value() == Value::Text => {
            format!("the text \"{}\"", scalar.text)
        }
        Kind::Scalar(scalar) => format!("`{}`", scalar.text),
        Kind::List(_) => "a list".to_owned(),
        Kind::Map(_) => "a map".to_owned(),
    };
    let line = node.location.line;
    let text = format!("error loading config file: line {line}: expected {wanted}, found {found}");
    findings.problem(Diagnostic::new(node.location, text));
}

/// The text of a key; empty for other types, which the first pass reported.
pub(super) fn key_of(node: &Node) -> &str {
    node.scalar()
        .filter(|scalar| scalar.value() == Value::Text)
        .map_or("", |scalar| &scalar.text)
}

fn all_keys() -> impl Iterator<Item = &'static str> {
    ROOT_KEYS
        .into_iter()
        .chain(DESCRIPTOR_KEYS)
        .chain(RATE_LIMIT_KEYS)
}

pub(super) fn is_known(key: &str) -> bool {
    all_keys().any(|known| known == key)
}
