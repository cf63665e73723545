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

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::error::{Draft, SourceFindings};
use crate::config::source::{Located, Source};
use crate::config::tollgate::reader::Reader;
use crate::config::tollgate::{Block, Layer, Layers, RootBlock, read_block, read_root_block};
use crate::config::yaml::{self, Kind, Location, Node};
use crate::rules::wildcard::Pattern;
use crate::rules::{EffectiveOption, Provenance};

const FILE_KEYS: [&str; 1] = ["overlays"];
const DOMAIN_KEYS: [&str; 3] = ["domain", "tollgate", "rules"];
const RULE_KEYS: [&str; 2] = ["path", "tollgate"];

/// The most blocks of an overlay: each rule is matched against all blocks of its domain.
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
    has_matched: Cell<bool>,
}

/// The block for the rules of one glob.
#[derive(Debug)]
struct RuleBlock {
    path: Located<Glob>,
    block: Block,
    has_matched: Cell<bool>,
    /// Keys of it that are in force for some rule.
    used: RefCell<BTreeSet<&'static str>>,
}

/// The blocks that match one domain.
#[derive(Debug, Clone)]
pub(crate) struct DomainOverlay<'o> {
    file: &'o Arc<str>,
    blocks: Vec<&'o DomainBlock>,
}

/// A text in which a `*` matches any other.
#[derive(Debug)]
enum Glob {
    Text(Box<str>),
    Pattern(Pattern),
}

impl Overlay {
    pub(crate) fn read(source: &Source, findings: &mut SourceFindings<'_>) -> Self {
        let mut overlay = Self {
            file: source.path.clone(),
            domains: Vec::new(),
        };
        let document = match yaml::read(&source.text) {
            Ok(document) => document,
            Err(error) => {
                findings.problem(Draft {
                    location: error.location,
                    place: "",
                    text: error.text,
                    hint: error.hint,
                });
                return overlay;
            }
        };
        for warning in document.warnings {
            findings.warning(Draft::new(warning.location, "", warning.text));
        }
        let Some(root) = document.root.filter(|root| !root.is_null()) else {
            return overlay;
        };
        let mut reader = Reader::new("", findings);
        for (key, value) in reader.map(&root, &FILE_KEYS).unwrap_or_default() {
            if reader.key(key, &FILE_KEYS) == "overlays" {
                overlay.domains = list(value, "overlays", reader.findings, DomainBlock::read);
            }
        }
        let blocks: usize = overlay
            .domains
            .iter()
            .map(|domain| 1 + domain.rules.len())
            .sum();
        if blocks > OVERLAY_BLOCKS_MAX {
            let text = format!(
                "{blocks} blocks, more than the {OVERLAY_BLOCKS_MAX} of overlay_blocks_max"
            );
            let hint = "write globs that match more, or write the blocks into the rules themselves";
            findings.problem(Draft::new(root.location, "overlays", text).hint(hint));
            overlay.domains.clear();
        }
        overlay
    }

    pub(crate) fn of_domain(&self, domain: &str) -> DomainOverlay<'_> {
        let blocks: Vec<_> = self
            .domains
            .iter()
            .filter(|block| block.domain.value.matches(domain))
            .collect();
        for block in &blocks {
            block.has_matched.set(true);
        }
        DomainOverlay {
            file: &self.file,
            blocks,
        }
    }

    /// Warns about what had no effect on the compiled rules.
    pub(crate) fn warn_about_unused(&self, findings: &mut SourceFindings<'_>) {
        let mut warn = |location: Location, text: String| {
            findings.warning(Draft::new(location, "overlays", text));
        };
        for domain in &self.domains {
            if !domain.has_matched.get() {
                warn(domain.domain.location, "there is no such domain".to_owned());
                continue;
            }
            for rule in &domain.rules {
                if !rule.has_matched.get() {
                    let text =
                        "there is no such rule; `explain` and /rlconfig show the paths of rules";
                    warn(rule.path.location, text.to_owned());
                    continue;
                }
                let used = rule.used.borrow();
                for (key, location) in rule.block.stated().filter(|(key, _)| !used.contains(key)) {
                    let text = format!(
                        "`{key}` has no effect on any matching rule: it does not apply, or a block with higher precedence sets it"
                    );
                    warn(location, text);
                }
            }
        }
    }
}

impl DomainBlock {
    fn read(node: &Node, place: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let (mut domain, mut block, mut rules) = (None, None, Vec::new());
        let mut reader = Reader::new(place, findings);
        for (key, value) in reader.map(node, &DOMAIN_KEYS)? {
            match reader.key(key, &DOMAIN_KEYS) {
                key @ "domain" => domain = Some(Glob::read(value, key, &mut reader)?),
                "tollgate" => {
                    block = read_root_block(value, &format!("{place}.tollgate"), reader.findings);
                }
                "rules" => {
                    let place = format!("{place}.rules");
                    rules = list(value, &place, reader.findings, RuleBlock::read);
                }
                _ => {}
            }
        }
        let Some(domain) = domain else {
            let hint = Some("write `domain: NAME`, or `domain: '*'` for all of them".to_owned());
            let text = "an overlay without `domain`".to_owned();
            reader.problem(node.location, text, hint);
            return None;
        };
        Some(Self {
            domain,
            block,
            rules,
            has_matched: Cell::new(false),
        })
    }
}

impl RuleBlock {
    fn read(node: &Node, place: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let (mut path, mut block) = (None, None);
        let mut reader = Reader::new(place, findings);
        for (key, value) in reader.map(node, &RULE_KEYS)? {
            match reader.key(key, &RULE_KEYS) {
                key @ "path" => path = Some(Glob::read(value, key, &mut reader)?),
                "tollgate" => {
                    let place = format!("{place}.tollgate");
                    block = Some(read_block(value, &place, reader.findings)?);
                }
                _ => {}
            }
        }
        let (Some(path), Some(block)) = (path, block) else {
            let hint =
                "write `path`, the keys and values down to the rule joined by dots, and `tollgate`";
            let text = "rules of an overlay need `path` and `tollgate`".to_owned();
            reader.problem(node.location, text, Some(hint.to_owned()));
            return None;
        };
        Some(Self {
            path,
            block,
            has_matched: Cell::new(false),
            used: RefCell::default(),
        })
    }
}

impl<'o> DomainOverlay<'o> {
    /// Whether requests of the domain are all or nothing; `None` if no block sets it.
    pub(crate) fn all_or_nothing(&self) -> Option<bool> {
        self.blocks
            .iter()
            .find_map(|domain| domain.block.as_ref()?.all_or_nothing)
    }

    /// Adds the blocks that match a rule; `path` is its path without the domain.
    pub(crate) fn add_layers(&self, path: &str, layers: &mut Layers<'o>) {
        let file = self.file;
        for rule in self.matching(path) {
            rule.has_matched.set(true);
            layers.push(Layer {
                block: &rule.block,
                provenance: Provenance::OverlayOfPath,
                file,
            });
        }
        let defaults = self
            .blocks
            .iter()
            .filter_map(|domain| domain.block.as_ref()?.defaults.as_ref());
        layers.extend(defaults.map(|block| Layer {
            block,
            provenance: Provenance::OverlayOfDomain,
            file,
        }));
    }

    /// Records which options of the overlay are in force for a rule.
    pub(crate) fn record_use(&self, path: &str, options: &[EffectiveOption]) {
        for rule in self.matching(path) {
            let is_from = |option: &&EffectiveOption| {
                option.provenance == Provenance::OverlayOfPath
                    && rule.block.stated().any(|(key, at)| {
                        key == option.key
                            && (at.line, at.column) == (option.origin.line, option.origin.column)
                    })
            };
            let used = options.iter().filter(is_from).map(|option| option.key);
            rule.used.borrow_mut().extend(used);
        }
    }

    fn matching<'p>(&self, path: &'p str) -> impl Iterator<Item = &'o RuleBlock> + use<'_, 'o, 'p> {
        self.blocks
            .iter()
            .flat_map(|domain| &domain.rules)
            .filter(move |rule| rule.path.value.matches(path))
    }
}

impl Glob {
    fn read(node: &Node, key: &str, reader: &mut Reader<'_, '_, '_>) -> Option<Located<Self>> {
        let text = reader.text(node, key)?;
        Some(Located {
            value: Pattern::new(&text).map_or(Self::Text(text), Self::Pattern),
            location: node.location,
        })
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Text(wanted) => **wanted == *text,
            Self::Pattern(pattern) => pattern.matches(text.as_bytes()),
        }
    }
}

fn list<T>(
    node: &Node,
    place: &str,
    findings: &mut SourceFindings<'_>,
    read: impl Fn(&Node, &str, &mut SourceFindings<'_>) -> Option<T>,
) -> Vec<T> {
    match &node.kind {
        Kind::List(items) => items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| read(item, &format!("{place}[{index}]"), findings))
            .collect(),
        _ if node.is_null() => Vec::new(),
        _ => {
            let draft = Draft::new(node.location, place, "expected a list");
            findings.problem(draft.hint("begin each item with a hyphen"));
            Vec::new()
        }
    }
}
