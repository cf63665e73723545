//! The schema of rules: the YAML of envoyproxy/ratelimit, and the `tollgate` block in its
//! `metadata`. Resources of a control plane have the same schema, without locations.
//!
//! A file is read in two passes, as in envoyproxy/ratelimit. The first checks every key against one
//! flat set: an unknown key is an error, a known key at the wrong level is ignored with a warning.
//! The second reads the values.

use std::rc::Rc;

use crate::rules::Metadata;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::metadata::{json_bytes, text_of, to_json};
use crate::rules::config::schema::reader::{
    BLOCK, Rules, check_keys, flag, is_known, key_of, list, map, mistyped, number, text,
};
use crate::rules::config::spec::{DescriptorSpec, Level, RateLimitSpec, RulesFile};
use crate::rules::config::tollgate::{Block, read_block, read_root_block};
use crate::rules::config::yaml::{Located, Location, NODES_MAX, Node, shortened};

pub(crate) mod reader;

/// The descriptors of a list.
#[derive(Debug)]
struct Descriptors(Rc<[Node]>);

/// `None` if the source is no YAML or no map, or has more than [`NODES_MAX`] nodes.
pub(crate) fn read(findings: &mut SourceFindings<'_>) -> Option<RulesFile<'static>> {
    let root = match findings.read_yaml(NODES_MAX) {
        Ok(Some(root)) => root,
        Ok(None) => return Some(RulesFile::at_top()),
        Err(mut error) => {
            let line = error.location.line;
            error.text = format!("error loading config file: yaml: line {line}: {}", error.text);
            findings.problem(error);
            return None;
        }
    };
    let Some(pairs) = root.pairs() else {
        mistyped(&root, "a map with `domain` and `descriptors`", findings);
        return None;
    };
    check_keys(pairs, Rules::KEYS, findings);
    let mut file = RulesFile::at_top();
    if let Some((_, domain)) = pairs.iter().find(|(key, _)| key_of(key) == "domain") {
        file.domain = text(domain, "domain", findings);
    }
    let domain = shortened(&file.domain.value);
    let mut findings = findings.at(format_args!("domain {domain}"));
    for (key, value) in pairs {
        match key_of(key) {
            "descriptors" => file.descriptors = descriptors(value, &mut findings),
            // Other keys in it are ignored, as in envoyproxy/ratelimit.
            "metadata" => {
                if let Some(block) = block_in(value) {
                    file.block = read_root_block(block, &mut findings.at(".metadata.tollgate"));
                }
            }
            _ => {}
        }
    }
    Some(file)
}

impl Level for Descriptors {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, index: usize, findings: &mut SourceFindings<'_>) -> Option<DescriptorSpec<'_>> {
        let item = &self.0[index];
        // The first pass reported items that are no maps.
        let pairs = item.pairs()?;
        Some(descriptor(item.location, pairs, findings))
    }
}

fn descriptors(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Box<dyn Level>> {
    let items = list(node, "descriptors", findings)?;
    (!items.is_empty()).then(|| Box::new(Descriptors(items.clone())) as Box<dyn Level>)
}

fn descriptor(
    location: Location,
    pairs: &[(Node, Node)],
    findings: &mut SourceFindings<'_>,
) -> DescriptorSpec<'static> {
    let mut spec = DescriptorSpec { location, ..DescriptorSpec::default() };
    spec.key.location = location;
    for (key, value) in pairs {
        match key_of(key) {
            name @ "key" => spec.key = text(value, name, findings),
            name @ "value" => spec.value = text(value, name, findings).value,
            "rate_limit" => spec.rate_limit = rate_limit(value, findings),
            "descriptors" => spec.descriptors = descriptors(value, findings),
            name @ "shadow_mode" => spec.shadow_mode = flag(value, name, findings),
            name @ "quota_mode" => spec.quota_mode = flag(value, name, findings),
            name @ "detailed_metric" => spec.detailed_metric = flag(value, name, findings),
            name @ "value_to_metric" => spec.value_to_metric = flag(value, name, findings),
            name @ "share_threshold" => {
                spec.share_threshold = Located::new(flag(value, name, findings), key.location);
            }
            "metadata" => (spec.metadata, spec.block) = metadata(value, findings),
            _ => {}
        }
    }
    spec
}

fn rate_limit(node: &Node, findings: &mut SourceFindings<'_>) -> Option<RateLimitSpec> {
    let pairs = map(node, "rate_limit", findings)?;
    let mut spec = RateLimitSpec { location: node.location, ..RateLimitSpec::default() };
    spec.unit.location = node.location;
    let findings = &mut findings.at(".rate_limit");
    for (key, value) in pairs {
        match key_of(key) {
            name @ "unit" => spec.unit = text(value, name, findings),
            name @ "requests_per_unit" => spec.requests_per_unit = number(value, name, findings),
            name @ "unlimited" => spec.unlimited = flag(value, name, findings),
            name @ "name" => spec.name = text(value, name, findings).value,
            "replaces" => spec.replaces = replaces(value, findings),
            other => spec.unit_misspelled |= !is_known(other),
        }
    }
    Some(spec)
}

fn replaces(node: &Node, findings: &mut SourceFindings<'_>) -> Vec<Located<String>> {
    let mut names = Vec::new();
    let items = list(node, "replaces", findings);
    for item in items.map_or(&[][..], |items| items) {
        let Some(pairs) = item.pairs() else { continue };
        let name = pairs.iter().find(|(key, _)| key_of(key) == "name");
        names.push(match name {
            Some((_, name)) => text(name, "name", findings),
            None => Located::new(String::new(), item.location),
        });
    }
    names
}

/// The metadata of a descriptor, and the `tollgate` block in it.
pub(crate) fn metadata(
    node: &Node,
    findings: &mut SourceFindings<'_>,
) -> (Option<Metadata>, Option<Block>) {
    let Some(pairs) = map(node, "metadata", findings) else {
        return (None, None);
    };
    let others = || pairs.iter().filter(|(key, _)| text_of(key) != BLOCK);
    if !findings.fits(others().map(json_bytes).sum(), node.location) {
        return (None, None);
    }
    let metadata = to_json(others());
    let block =
        block_in(node).and_then(|block| read_block(block, &mut findings.at(".metadata.tollgate")));
    (Some(metadata), block)
}

fn block_in(metadata: &Node) -> Option<&Node> {
    let mut pairs = metadata.pairs()?.iter();
    let (_, block) = pairs.find(|(key, _)| key_of(key) == BLOCK)?;
    Some(block)
}
