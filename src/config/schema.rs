//! The schema of rules: the YAML of envoyproxy/ratelimit, and the `tollgate` block in its
//! `metadata`. Resources of a control plane have the same schema, without locations.
//!
//! A file is read in two passes, as in envoyproxy/ratelimit. The first checks every key against one
//! flat set: an unknown key is an error, a known key at the wrong level is ignored with a warning.
//! The second reads the values.

use std::borrow::Cow;

use crate::config::error::{Draft, SourceFindings, did_you_mean};
use crate::config::metadata::{from_json, go_text, to_json};
use crate::config::source::{Located, Source};
use crate::config::tollgate::{Block, RootBlock, read_block, read_root_block};
use crate::config::yaml::{self, Kind, Location, Node, Value};
use crate::rules::Metadata;

/// The key of Tollgate's block in `metadata`.
const BLOCK: &str = "tollgate";

/// The keys of each level. envoyproxy/ratelimit accepts all of them at every level.
const ROOT_KEYS: [&str; 3] = ["domain", "descriptors", "metadata"];
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

#[derive(Debug, Default)]
pub(crate) struct RulesFile {
    pub(crate) domain: Located<String>,
    pub(crate) descriptors: Vec<DescriptorSpec>,
    pub(crate) block: Option<RootBlock>,
}

#[derive(Debug, Default)]
pub(crate) struct DescriptorSpec {
    pub(crate) key: Located<String>,
    pub(crate) value: Located<String>,
    pub(crate) rate_limit: Option<RateLimitSpec>,
    pub(crate) descriptors: Vec<Self>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    pub(crate) detailed_metric: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: Located<bool>,
    /// Without the `tollgate` block.
    pub(crate) metadata: Option<Metadata>,
    pub(crate) block: Option<Block>,
    pub(crate) location: Location,
}

#[derive(Debug, Default)]
pub(crate) struct RateLimitSpec {
    pub(crate) unit: Located<String>,
    /// The unit is missing, probably because of an unknown key beside it, which was reported.
    pub(crate) unit_misspelled: bool,
    pub(crate) requests_per_unit: u32,
    pub(crate) unlimited: bool,
    pub(crate) name: String,
    pub(crate) replaces: Vec<Located<String>>,
    pub(crate) location: Location,
}

/// `None` if the source is no YAML or no map.
pub(crate) fn read(source: &Source, findings: &mut SourceFindings<'_>) -> Option<RulesFile> {
    let document = match yaml::read(&source.text) {
        Ok(document) => document,
        Err(error) => {
            let text = format!(
                "error loading config file: yaml: line {}: {}",
                error.location.line, error.text
            );
            let draft = Draft {
                hint: error.hint,
                ..Draft::new(error.location, "", text)
            };
            findings.problem(draft);
            return None;
        }
    };
    for warning in document.warnings {
        findings.warning(Draft::new(warning.location, "", warning.text));
    }
    let Some(root) = document.root else {
        return Some(RulesFile::at_top());
    };
    let mut reader = Reader {
        findings,
        place: Vec::new(),
    };
    let pairs = match &root.kind {
        Kind::Map(pairs) => pairs,
        Kind::Scalar(scalar) if scalar.value() == Value::Null => {
            return Some(RulesFile::at_top());
        }
        Kind::Scalar(_) | Kind::List(_) => {
            reader.mistyped(&root, "a map with `domain` and `descriptors`");
            return None;
        }
    };
    reader.check_keys(pairs, &ROOT_KEYS);
    Some(reader.file(pairs))
}

/// Removes the `tollgate` block from the metadata of the descriptor at `place`.
pub(crate) fn take_block(
    metadata: &mut Metadata,
    place: &str,
    findings: &mut SourceFindings<'_>,
) -> Option<Block> {
    let block = metadata.remove(BLOCK)?;
    read_block(
        &from_json(&block),
        &format!("{place}.metadata.tollgate"),
        findings,
    )
}

impl RulesFile {
    /// An empty file; what it lacks is reported at its top.
    fn at_top() -> Self {
        let top = Location {
            line: 1,
            column: 1,
            width: 1,
        };
        Self {
            domain: Located {
                value: String::new(),
                location: top,
            },
            ..Self::default()
        }
    }
}

struct Reader<'f, 'r> {
    findings: &'f mut SourceFindings<'r>,
    place: Vec<Cow<'static, str>>,
}

impl Reader<'_, '_> {
    fn file(&mut self, pairs: &[(Node, Node)]) -> RulesFile {
        let mut file = RulesFile::at_top();
        if let Some((_, domain)) = pairs.iter().find(|(key, _)| key_of(key) == "domain") {
            file.domain = self.text(domain, "domain");
        }
        self.place
            .push(format!("domain {}", file.domain.value).into());
        for (key, value) in pairs {
            match key_of(key) {
                "descriptors" => file.descriptors = self.descriptors(value),
                // Other keys in it are ignored, as in envoyproxy/ratelimit.
                "metadata" => {
                    if let Some((_, block)) = block_in(value) {
                        file.block =
                            read_root_block(block, &self.at(".metadata.tollgate"), self.findings);
                    }
                }
                _ => {}
            }
        }
        file
    }

    fn descriptors(&mut self, node: &Node) -> Vec<DescriptorSpec> {
        let Some(items) = self.list(node, "descriptors") else {
            return Vec::new();
        };
        let mut descriptors = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            // The first pass reported items that are no maps.
            if let Kind::Map(pairs) = &item.kind {
                let separator = if self.place.len() > 1 { "." } else { " > " };
                self.place
                    .push(format!("{separator}descriptors[{index}]").into());
                descriptors.push(self.descriptor(item.location, pairs));
                self.place.pop();
            }
        }
        descriptors
    }

    fn descriptor(&mut self, location: Location, pairs: &[(Node, Node)]) -> DescriptorSpec {
        let mut spec = DescriptorSpec {
            location,
            ..DescriptorSpec::default()
        };
        spec.key.location = location;
        for (key, value) in pairs {
            match key_of(key) {
                "key" => spec.key = self.text(value, "key"),
                "value" => spec.value = self.text(value, "value"),
                "rate_limit" => spec.rate_limit = self.rate_limit(value),
                "descriptors" => spec.descriptors = self.descriptors(value),
                "shadow_mode" => spec.shadow_mode = self.flag(value, "shadow_mode"),
                "quota_mode" => spec.quota_mode = self.flag(value, "quota_mode"),
                "detailed_metric" => spec.detailed_metric = self.flag(value, "detailed_metric"),
                "value_to_metric" => spec.value_to_metric = self.flag(value, "value_to_metric"),
                "share_threshold" => {
                    spec.share_threshold = Located {
                        value: self.flag(value, "share_threshold"),
                        location: key.location,
                    };
                }
                "metadata" => (spec.metadata, spec.block) = self.metadata(value),
                _ => {}
            }
        }
        spec
    }

    fn rate_limit(&mut self, node: &Node) -> Option<RateLimitSpec> {
        let pairs = self.map(node, "rate_limit")?;
        let mut spec = RateLimitSpec {
            location: node.location,
            ..RateLimitSpec::default()
        };
        spec.unit.location = node.location;
        self.place.push(".rate_limit".into());
        for (key, value) in pairs {
            match key_of(key) {
                "unit" => spec.unit = self.text(value, "unit"),
                "requests_per_unit" => {
                    spec.requests_per_unit = self.number(value, "requests_per_unit")
                }
                "unlimited" => spec.unlimited = self.flag(value, "unlimited"),
                "name" => spec.name = self.text(value, "name").value,
                "replaces" => spec.replaces = self.replaces(value),
                other => spec.unit_misspelled |= !is_known(other),
            }
        }
        self.place.pop();
        Some(spec)
    }

    fn replaces(&mut self, node: &Node) -> Vec<Located<String>> {
        let Some(items) = self.list(node, "replaces") else {
            return Vec::new();
        };
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            let Kind::Map(pairs) = &item.kind else {
                continue;
            };
            let name = pairs.iter().find(|(key, _)| key_of(key) == "name");
            names.push(name.map_or_else(
                || Located {
                    value: String::new(),
                    location: item.location,
                },
                |(_, name)| self.text(name, "name"),
            ));
        }
        names
    }

    fn metadata(&mut self, node: &Node) -> (Option<Metadata>, Option<Block>) {
        let Some(pairs) = self.map(node, "metadata") else {
            return (None, None);
        };
        let mut metadata = to_json(pairs);
        metadata.remove(BLOCK);
        let block = block_in(node).and_then(|(_, block)| {
            read_block(block, &self.at(".metadata.tollgate"), self.findings)
        });
        (Some(metadata), block)
    }

    /// The first pass: every key of every map except those below `metadata`.
    fn check_keys(&mut self, pairs: &[(Node, Node)], expected: &[&str]) {
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

    fn check_value(&mut self, node: &Node, key: &str) {
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

    fn key<'n>(&mut self, key: &'n Node) -> Option<&'n str> {
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

    fn text(&mut self, node: &Node, key: &str) -> Located<String> {
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

    fn flag(&mut self, node: &Node, key: &str) -> bool {
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

    fn number(&mut self, node: &Node, key: &str) -> u32 {
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

    fn list<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n [Node]> {
        match &node.kind {
            Kind::List(items) => return Some(items),
            Kind::Scalar(scalar) if scalar.value() == Value::Null => return None,
            Kind::Scalar(_) | Kind::Map(_) => {}
        }
        self.mistyped(node, &format!("a list for `{key}`"));
        None
    }

    fn map<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n [(Node, Node)]> {
        match &node.kind {
            Kind::Map(pairs) => return Some(pairs),
            Kind::Scalar(scalar) if scalar.value() == Value::Null => return None,
            Kind::Scalar(_) | Kind::List(_) => {}
        }
        self.mistyped(node, &format!("a map for `{key}`"));
        None
    }

    fn mistyped(&mut self, node: &Node, wanted: &str) {
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

    fn problem(&mut self, location: Location, text: String, hint: Option<String>) {
        let place = self.place.concat();
        self.findings.problem(Draft {
            location,
            place: &place,
            text,
            hint,
        });
    }

    fn warning(&mut self, location: Location, text: String) {
        let place = self.place.concat();
        self.findings.warning(Draft::new(location, &place, text));
    }

    fn at(&self, below: &str) -> String {
        self.place.concat() + below
    }
}

/// The text of a key; empty for other types, which the first pass reported.
fn key_of(node: &Node) -> &str {
    match &node.kind {
        Kind::Scalar(scalar) if scalar.value() == Value::Text => &scalar.text,
        Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => "",
    }
}

fn block_in(metadata: &Node) -> Option<&(Node, Node)> {
    let Kind::Map(pairs) = &metadata.kind else {
        return None;
    };
    pairs.iter().find(|(key, _)| key_of(key) == BLOCK)
}

fn all_keys() -> impl Iterator<Item = &'static str> {
    ROOT_KEYS
        .into_iter()
        .chain(DESCRIPTOR_KEYS)
        .chain(RATE_LIMIT_KEYS)
}

fn is_known(key: &str) -> bool {
    all_keys().any(|known| known == key)
}
