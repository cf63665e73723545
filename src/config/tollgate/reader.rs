//! Reads maps and values of Tollgate's own blocks, and reports what is invalid in them.

use crate::config::error::{Draft, SourceFindings, did_you_mean};
use crate::config::yaml::{Kind, Location, Node, Scalar, Value};

/// Names of keys before 0.1, each with its present name.
const RENAMED_KEYS: [(&str, &str); 2] = [
    ("together", "all_or_nothing"),
    ("refused_hits", "over_limit_hits"),
];

pub(crate) struct Reader<'p, 'f, 'r> {
    /// Where in the rules, such as `domain shop > metadata.tollgate`.
    pub(crate) place: &'p str,
    pub(crate) findings: &'f mut SourceFindings<'r>,
    /// Keys of other blocks, and where those belong.
    pub(crate) elsewhere: &'static [(&'static [&'static str], &'static str)],
    pub(crate) has_reported: bool,
}

impl<'p, 'f, 'r> Reader<'p, 'f, 'r> {
    pub(crate) fn new(place: &'p str, findings: &'f mut SourceFindings<'r>) -> Self {
        Self {
            place,
            findings,
            elsewhere: &[],
            has_reported: false,
        }
    }

    pub(crate) fn map<'n>(&mut self, node: &'n Node, known: &[&str]) -> Option<&'n [(Node, Node)]> {
        if let Kind::Map(pairs) = &node.kind {
            return Some(pairs);
        }
        self.problem(
            node.location,
            "expected a map of options".to_owned(),
            Some(format!("the keys are {}", known.join(", "))),
        );
        None
    }

    /// The key if it is known; else it is reported, and empty.
    pub(crate) fn key<'n>(&mut self, node: &'n Node, known: &[&str]) -> &'n str {
        let name = node.scalar().map_or("", |scalar| &*scalar.text);
        if known.contains(&name) {
            return name;
        }
        if let Some((old, new)) = RENAMED_KEYS.iter().find(|(old, _)| *old == name) {
            self.problem(node.location, format!("`{old}` is now `{new}`"), None);
            return "";
        }
        let elsewhere = self.elsewhere.iter().find(|(keys, _)| keys.contains(&name));
        let hint = if let Some((_, place)) = elsewhere {
            format!("`{name}` belongs {place}")
        } else if let Some(meant) = did_you_mean(name, known.iter().copied()) {
            format!("did you mean `{meant}`?")
        } else {
            format!("the keys here are {}", known.join(", "))
        };
        self.problem(node.location, format!("unknown key '{name}'"), Some(hint));
        ""
    }

    pub(crate) fn word<T: Copy>(
        &mut self,
        node: &Node,
        key: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let word = node.scalar().map_or("", |scalar| &scalar.text);
        if let Some(&(_, value)) = words.iter().find(|(name, _)| *name == word) {
            return Some(value);
        }
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let listed = names.join(", ");
        let hint = did_you_mean(word, names).map_or_else(
            || format!("write one of {listed}"),
            |meant| format!("did you mean `{meant}`? The values are {listed}"),
        );
        let text = format!("'{word}' is no value of `{key}`");
        self.problem(node.location, text, Some(hint));
        None
    }

    pub(crate) fn text(&mut self, node: &Node, key: &str) -> Option<Box<str>> {
        match node.scalar() {
            Some(scalar) if scalar.value() != Value::Null => Some((*scalar.text).into()),
            _ => {
                self.problem(node.location, format!("`{key}` must be a text"), None);
                None
            }
        }
    }

    pub(crate) fn flag(&mut self, node: &Node, key: &str) -> bool {
        if let Some(Value::Bool(value)) = node.scalar().map(Scalar::value) {
            return value;
        }
        let text = format!("`{key}` must be true or false, without quotes");
        self.problem(node.location, text, None);
        false
    }

    pub(crate) fn problem(&mut self, location: Location, text: String, hint: Option<String>) {
        self.has_reported = true;
        self.findings.problem(Draft {
            location,
            place: self.place,
            text,
            hint,
        });
    }
}
