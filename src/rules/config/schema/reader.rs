//! Declares the keys of rules, reads values with their locations, and checks the keys of all maps.

use std::rc::Rc;

use crate::base::text::did_you_mean;
use crate::limits::Unit;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::{Whole, keys, values};
use crate::rules::config::metadata::go_text_in_message;
use crate::rules::config::tollgate::{FileBlock, RuleBlock};
use crate::rules::config::yaml::{Diagnostic, Kind, Located, Node, Value};

/// The key of Tollgate's block in `metadata`.
pub(super) const BLOCK: &str = "tollgate";

// envoyproxy/ratelimit accepts all keys at every level.
keys! {
    /// Rules of a domain, for Tollgate or envoyproxy/ratelimit.
    pub(crate) enum Rules {
        /// The domain of Envoy's rate limit filter. Two files with the same domain are an error,
        /// unless MERGE_DOMAIN_CONFIG is set
        domain: FilledScalar, required;
        /// Rules for the next entry of a descriptor
        descriptors: Option<Vec<Descriptor>>;
        /// Options of Tollgate for the whole file
        metadata: FileMetadata;
    }

    /// A rule for an entry of a descriptor, and those for the entries after it.
    enum Descriptor {
        /// Key of the entry. Required
        key: FilledScalar, required;
        /// Value of the entry; `*` matches any text. Without it the rule matches every value, and
        /// each value has its own counter
        value: Option<Scalar>;
        /// The limit. A descriptor without it is not limited
        rate_limit: Option<RateLimit>;
        /// Rules for the next entry of a descriptor
        descriptors: Option<Vec<Descriptor>>;
        /// Counts and reports in metrics, but never rejects
        shadow_mode: Option<bool>;
        /// Over limit in the descriptor's status and headers; the request is over limit only if all
        /// its quota descriptors are
        quota_mode: Option<bool>;
        /// Include values of the request in metric names
        detailed_metric: Option<bool>;
        /// Include values of the request in metric names
        value_to_metric: Option<bool>;
        /// Values that match a `*` share one counter
        share_threshold: Option<bool>;
        /// Returned to Envoy as dynamic metadata, without the `tollgate` block
        /// (RESPONSE_DYNAMIC_METADATA)
        metadata: Option<DescriptorMetadata>;
    } where {"allOf": [
        {"if": {"required": ["share_threshold"], "properties": {"share_threshold": {"const": true}}},
            "then": {"anyOf": [
                {"properties": {"key": {"pattern": "\\*"}}},
                {"required": ["value"], "properties": {"value": {"pattern": "\\*"}}},
            ]}},
        {"if": {"required": ["metadata"],
                "properties": {"metadata": {"type": "object", "required": [BLOCK]}}},
            "then": {"required": ["rate_limit"],
                "properties": {"rate_limit": {"type": "object"}}}},
    ]}

    /// How many hits are allowed in a period.
    enum RateLimit {
        /// `second`, `minute`, `hour`, `day`, `week`, `month` or `year`
        unit: UnitWord;
        /// Number of hits per period; 0 means that every hit is over limit
        requests_per_unit: Option<Whole>;
        /// `true`: no limit
        unlimited: Option<bool>;
        /// A rule that matches in the same request replaces the rules with these names
        name: Option<Scalar>;
        /// A rule that matches in the same request replaces the rules with these names
        replaces: Option<Vec<Replaced>>;
    } where {
        "if": {"properties": {"unlimited": {"const": true}}, "required": ["unlimited"]},
        "then": {"not": {"required": ["unit"]}},
        "else": {"required": ["unit"]},
    }

    /// A rule that is replaced.
    enum Replaced {
        /// The `name` of its `rate_limit`
        name: FilledScalar, required;
    }
}

values! {
    /// A scalar. Floats are invalid everywhere but in `metadata`.
    enum Scalar = {"type": ["string", "integer", "boolean"]};
    /// A scalar that is not empty.
    enum FilledScalar = {"type": ["string", "integer", "boolean"], "minLength": 1};
    /// The metadata of a file, of which only Tollgate's block is read.
    enum FileMetadata(schemas) =
        {"properties": {(BLOCK): schemas.subschema_for::<FileBlock>()}};
    /// The metadata of a descriptor.
    enum DescriptorMetadata(schemas) =
        {"type": "object", "properties": {(BLOCK): schemas.subschema_for::<RuleBlock>()}};
    /// A unit of time. Editors suggest the words in lower case; case makes no difference.
    enum UnitWord = {"type": "string", "anyOf": [
        {"enum": Unit::ALL.map(Unit::name)},
        {"pattern": any_case(&Unit::ALL.map(Unit::name))},
    ]};
}

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
            let text =
                format!("config error, key is not of type string: {}", go_text_in_message(key));
            let hint =
                "YAML 1.1 reads this as another type than text; the keys are in the documentation";
            findings.reject(key.location, text, hint);
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
            findings.reject(key.location, text, hint);
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
        "descriptors" => Descriptor::KEYS,
        "rate_limit" => RateLimit::KEYS,
        "replaces" => Replaced::KEYS,
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
                findings.reject(item.location, text, hint);
            }
        }
        Kind::Scalar(scalar) => {
            if matches!(scalar.value(), Value::Float(_) | Value::BigInt(_)) {
                let hint = match key {
                    "requests_per_unit" => "write a whole number up to 4294967295".to_owned(),
                    _ => format!("write it as text: \"{}\"", scalar.text),
                };
                findings.reject(node.location, "error checking config", hint);
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
    Located::new(value, node.location)
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
    node.scalar().filter(|scalar| scalar.value() == Value::Text).map_or("", |scalar| &scalar.text)
}

/// A regular expression for one of the words in upper, lower or mixed case.
fn any_case(words: &[&str]) -> String {
    let letter = |letter: char| format!("[{letter}{}]", letter.to_ascii_uppercase());
    let words = words.iter().map(|word| word.chars().map(letter).collect());
    format!("^({})$", words.collect::<Vec<String>>().join("|"))
}

fn all_keys() -> impl Iterator<Item = &'static str> {
    let maps = [Rules::KEYS, Descriptor::KEYS, RateLimit::KEYS];
    maps.into_iter().flatten().copied()
}

pub(super) fn is_known(key: &str) -> bool {
    all_keys().any(|known| known == key)
}
