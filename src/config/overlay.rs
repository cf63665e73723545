//! The overlay: `tollgate` blocks for rules that somebody else writes, as Envoy Gateway does.
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
//! A `*` stands for any text, also none. What is met first counts, key by key. What meets nothing
//! is told, since nobody would miss it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::error::{Draft, SourceFindings};
use crate::config::resolve::{Layer, Layers};
use crate::config::tollgate::{Block, Reader, RootBlock};
use crate::config::yaml::{self, Kind, Location, Node, Value};
use crate::config::{Located, Source};
use crate::rules::wildcard::Pattern;
use crate::rules::{EffectiveOption, Provenance};

const FILE_KEYS: [&str; 1] = ["overlays"];
const DOMAIN_KEYS: [&str; 3] = ["domain", "tollgate", "rules"];
const RULE_KEYS: [&str; 2] = ["path", "tollgate"];

/// How many blocks an overlay may have: each rule is held against each of those of its domain.
pub const OVERLAY_BLOCKS_MAX: usize = 1_000;

/// All of it.
#[derive(Debug, Default)]
pub struct Overlay {
    file: Arc<str>,
    domains: Vec<DomainBlock>,
}

/// Blocks for the domains of one glob.
#[derive(Debug)]
struct DomainBlock {
    domain: Located<Glob>,
    block: Option<RootBlock>,
    rules: Vec<RuleBlock>,
    has_matched: Cell<bool>,
}

/// A block for the rules of one glob.
#[derive(Debug)]
struct RuleBlock {
    path: Located<Glob>,
    block: Block,
    has_matched: Cell<bool>,
    /// Keys of it that counted for some rule.
    counted: RefCell<BTreeSet<&'static str>>,
}

/// What has a say in one domain.
#[derive(Debug, Clone)]
pub struct DomainOverlay<'o> {
    file: &'o Arc<str>,
    all: Vec<&'o DomainBlock>,
}

/// A text, in which a `*` stands for any other.
#[derive(Debug)]
enum Glob {
    Text(Box<str>),
    Pattern(Pattern),
}

impl Overlay {
    /// Reads the file.
    pub fn read(source: &Source, findings: &mut SourceFindings<'_>) -> Self {
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
            findings.warning(Draft {
                location: warning.location,
                place: "",
                text: warning.text,
                hint: None,
            });
        }
        let Some(root) = document.root.filter(|root| !is_null(root)) else {
            return overlay;
        };
        let mut reader = Reader::new("", findings);
        for (key, value) in reader.map(&root, &FILE_KEYS).unwrap_or_default() {
            if reader.key(key, &FILE_KEYS) == "overlays" {
                overlay.domains = list(value, "overlays", reader.findings, DomainBlock::read);
            }
        }
        let blocks = overlay
            .domains
            .iter()
            .map(|domain_block| 1 + domain_block.rules.len())
            .sum::<usize>();
        if blocks > OVERLAY_BLOCKS_MAX {
            let text = format!(
                "{blocks} blocks, more than the {OVERLAY_BLOCKS_MAX} of overlay_blocks_max"
            );
            let hint = Some("write globs that meet more, or have whoever writes the rules write the blocks into them".to_owned());
            findings.problem(Draft {
                location: root.location,
                place: "overlays",
                text,
                hint,
            });
            overlay.domains.clear();
        }
        overlay
    }

    /// What has a say in a domain.
    pub fn in_domain(&self, domain: &str) -> DomainOverlay<'_> {
        let all: Vec<_> = self
            .domains
            .iter()
            .filter(|domain_block| domain_block.domain.value.matches(domain))
            .collect();
        for met in &all {
            met.has_matched.set(true);
        }
        DomainOverlay {
            file: &self.file,
            all,
        }
    }

    /// Tells what is of no use for the rules that it was held against.
    pub fn warn_about_unused(&self, findings: &mut SourceFindings<'_>) {
        let mut warn = |location: Location, text: String| {
            findings.warning(Draft {
                location,
                place: "overlays",
                text,
                hint: None,
            })
        };
        for domain_block in &self.domains {
            if !domain_block.has_matched.get() {
                warn(
                    domain_block.domain.location,
                    "there is no such domain".to_owned(),
                );
                continue;
            }
            for rule_block in &domain_block.rules {
                if !rule_block.has_matched.get() {
                    warn(
                        rule_block.path.location,
                        "there is no such rule; `explain` and /rlconfig show the paths of rules"
                            .to_owned(),
                    );
                    continue;
                }
                let counted = rule_block.counted.borrow();
                for (key, location) in rule_block
                    .block
                    .words()
                    .into_iter()
                    .filter(|(key, _)| !counted.contains(key))
                {
                    warn(
                        location,
                        format!(
                            "`{key}` counts for no rule that is met: it does not fit, or something stronger says so itself"
                        ),
                    );
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
                name @ "domain" => domain = Some(reader.text(value, name)?),
                "tollgate" => {
                    block = RootBlock::read(value, &format!("{place}.tollgate"), reader.findings)
                }
                "rules" => {
                    rules = list(
                        value,
                        &format!("{place}.rules"),
                        reader.findings,
                        RuleBlock::read,
                    )
                }
                _ => {}
            }
        }
        let Some(domain) = domain else {
            let hint = Some("write `domain: NAME`, or `domain: '*'` for all of them".to_owned());
            reader.problem(
                node.location,
                "an overlay without `domain`".to_owned(),
                hint,
            );
            return None;
        };
        Some(Self {
            domain: Glob::located(&domain),
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
                name @ "path" => path = Some(reader.text(value, name)?),
                "tollgate" => {
                    block = Some(Block::read(
                        value,
                        &format!("{place}.tollgate"),
                        reader.findings,
                    )?)
                }
                _ => {}
            }
        }
        let (Some(path), Some(block)) = (path, block) else {
            let hint = Some(
                "write `path`, the keys and values down to the rule joined by dots, and `tollgate`"
                    .to_owned(),
            );
            reader.problem(
                node.location,
                "rules of an overlay need `path` and `tollgate`".to_owned(),
                hint,
            );
            return None;
        };
        Some(Self {
            path: Glob::located(&path),
            block,
            has_matched: Cell::new(false),
            counted: RefCell::default(),
        })
    }
}

impl<'o> DomainOverlay<'o> {
    /// Whether requests of the domain are all or nothing; `None` if nobody says.
    pub fn all_or_nothing(&self) -> Option<bool> {
        self.all
            .iter()
            .find_map(|domain_block| domain_block.block.as_ref()?.all_or_nothing)
    }

    /// Adds what has a say in a rule; `path` is its path without the domain.
    pub fn add_layers(&self, path: &str, layers: &mut Layers<'o>) {
        let file = self.file;
        for rule_block in self.met(path) {
            rule_block.has_matched.set(true);
            layers.push(Layer {
                block: &rule_block.block,
                by: Provenance::OverlayOfPath,
                file,
            });
        }
        let defaults = self
            .all
            .iter()
            .filter_map(|domain_block| domain_block.block.as_ref()?.defaults.as_ref());
        layers.extend(defaults.map(|block| Layer {
            block,
            by: Provenance::OverlayOfDomain,
            file,
        }));
    }

    /// Remembers which of the words it said for a rule counted.
    pub fn note(&self, path: &str, choices: &[EffectiveOption]) {
        for rule_block in self.met(path) {
            let words = rule_block.block.words();
            let counted = choices.iter().filter(|choice| {
                let at = (choice.origin.line, choice.origin.column);
                choice.by == Provenance::OverlayOfPath
                    && words.iter().any(|(key, location)| {
                        *key == choice.key && (location.line, location.column) == at
                    })
            });
            rule_block
                .counted
                .borrow_mut()
                .extend(counted.map(|choice| choice.key));
        }
    }

    fn met<'p>(&self, path: &'p str) -> impl Iterator<Item = &'o RuleBlock> + use<'_, 'o, 'p> {
        self.all
            .iter()
            .flat_map(|domain_block| &domain_block.rules)
            .filter(move |rule_block| rule_block.path.value.matches(path))
    }
}

impl Glob {
    fn located(text: &Located<Box<str>>) -> Located<Self> {
        let value =
            Pattern::new(&text.value).map_or_else(|| Self::Text(text.value.clone()), Self::Pattern);
        Located {
            value,
            location: text.location,
        }
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
        _ if is_null(node) => Vec::new(),
        _ => {
            let hint = Some("begin each item with a hyphen".to_owned());
            findings.problem(Draft {
                location: node.location,
                place,
                text: "expected a list".to_owned(),
                hint,
            });
            Vec::new()
        }
    }
}

fn is_null(node: &Node) -> bool {
    matches!(&node.kind, Kind::Scalar(scalar) if scalar.value() == Value::Null)
}
