//! The schema of rules: the YAML of envoyproxy/ratelimit, and the `tollgate` block in its
//! `metadata`. Resources of a control plane have the same schema, without locations.
//!
//! A file is read in two passes, as in envoyproxy/ratelimit. The first checks every key against one
//! flat set: an unknown key is an error, a known key at the wrong level is ignored with a warning.
//! The second reads the values.

use crate::config::error::{Draft, SourceFindings};
use crate::config::metadata::{from_json, to_json};
use crate::config::schema::reader::{ROOT_KEYS, Reader, is_known, key_of};
use crate::config::source::{Located, Source};
use crate::config::spec::{DescriptorSpec, RateLimitSpec, RulesFile};
use crate::config::tollgate::{Block, read_block, read_root_block};
use crate::config::yaml::{self, Kind, Location, Node, Value};
use crate::rules::Metadata;

mod reader;

/// The key of Tollgate's block in `metadata`.
const BLOCK: &str = "tollgate";

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
                    spec.requests_per_unit = self.number(value, "requests_per_unit");
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
}

fn block_in(metadata: &Node) -> Option<&(Node, Node)> {
    let Kind::Map(pairs) = &metadata.kind else {
        return None;
    };
    pairs.iter().find(|(key, _)| key_of(key) == BLOCK)
}
