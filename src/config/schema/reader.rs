//! Reads values of the schema with their locations, and checks the keys of all maps.

use std::borrow::Cow;

use crate::config::error::{Draft, SourceFindings, did_you_mean};
use crate::config::metadata::go_text;
use crate::config::source::Located;
use crate::config::yaml::{Kind, Location, Node, Value};

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

pub(super) struct Reader<'f, 'r> {
    pub(super) findings: &'f mut SourceFindings<'r>,
    pub(super) place: Vec<Cow<'static, str>>,
}

impl Reader<'_, '_> {
    /// The first pass: every key of every map except those below `metadata`.
    pub(super) fn check_keys(&mut self, pairs: &[(Node, Node)], expected: &[&str]) {
        for (key, value) in pairs {
            let Some(name) = self.key(key) else { continue };
            if !is_known(name) {
                let text = format!("config error, unknown key '{name}'");
                let hint = did_you_mean(name, expected.iter().copied())
                    .or_else(|| did_you_mean(name, all_keys()));
                let hint = hint.map_or_else(
                    || format!("the keys here are {}", expected.join(", ")),
                    |word| format!("did you mean `{word}`?"),
                );
                self.problem(key.location, text, Some(hint));
                continue;
            }
            if !expected.contains(&name) {
                let text = format!(
                    "`{name}` has no meaning here and is ignored; the keys here are {}",
                    expected.join(", ")
                );
                self.warning(key.location, text);
            }
            if name != "metadata" {
                self.check_value(value, name);
            }
        }
    }

    pub(super) fn check_value(&mut self, node: &Node, key: &str) {
        let below: &[&str] = match key {
            "descriptors" => &DESCRIPTOR_KEYS,
            "rate_limit" => &RATE_LIMIT_KEYS,
            "replaces" => &REPLACES_KEYS,
            _ => &[],
        };
        match &node.kind {
            Kind::Map(pairs) => self.check_keys(pairs, below),
            Kind::List(items) => {
                for item in items.iter() {
                    if let Kind::Map(pairs) = &item.kind {
                        self.check_keys(pairs, below);
                    } else {
                        let text = format!(
                            "config error, yaml file contains list of type other than map: {}",
                            go_text(item)
                        );
                        let hint = if key == "replaces" {
                            "write {name: …}"
                        } else {
                            "write a map, such as {key: …}"
                        };
                        self.problem(item.location, text, Some(hint.to_owned()));
                    }
                }
            }
            Kind::Scalar(scalar) => {
                if matches!(scalar.value(), Value::Float(_) | Value::BigInt(_)) {
                    let hint = match key {
                        "requests_per_unit" => "write a whole number up to 4294967295".to_owned(),
                        _ => format!("write it as text: \"{}\"", scalar.text),
                    };
                    self.problem(
                        node.location,
                        "error checking config".to_owned(),
                        Some(hint),
                    );
                }
            }
        }
    }

    pub(super) fn key<'n>(&mut self, key: &'n Node) -> Option<&'n str> {
        if let Kind::Scalar(scalar) = &key.kind
            && scalar.value() == Value::Text
        {
            return Some(&scalar.text);
        }
        let text = format!("config error, key is not of type string: {}", go_text(key));
        self.problem(
            key.location,
            text,
            Some(
                "YAML 1.1 reads this as another type than text; the keys are in the documentation"
                    .to_owned(),
            ),
        );
        None
    }

    pub(super) fn text(&mut self, node: &Node, key: &str) -> Located<String> {
        let value = match &node.kind {
            Kind::Scalar(scalar) if scalar.value() == Value::Null => String::new(),
            Kind::Scalar(scalar) => scalar.text.to_string(),
            Kind::List(_) | Kind::Map(_) => {
                self.mistyped(node, &format!("text for `{key}`"));
                String::new()
            }
        };
        Located {
            value,
            location: node.location,
        }
    }

    pub(super) fn flag(&mut self, node: &Node, key: &str) -> bool {
        match &node.kind {
            Kind::Scalar(scalar) => match scalar.value() {
                Value::Bool(value) => return value,
                // The first pass reported these numbers.
                Value::Null | Value::Float(_) | Value::BigInt(_) => return false,
                Value::Int(_) | Value::Text => {}
            },
            Kind::List(_) | Kind::Map(_) => {}
        }
        self.mistyped(node, &format!("true or false, without quotes, for `{key}`"));
        false
    }

    pub(super) fn number(&mut self, node: &Node, key: &str) -> u32 {
        if let Kind::Scalar(scalar) = &node.kind {
            match scalar.value() {
                Value::Null | Value::Float(_) | Value::BigInt(_) => return 0,
                Value::Int(value) => {
                    if let Ok(value) = u32::try_from(value) {
                        return value;
                    }
                }
                Value::Bool(_) | Value::Text => {}
            }
        }
        self.mistyped(
            node,
            &format!(
                "a whole number from 0 to {}, without quotes, for `{key}`",
                u32::MAX
            ),
        );
        0
    }

    pub(super) fn list<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n [Node]> {
        match &node.kind {
            Kind::List(items) => return Some(items),
            Kind::Scalar(scalar) if scalar.value() == Value::Null => return None,
            Kind::Scalar(_) | Kind::Map(_) => {}
        }
        self.mistyped(node, &format!("a list for `{key}`"));
        None
    }

    pub(super) fn map<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n [(Node, Node)]> {
        match &node.kind {
            Kind::Map(pairs) => return Some(pairs),
            Kind::Scalar(scalar) if scalar.value() == Value::Null => return None,
            Kind::Scalar(_) | Kind::List(_) => {}
        }
        self.mistyped(node, &format!("a map for `{key}`"));
        None
    }

    pub(super) fn mistyped(&mut self, node: &Node, wanted: &str) {
        let found = match &node.kind {
            Kind::Scalar(scalar) if scalar.value() == Value::Text => {
                format!("the text \"{}\"", scalar.text)
            }
            Kind::Scalar(scalar) => format!("`{}`", scalar.text),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        };
        let text = format!(
            "error loading config file: line {}: expected {wanted}, found {found}",
            node.location.line
        );
        self.problem(node.location, text, None);
    }

    pub(super) fn problem(&mut self, location: Location, text: String, hint: Option<String>) {
        let place = self.place.concat();
        self.findings.problem(Draft {
            location,
            place: &place,
            text,
            hint,
        });
    }

    pub(super) fn warning(&mut self, location: Location, text: String) {
        let place = self.place.concat();
        self.findings.warning(Draft::new(location, &place, text));
    }

    pub(super) fn at(&self, below: &str) -> String {
        self.place.concat() + below
    }
}

/// The text of a key; empty for other types, which the first pass reported.
pub(super) fn key_of(node: &Node) -> &str {
    match &node.kind {
        Kind::Scalar(scalar) if scalar.value() == Value::Text => &scalar.text,
        Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => "",
    }
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
