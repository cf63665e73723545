//! The `tollgate` block in the `metadata` of a descriptor or of a file.
//!
//! The reference passes over it, so a file that has one loads there, too. Here nothing in it is
//! passed over: an operator who writes a key relies on it. Each value is looked at by itself; what
//! they come to together is said in `resolve.rs`.

use http::{HeaderName, HeaderValue};

use crate::config::Located;
use crate::config::error::{Draft, SourceFindings, did_you_mean};
use crate::config::yaml::{Kind, Location, Node, Scalar, Value};
use crate::limit::{Algorithm, OverLimitHits};
use crate::rules::OnStoreError;
use crate::settings::parse;
use crate::time::Span;

const RULE_KEYS: [&str; 12] = [
    "algorithm",
    "unit_multiplier",
    "burst",
    "buckets",
    "over_limit_hits",
    "on_limit",
    "max_wait",
    "request_headers",
    "response_body",
    "on_store_error",
    "lease_by",
    "lease",
];
const ROOT_KEYS: [&str; 2] = ["all_or_nothing", "defaults"];
/// Names of the keys before 0.1, each with its present name.
const RENAMED_KEYS: [(&str, &str); 2] = [
    ("together", "all_or_nothing"),
    ("refused_hits", "over_limit_hits"),
];

/// How many headers a rule may add to a request: they are sent with every one that is degraded.
pub const REQUEST_HEADERS_MAX: usize = 16;
/// How long their names and values may be together. Proxies and applications refuse requests with
/// much more than 8 KiB of headers.
pub const REQUEST_HEADERS_BYTES_MAX: usize = 4 << 10;
/// How long the body of a refusal may be: it is sent to whoever floods.
pub const RESPONSE_BODY_BYTES_MAX: usize = 4 << 10;

/// The units of a duration. Those beyond are longer than anybody waits, or holds a place.
const DURATION_UNITS: [&str; 5] = ["us", "ms", "s", "m", "h"];

/// The words of `on_limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLimitWord {
    /// `reject`
    Reject,
    /// `queue`
    Queue,
    /// `degrade`
    Degrade,
}

/// Names in lower case, and values.
pub type RequestHeaders = Box<[(Box<str>, Box<str>)]>;

/// What a rule says, or the defaults of a domain.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// `algorithm`
    pub algorithm: Option<Located<Algorithm>>,
    /// `unit_multiplier`
    pub unit_multiplier: Option<Located<u32>>,
    /// `burst`
    pub burst: Option<Located<u32>>,
    /// `buckets`
    pub buckets: Option<Located<u32>>,
    /// `over_limit_hits`
    pub over_limit_hits: Option<Located<OverLimitHits>>,
    /// `on_limit`
    pub on_limit: Option<Located<OnLimitWord>>,
    /// `max_wait`
    pub max_wait: Option<Located<Span>>,
    /// `request_headers`
    pub request_headers: Option<Located<RequestHeaders>>,
    /// `response_body`
    pub response_body: Option<Located<Box<str>>>,
    /// `on_store_error`
    pub on_store_error: Option<Located<OnStoreError>>,
    /// `lease_by`
    pub lease_by: Option<Located<Box<str>>>,
    /// `lease`
    pub lease: Option<Located<Span>>,
    /// Something in it could not be read, and was told. What is missing besides may only seem to
    /// be.
    pub is_faulty: bool,
    /// Where it begins.
    pub location: Location,
}

/// What a file says for its whole domain.
#[derive(Debug, Clone, Default)]
pub struct RootBlock {
    /// `all_or_nothing`
    pub all_or_nothing: Option<bool>,
    /// `defaults`
    pub defaults: Option<Block>,
    /// Where it begins.
    pub location: Location,
}

impl Block {
    /// Reads the block of a rule. `place` is where it stands in the rules.
    pub fn read(node: &Node, place: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let mut reader = Reader::new(place, findings);
        let pairs = reader.map(node, &RULE_KEYS)?;
        let mut block = Self {
            location: node.location,
            ..Self::default()
        };
        for (key, value) in pairs {
            match reader.key(key, &RULE_KEYS) {
                name @ "algorithm" => {
                    block.algorithm =
                        reader.word(value, name, &Algorithm::ALL.map(|word| (word.name(), word)))
                }
                name @ "unit_multiplier" => block.unit_multiplier = reader.number(value, name),
                name @ "burst" => block.burst = reader.number(value, name),
                name @ "buckets" => block.buckets = reader.number(value, name),
                name @ "over_limit_hits" => {
                    block.over_limit_hits = reader.word(
                        value,
                        name,
                        &OverLimitHits::ALL.map(|word| (word.name(), word)),
                    )
                }
                name @ "on_limit" => {
                    block.on_limit = reader.word(
                        value,
                        name,
                        &OnLimitWord::ALL.map(|word| (word.name(), word)),
                    )
                }
                name @ "max_wait" => block.max_wait = reader.duration(value, name, "200ms"),
                name @ "request_headers" => block.request_headers = reader.headers(value, name),
                name @ "response_body" => block.response_body = reader.body(value, name),
                name @ "on_store_error" => {
                    block.on_store_error = reader.word(
                        value,
                        name,
                        &OnStoreError::ALL.map(|word| (word.name(), word)),
                    );
                }
                name @ "lease_by" => block.lease_by = reader.text(value, name),
                name @ "lease" => block.lease = reader.duration(value, name, "30s"),
                _ => {}
            }
        }
        Some(Self {
            is_faulty: reader.has_told,
            ..block
        })
    }

    /// The keys that it has, and where their values stand.
    pub fn words(&self) -> Vec<(&'static str, Location)> {
        fn word<T>(
            key: &'static str,
            located: Option<&Located<T>>,
        ) -> Option<(&'static str, Location)> {
            located.map(|located| (key, located.location))
        }
        let words = [
            word("algorithm", self.algorithm.as_ref()),
            word("unit_multiplier", self.unit_multiplier.as_ref()),
            word("burst", self.burst.as_ref()),
            word("buckets", self.buckets.as_ref()),
            word("over_limit_hits", self.over_limit_hits.as_ref()),
            word("on_limit", self.on_limit.as_ref()),
            word("max_wait", self.max_wait.as_ref()),
            word("request_headers", self.request_headers.as_ref()),
            word("response_body", self.response_body.as_ref()),
            word("on_store_error", self.on_store_error.as_ref()),
            word("lease_by", self.lease_by.as_ref()),
            word("lease", self.lease.as_ref()),
        ];
        words.into_iter().flatten().collect()
    }
}

impl RootBlock {
    /// Reads the block of a file.
    pub fn read(node: &Node, place: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let mut reader = Reader::new(place, findings);
        let pairs = reader.map(node, &ROOT_KEYS)?;
        let mut block = Self {
            location: node.location,
            ..Self::default()
        };
        for (key, value) in pairs {
            match reader.key(key, &ROOT_KEYS) {
                "all_or_nothing" => {
                    block.all_or_nothing = Some(reader.flag(value, "all_or_nothing"))
                }
                "defaults" => {
                    block.defaults =
                        Block::read(value, &format!("{place}.defaults"), reader.findings)
                }
                _ => {}
            }
        }
        Some(block)
    }
}

impl OnLimitWord {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Reject, Self::Queue, Self::Degrade];

    /// As rules write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Queue => "queue",
            Self::Degrade => "degrade",
        }
    }
}

/// Reads maps of ours, and tells what is wrong with them.
pub(super) struct Reader<'p, 'f, 'r> {
    pub(super) place: &'p str,
    pub(super) findings: &'f mut SourceFindings<'r>,
    has_told: bool,
}

impl<'p, 'f, 'r> Reader<'p, 'f, 'r> {
    pub(super) fn new(place: &'p str, findings: &'f mut SourceFindings<'r>) -> Self {
        Self {
            place,
            findings,
            has_told: false,
        }
    }

    pub(super) fn map<'n>(&mut self, node: &'n Node, known: &[&str]) -> Option<&'n [(Node, Node)]> {
        if let Kind::Map(pairs) = &node.kind {
            return Some(pairs);
        }
        self.problem(
            node.location,
            "expected a map of settings of this block".to_owned(),
            Some(format!("the keys are {}", known.join(", "))),
        );
        None
    }

    /// The key, if it is one of these; else it is told, and empty.
    pub(super) fn key<'n>(&mut self, node: &'n Node, known: &[&str]) -> &'n str {
        let name = if let Kind::Scalar(scalar) = &node.kind {
            &*scalar.text
        } else {
            ""
        };
        if known.contains(&name) {
            return name;
        }
        if let Some((old, new)) = RENAMED_KEYS.iter().find(|(old, _)| *old == name) {
            self.problem(node.location, format!("`{old}` is now `{new}`"), None);
            return "";
        }
        let hint = if RULE_KEYS.contains(&name) {
            format!("`{name}` belongs to a rule's own block, or into `defaults`")
        } else if ROOT_KEYS.contains(&name) {
            format!("`{name}` belongs into the block at the top of the file")
        } else {
            let meant = did_you_mean(name, known.iter().copied());
            meant.map_or_else(
                || format!("the keys here are {}", known.join(", ")),
                |word| format!("did you mean `{word}`?"),
            )
        };
        self.problem(node.location, format!("unknown key '{name}'"), Some(hint));
        ""
    }

    fn word<T: Copy>(&mut self, node: &Node, key: &str, words: &[(&str, T)]) -> Option<Located<T>> {
        let word = scalar(node).map_or("", |scalar| &scalar.text);
        if let Some(&(_, value)) = words.iter().find(|(name, _)| *name == word) {
            return Some(Located {
                value,
                location: node.location,
            });
        }
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let listed = names.join(", ");
        let hint = did_you_mean(word, names);
        let hint = hint.map_or_else(
            || format!("write one of {listed}"),
            |meant| format!("did you mean `{meant}`? One of {listed} can be written"),
        );
        self.problem(
            node.location,
            format!("'{word}' is no value of `{key}`"),
            Some(hint),
        );
        None
    }

    fn number(&mut self, node: &Node, key: &str) -> Option<Located<u32>> {
        if let Some(Value::Int(value)) = scalar(node).map(Scalar::value)
            && let Ok(value) = u32::try_from(value)
        {
            return Some(Located {
                value,
                location: node.location,
            });
        }
        self.problem(
            node.location,
            format!(
                "`{key}` must be a whole number from 0 to {}, without quotes",
                u32::MAX
            ),
            None,
        );
        None
    }

    /// A whole number and a unit. Other ways to write a duration are not for people who are going
    /// to be read by others.
    fn duration(&mut self, node: &Node, key: &str, example: &str) -> Option<Located<Span>> {
        let text = scalar(node).map_or("", |scalar| &scalar.text);
        let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
        if DURATION_UNITS.contains(&unit)
            && let Ok(value) = parse::duration(text)
        {
            return Some(Located {
                value,
                location: node.location,
            });
        }
        let units = DURATION_UNITS.join(", ");
        self.problem(
            node.location,
            format!("`{key}` must be a whole number and a unit"),
            Some(format!(
                "write it as `{key}: {example}`; the units are {units}"
            )),
        );
        None
    }

    pub(super) fn text(&mut self, node: &Node, key: &str) -> Option<Located<Box<str>>> {
        match scalar(node) {
            Some(scalar) if scalar.value() != Value::Null => Some(Located {
                value: (*scalar.text).into(),
                location: node.location,
            }),
            _ => {
                self.problem(node.location, format!("`{key}` must be a text"), None);
                None
            }
        }
    }

    fn body(&mut self, node: &Node, key: &str) -> Option<Located<Box<str>>> {
        let body = self.text(node, key)?;
        if body.value.len() <= RESPONSE_BODY_BYTES_MAX {
            return Some(body);
        }
        let text = format!(
            "`{key}` has {} bytes, more than the {RESPONSE_BODY_BYTES_MAX} of response_body_bytes_max",
            body.value.len()
        );
        self.problem(
            node.location,
            text,
            Some("write less: it is sent with every refusal".to_owned()),
        );
        None
    }

    /// Headers that Envoy can add to a request.
    fn headers(&mut self, node: &Node, key: &str) -> Option<Located<RequestHeaders>> {
        let Kind::Map(pairs) = &node.kind else {
            let hint = "write it as `request_headers: {x-degraded: \"true\"}`".to_owned();
            self.problem(
                node.location,
                format!("`{key}` must be a map of names and values"),
                Some(hint),
            );
            return None;
        };
        let fewer = "write fewer: they are sent with every request that is degraded".to_owned();
        if pairs.len() > REQUEST_HEADERS_MAX {
            let text = format!(
                "`{key}` has {} headers, more than the {REQUEST_HEADERS_MAX} of request_headers_max",
                pairs.len()
            );
            self.problem(node.location, text, Some(fewer));
            return None;
        }
        let mut headers: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (name_node, value) in pairs.iter() {
            let (Some(name), Some(value)) = (self.header_name(name_node), self.header_value(value))
            else {
                continue;
            };
            if headers.iter().any(|(other, _)| *other == name) {
                let text = format!("the header {name} is there already: case makes no difference");
                self.problem(
                    name_node.location,
                    text,
                    Some("keep one of them".to_owned()),
                );
            }
            headers.push((name, value));
        }
        let bytes: usize = headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes > REQUEST_HEADERS_BYTES_MAX {
            let text = format!(
                "`{key}` has {bytes} bytes, more than the {REQUEST_HEADERS_BYTES_MAX} of request_headers_bytes_max"
            );
            self.problem(node.location, text, Some(fewer));
        }
        Some(Located {
            value: headers.into(),
            location: node.location,
        })
    }

    fn header_name(&mut self, node: &Node) -> Option<Box<str>> {
        let text = scalar(node).map_or("", |scalar| &scalar.text);
        match HeaderName::from_bytes(text.as_bytes()) {
            Ok(name) if name != http::header::HOST => Some(name.as_str().into()),
            _ => {
                let hint = "write a name of letters, digits and hyphens, such as x-degraded; not host, and none that begins with a colon";
                self.problem(
                    node.location,
                    format!("'{text}' is no header that can be added to a request"),
                    Some(hint.to_owned()),
                );
                None
            }
        }
    }

    fn header_value(&mut self, node: &Node) -> Option<Box<str>> {
        match scalar(node).filter(|scalar| scalar.value() != Value::Null) {
            Some(scalar)
                if HeaderValue::from_str(&scalar.text)
                    .is_ok_and(|value| value.to_str().is_ok()) =>
            {
                Some((*scalar.text).into())
            }
            _ => {
                let hint =
                    "write a text of visible ASCII characters and spaces on one line".to_owned();
                self.problem(node.location, "no value of a header".to_owned(), Some(hint));
                None
            }
        }
    }

    fn flag(&mut self, node: &Node, key: &str) -> bool {
        if let Some(Value::Bool(value)) = scalar(node).map(Scalar::value) {
            return value;
        }
        self.problem(
            node.location,
            format!("`{key}` must be true or false, without quotes"),
            None,
        );
        false
    }

    pub(super) fn problem(&mut self, location: Location, text: String, hint: Option<String>) {
        self.has_told = true;
        self.findings.problem(Draft {
            location,
            place: self.place,
            text,
            hint,
        });
    }
}

fn scalar(node: &Node) -> Option<&Scalar> {
    match &node.kind {
        Kind::Scalar(scalar) => Some(scalar),
        Kind::List(_) | Kind::Map(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;
    use crate::config::error::Findings;
    use crate::config::yaml;

    /// What is wrong with a block.
    fn problems(text: &str) -> Vec<String> {
        let source = Source {
            name: "rules".into(),
            path: "rules".into(),
            text: text.into(),
        };
        let root = yaml::read(text)
            .expect("it is YAML")
            .root
            .expect("it says something");
        let mut findings = Findings::default();
        Block::read(&root, "", &mut findings.of(&source));
        findings
            .into_parts()
            .0
            .into_iter()
            .map(|finding| finding.text)
            .collect()
    }

    #[test]
    fn what_is_sent_with_every_request_or_refusal_is_bounded() {
        let headers = |count: usize| {
            let headers: Vec<String> = (0..count).map(|index| format!("x-{index}: v")).collect();
            problems(&format!("request_headers: {{{}}}", headers.join(", ")))
        };
        assert_eq!(headers(16), [""; 0]);
        assert_eq!(
            headers(17),
            ["`request_headers` has 17 headers, more than the 16 of request_headers_max"]
        );

        let header = |bytes: usize| {
            problems(&format!(
                "request_headers: {{x-a: {}}}",
                "v".repeat(bytes - "x-a".len())
            ))
        };
        assert_eq!(header(4_096), [""; 0]);
        assert_eq!(
            header(4_097),
            ["`request_headers` has 4097 bytes, more than the 4096 of request_headers_bytes_max"]
        );

        let body = |bytes: usize| problems(&format!("response_body: {}", "b".repeat(bytes)));
        assert_eq!(body(4_096), [""; 0]);
        assert_eq!(
            body(4_097),
            ["`response_body` has 4097 bytes, more than the 4096 of response_body_bytes_max"]
        );
    }
}
