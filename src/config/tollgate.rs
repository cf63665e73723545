//! The `tollgate` block in the `metadata` of a descriptor or of a file.
//!
//! The reference passes over it, so a file that has one loads there, too. Here nothing in it is passed over: a key that is unknown, or
//! that this version does not have yet, is refused by name.

use crate::config::Located;
use crate::config::error::{Draft, SourceFindings, did_you_mean};
use crate::config::yaml::{Kind, Node, Scalar, Spot, Value};
use crate::limit::{Algorithm, RefusedHits};
use crate::rules::OnStoreError;

const RULE_KEYS: [&str; 6] = ["algorithm", "unit_multiplier", "burst", "refused_hits", "on_limit", "on_store_error"];
const ROOT_KEYS: [&str; 2] = ["together", "defaults"];

/// Planned, and refused until they work: an operator who writes one relies on it.
const KEYS_TO_COME: [&str; 6] = ["buckets", "max_wait", "request_headers", "response_body", "lease_by", "lease"];
const ALGORITHMS_TO_COME: [&str; 4] = ["sliding_window", "sliding_log", "leaky_bucket", "concurrency"];
const ON_LIMIT_TO_COME: [&str; 2] = ["queue", "degrade"];

/// What a rule says, or the defaults of a domain.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// `algorithm`
    pub algorithm: Option<Located<Algorithm>>,
    /// `unit_multiplier`
    pub unit_multiplier: Option<Located<u32>>,
    /// `burst`
    pub burst: Option<Located<u32>>,
    /// `refused_hits`
    pub refused_hits: Option<Located<RefusedHits>>,
    /// `on_store_error`
    pub on_store_error: Option<OnStoreError>,
    /// Where it begins.
    pub spot: Spot,
}

/// What a file says for its whole domain.
#[derive(Debug, Clone, Default)]
pub struct RootBlock {
    /// `together`
    pub together: bool,
    /// `defaults`
    pub defaults: Option<Block>,
    /// Where it begins.
    pub spot: Spot,
}

impl Block {
    /// Reads the block of a rule. `place` is where it stands in the rules.
    pub fn read(node: &Node, place: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let mut reader = Reader { place, findings };
        let pairs = reader.map(node)?;
        let mut block = Self { spot: node.spot, ..Self::default() };
        for (key, value) in pairs {
            let spot = value.spot;
            match reader.key(key, &RULE_KEYS) {
                "algorithm" => {
                    let algorithm = reader.word(value, "algorithm", &Algorithm::ALL.map(Algorithm::name), &ALGORITHMS_TO_COME);
                    block.algorithm = algorithm.and_then(Algorithm::from_name).map(|value| Located { value, spot });
                }
                "refused_hits" => {
                    let refused_hits = reader.word(value, "refused_hits", &RefusedHits::ALL.map(RefusedHits::name), &[]);
                    block.refused_hits = refused_hits.and_then(RefusedHits::from_name).map(|value| Located { value, spot });
                }
                "unit_multiplier" => block.unit_multiplier = reader.number(value, "unit_multiplier"),
                "burst" => block.burst = reader.number(value, "burst"),
                "on_limit" => {
                    reader.word(value, "on_limit", &["reject"], &ON_LIMIT_TO_COME);
                }
                "on_store_error" => {
                    let policy = reader.word(value, "on_store_error", &OnStoreError::ALL.map(OnStoreError::name), &[]);
                    block.on_store_error = policy.and_then(OnStoreError::from_name);
                }
                _ => {}
            }
        }
        Some(block)
    }
}

impl RootBlock {
    /// Reads the block of a file.
    pub fn read(node: &Node, place: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let mut reader = Reader { place, findings };
        let pairs = reader.map(node)?;
        let mut block = Self { spot: node.spot, ..Self::default() };
        for (key, value) in pairs {
            match reader.key(key, &ROOT_KEYS) {
                "together" => block.together = reader.flag(value, "together"),
                "defaults" => block.defaults = Block::read(value, &format!("{place}.defaults"), reader.findings),
                _ => {}
            }
        }
        Some(block)
    }
}

struct Reader<'p, 'f, 'r> {
    place: &'p str,
    findings: &'f mut SourceFindings<'r>,
}

impl Reader<'_, '_, '_> {
    fn map<'n>(&mut self, node: &'n Node) -> Option<&'n [(Node, Node)]> {
        if let Kind::Map(pairs) = &node.kind {
            return Some(pairs);
        }
        self.problem(
            node.spot,
            "expected a map of settings of this block".to_owned(),
            Some(format!("the keys are {}", RULE_KEYS.join(", "))),
        );
        None
    }

    /// The key, if it is one of these; else it is told, and empty.
    fn key<'n>(&mut self, node: &'n Node, known: &[&str]) -> &'n str {
        let name = if let Kind::Scalar(scalar) = &node.kind { &*scalar.text } else { "" };
        if known.contains(&name) {
            return name;
        }
        if KEYS_TO_COME.contains(&name) {
            self.problem(node.spot, format!("`{name}` is not supported by this version of Tollgate"), Some("remove it".to_owned()));
            return "";
        }
        let hint = if RULE_KEYS.contains(&name) {
            format!("`{name}` belongs to a rule's own block, or into `defaults`")
        } else if ROOT_KEYS.contains(&name) {
            format!("`{name}` belongs into the block at the top of the file")
        } else {
            let meant = did_you_mean(name, known.iter().copied().chain(KEYS_TO_COME));
            meant.map_or_else(|| format!("the keys here are {}", known.join(", ")), |word| format!("did you mean `{word}`?"))
        };
        self.problem(node.spot, format!("unknown key '{name}'"), Some(hint));
        ""
    }

    fn word<'n>(&mut self, node: &'n Node, key: &str, words: &[&str], to_come: &[&str]) -> Option<&'n str> {
        let word = scalar(node).map_or("", |scalar| &scalar.text);
        if words.contains(&word) {
            return Some(word);
        }
        let listed = words.join(", ");
        if to_come.contains(&word) {
            let text = format!("`{key}: {word}` is not supported by this version of Tollgate");
            self.problem(node.spot, text, Some(format!("write one of {listed}")));
            return None;
        }
        let hint = did_you_mean(word, words.iter().chain(to_come).copied());
        let hint = hint
            .map_or_else(|| format!("write one of {listed}"), |meant| format!("did you mean `{meant}`? One of {listed} can be written"));
        self.problem(node.spot, format!("'{word}' is no value of `{key}`"), Some(hint));
        None
    }

    fn number(&mut self, node: &Node, key: &str) -> Option<Located<u32>> {
        if let Some(Value::Int(value)) = scalar(node).map(Scalar::value)
            && let Ok(value) = u32::try_from(value)
        {
            return Some(Located { value, spot: node.spot });
        }
        self.problem(node.spot, format!("`{key}` must be a whole number from 0 to {}, without quotes", u32::MAX), None);
        None
    }

    fn flag(&mut self, node: &Node, key: &str) -> bool {
        if let Some(Value::Bool(value)) = scalar(node).map(Scalar::value) {
            return value;
        }
        self.problem(node.spot, format!("`{key}` must be true or false, without quotes"), None);
        false
    }

    fn problem(&mut self, spot: Spot, text: String, hint: Option<String>) {
        self.findings.problem(Draft { spot, place: self.place, text, hint });
    }
}

fn scalar(node: &Node) -> Option<&Scalar> {
    match &node.kind {
        Kind::Scalar(scalar) => Some(scalar),
        Kind::List(_) | Kind::Map(_) => None,
    }
}
