//! The overlay (TOLLGATE_OVERLAY): `tollgate` blocks for rules that another system writes, such as
//! Envoy Gateway.
//!
//! ```yaml
//! overlays:
//!   - domain: default/eg/*
//!     tollgate: {defaults: {on_store_error: deny}}
//!     rules:
//!       - path: '*.masked_remote_address_*'
//!         tollgate: {algorithm: sliding_window}
//! ```
//!
//! A `*` matches any text, also none. Of several blocks that match, the first one counts, option by
//! option. Blocks that match nothing are warnings, because their absence has no other effect.
//!
//! A path may begin with the domain, as `explain` prints it: in the domain `shop`, `shop.user` is
//! the rule `user`. If the domain has a key of its own name, it is the rule `user` below that key.

use std::sync::Arc;

use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::{Text, keys};
use crate::rules::config::source::Source;
use crate::rules::config::tollgate::reader::{self, NOT_ELSEWHERE, list};
use crate::rules::config::tollgate::{
    Block, FileBlock, Layer, Layers, Options, RootBlock, read_block, read_root_block,
};
use crate::rules::config::yaml::{Diagnostic, FILE_NODES_MAX, Located, Location, Node};
use crate::rules::tree::{Domain, RuleSet};
use crate::rules::wildcard::Pattern;
use crate::rules::{Provenance, Rule};

keys! {
    /// Options of Tollgate for rules that another system writes, such as Envoy Gateway.
    pub(crate) enum OverlayFile {
        /// Options by domain. Of several that match, the first one that has an option applies
        overlays: Option<Vec<OverlayOfDomain>>;
    }

    /// Options for the rules of a domain.
    enum OverlayOfDomain {
        /// Name of the domain; `*` matches any text
        domain: Text, required;
        /// Options for every rule of the domain
        tollgate: FileBlock;
        /// Options by rule
        rules: Option<Vec<OverlayOfRule>>;
    }

    /// Options for the rules of a path.
    enum OverlayOfRule {
        /// Keys and values down to the rule, as shown by `explain` and /rlconfig; `*` matches any
        /// text
        path: Text, required;
        /// Options of the rule
        tollgate: Options, required;
    }
}
/// Blocks of an overlay: each rule is matched against all blocks of its domain.
const OVERLAY_BLOCKS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    file: Arc<str>,
    domains: Vec<DomainBlock>,
}

/// The blocks for the domains of one glob.
#[derive(Debug)]
struct DomainBlock {
    domain: Located<Glob>,
    block: Option<RootBlock>,
    rules: Vec<RuleBlock>,
}

/// The block for the rules of one glob.
#[derive(Debug)]
struct RuleBlock {
    path: Located<Glob>,
    block: Block,
}

/// The blocks that match one domain.
#[derive(Debug)]
pub(crate) struct DomainOverlay<'o> {
    file: &'o Arc<str>,
    domain: &'o str,
    blocks: Vec<&'o DomainBlock>,
    /// A path that begins with the domain is that of a key with the same name.
    has_key_of_its_name: bool,
}

/// A text in which a `*` matches any other.
#[derive(Debug)]
struct Glob {
    text: Box<str>,
    /// `None` without a `*`.
    pattern: Option<Pattern>,
}

impl Overlay {
    pub(crate) fn read(source: &Source, findings: &mut SourceFindings<'_>) -> Self {
        let mut overlay = Self { file: source.path.clone(), domains: Vec::new() };
        let root = findings.read_yaml(FILE_NODES_MAX);
        let root = root.map_err(|error| findings.problem(error));
        let Ok(Some(root)) = root else {
            return overlay;
        };
        for (key, value) in reader::map(&root, OverlayFile::KEYS, findings).unwrap_or_default() {
            if reader::key(key, OverlayFile::KEYS, NOT_ELSEWHERE, findings) == "overlays" {
                overlay.domains = list(value, &mut findings.at("overlays"), DomainBlock::read);
            }
        }
        let rules = overlay.domains.iter().map(|domain| domain.rules.len());
        let blocks = overlay.domains.len() + rules.sum::<usize>();
        if blocks > OVERLAY_BLOCKS_MAX {
            let text = format!(
                "{blocks} blocks, more than the {OVERLAY_BLOCKS_MAX} of overlay_blocks_max"
            );
            let hint = "write globs that match more, or write the blocks into the rules themselves";
            let problem = Diagnostic::new(root.location, text).hint(hint);
            findings.at("overlays").problem(problem);
            overlay.domains.clear();
        }
        overlay
    }

    /// The blocks of a domain; `labels` are those of its top level.
    pub(crate) fn of_domain<'o>(
        &'o self,
        domain: &'o str,
        mut labels: impl Iterator<Item = String>,
    ) -> DomainOverlay<'o> {
        let blocks = self.domains.iter();
        let blocks: Vec<_> = blocks.filter(|block| block.domain.value.matches(domain)).collect();
        let mut rules = blocks.iter().flat_map(|block| &block.rules);
        let has_key_of_its_name = rules.any(|rule| begins_with(&rule.path.value.text, domain))
            && labels.any(|label| begins_with(&label, domain));
        DomainOverlay { file: &self.file, domain, blocks, has_key_of_its_name }
    }

    /// Warns about what had no effect on the compiled rules.
    pub(crate) fn warn_about_unused(&self, rules: &RuleSet, findings: &mut SourceFindings<'_>) {
        let mut findings = findings.at("overlays");
        let mut warn = |location: Location, text: &str| {
            findings.warning(Diagnostic::new(location, text));
        };
        for block in &self.domains {
            let domains: Vec<&Domain> = rules
                .domains()
                .into_iter()
                .filter(|domain| block.domain.value.matches(&domain.name))
                .collect();
            if domains.is_empty() {
                warn(block.domain.location, "there is no such domain");
                continue;
            }
            let in_force = domains.into_iter().map(|domain| {
                let labels = domain.root.nodes().iter().map(|node| node.label.to_string());
                (self.of_domain(&domain.name, labels), domain.rules())
            });
            let in_force: Vec<_> = in_force.collect();
            for block in &block.rules {
                let matching = in_force.iter().flat_map(|(overlay, rules)| {
                    rules.iter().filter(|rule| overlay.matches(block, &rule.path))
                });
                let matching: Vec<&&Rule> = matching.collect();
                if matching.is_empty() {
                    warn(
                        block.path.location,
                        "there is no such rule; `explain` and /rlconfig show the paths of rules",
                    );
                    continue;
                }
                for (key, location, _) in block.block.stated() {
                    if !matching.iter().any(|rule| uses(rule, key, location)) {
                        let text = format!(
                            "`{key}` has no effect on any matching rule: it does not apply, or a block with higher precedence sets it"
                        );
                        warn(location, &text);
                    }
                }
            }
        }
    }
}

/// Whether an option of the overlay is in force for a rule.
fn uses(rule: &Rule, key: &str, at: Location) -> bool {
    rule.options.iter().any(|option| {
        option.provenance == Provenance::OverlayOfPath
            && option.key == key
            && (option.origin.line, option.origin.column) == (at.line, at.column)
    })
}

/// Whether a path begins with a name.
fn begins_with(path: &str, name: &str) -> bool {
    path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl DomainBlock {
    fn read(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let mut domain = None;
        let mut block = None;
        let mut rules = Vec::new();
        for (key, value) in reader::map(node, OverlayOfDomain::KEYS, findings)? {
            match reader::key(key, OverlayOfDomain::KEYS, NOT_ELSEWHERE, findings) {
                key @ "domain" => domain = Some(Glob::read(value, key, findings)?),
                "tollgate" => block = read_root_block(value, &mut findings.at(".tollgate")),
                "rules" => rules = list(value, &mut findings.at(".rules"), RuleBlock::read),
                _ => {}
            }
        }
        let Some(domain) = domain else {
            let problem = Diagnostic::new(node.location, "an overlay without `domain`");
            findings
                .problem(problem.hint("write `domain: NAME`, or `domain: '*'` for all of them"));
            return None;
        };
        Some(Self { domain, block, rules })
    }
}

impl RuleBlock {
    fn read(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let mut path = None;
        let mut block = None;
        for (key, value) in reader::map(node, OverlayOfRule::KEYS, findings)? {
            match reader::key(key, OverlayOfRule::KEYS, NOT_ELSEWHERE, findings) {
                key @ "path" => path = Some(Glob::read(value, key, findings)?),
                "tollgate" => block = Some(read_block(value, &mut findings.at(".tollgate"))?),
                _ => {}
            }
        }
        let (Some(path), Some(block)) = (path, block) else {
            let text = "rules of an overlay need `path` and `tollgate`";
            let hint =
                "write `path`, the keys and values down to the rule joined by dots, and `tollgate`";
            findings.reject(node.location, text, hint);
            return None;
        };
        Some(Self { path, block })
    }
}

impl<'o> DomainOverlay<'o> {
    /// Whether requests of the domain are all or nothing; `None` if no block sets it.
    pub(crate) fn all_or_nothing(&self) -> Option<bool> {
        self.blocks.iter().find_map(|domain| domain.block.as_ref()?.all_or_nothing)
    }

    /// Adds the blocks that match the rule of a path.
    pub(crate) fn add_layers(&self, path: &str, layers: &mut Layers<'o>) {
        let rules = self.blocks.iter().flat_map(|domain| &domain.rules);
        let rules = rules.filter(|rule| self.matches(rule, path));
        let defaults =
            self.blocks.iter().filter_map(|domain| domain.block.as_ref()?.defaults.as_ref());
        let rules = rules.map(|rule| &rule.block);
        layers.extend(rules.map(Layer::of(Provenance::OverlayOfPath, self.file)));
        layers.extend(defaults.map(Layer::of(Provenance::OverlayOfDomain, self.file)));
    }

    fn matches(&self, block: &RuleBlock, path: &str) -> bool {
        let glob = &block.path.value;
        let domain = self.domain;
        let path_in_domain = path.get(domain.len() + 1..).unwrap_or_default();
        let may_name_domain = !self.has_key_of_its_name && begins_with(&glob.text, domain);
        glob.matches(path_in_domain) || may_name_domain && glob.matches(path)
    }
}

impl Glob {
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Located<Self>> {
        let text = reader::text(node, key, findings)?;
        let glob = Self { text: text.into(), pattern: Pattern::new(text) };
        Some(Located::new(glob, node.location))
    }

    fn matches(&self, text: &str) -> bool {
        match &self.pattern {
            None => *self.text == *text,
            Some(pattern) => pattern.matches(text.as_bytes()),
        }
    }
}
