//! Reads maps and values of Tollgate's own blocks, and reports what is invalid in them.

use crate::base::text::did_you_mean;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::yaml::{Diagnostic, Kind, Node, Value};

/// Names of keys before 0.1, each with its present name.
const RENAMED_KEYS: [(&str, &str); 2] =
    [("together", "all_or_nothing"), ("refused_hits", "over_limit_hits")];

/// For [`key`], if no key belongs to another block.
pub(crate) const NOT_ELSEWHERE: (&[&str], &str) = (&[], "");

pub(crate) fn map<'n>(
    node: &'n Node,
    known: &[&str],
    findings: &mut SourceFindings<'_>,
) -> Option<&'n [(Node, Node)]> {
    if node.pairs().is_none() {
        let hint = format!("the keys are {}", known.join(", "));
        let text = "expected a map of options";
        findings.reject(node.location, text, hint);
    }
    node.pairs()
}

/// The key if it is known; else it is reported, and empty. `elsewhere` are keys of another block,
/// and where that belongs.
pub(crate) fn key<'n>(
    node: &'n Node,
    known: &[&str],
    elsewhere: (&[&str], &str),
    findings: &mut SourceFindings<'_>,
) -> &'n str {
    let name = node.text();
    if known.contains(&name) {
        return name;
    }
    if let Some((old, new)) = RENAMED_KEYS.iter().find(|(old, _)| *old == name) {
        let text = format!("`{old}` is now `{new}`");
        findings.problem(Diagnostic::new(node.location, text));
        return "";
    }
    let hint = if elsewhere.0.contains(&name) {
        format!("`{name}` belongs {}", elsewhere.1)
    } else if let Some(meant) = did_you_mean(name, known.iter().copied()) {
        format!("did you mean `{meant}`?")
    } else {
        format!("the keys here are {}", known.join(", "))
    };
    let text = format!("unknown key '{name}'");
    findings.reject(node.location, text, hint);
    ""
}

pub(crate) fn word<T: Copy>(
    node: &Node,
    key: &str,
    words: &[(&str, T)],
    findings: &mut SourceFindings<'_>,
) -> Option<T> {
    let word = node.text();
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
    findings.reject(node.location, text, hint);
    None
}

pub(crate) fn text<'n>(
    node: &'n Node,
    key: &str,
    findings: &mut SourceFindings<'_>,
) -> Option<&'n str> {
    if let Some(scalar) = node.scalar()
        && !node.is_null()
    {
        return Some(&scalar.text);
    }
    let text = format!("`{key}` must be a text");
    findings.problem(Diagnostic::new(node.location, text));
    None
}

/// A whole number up to `max`, if it can be what it is read as.
pub(crate) fn whole<T>(
    node: &Node,
    key: &str,
    max: u64,
    read: impl FnOnce(u64) -> Option<T>,
    findings: &mut SourceFindings<'_>,
) -> Option<T> {
    if let Some(Value::Int(value)) = node.value()
        && let Ok(value) = u64::try_from(value)
        && let Some(value) = read(value)
    {
        return Some(value);
    }
    let text = format!("`{key}` must be a whole number from 0 to {max}, without quotes");
    findings.problem(Diagnostic::new(node.location, text));
    None
}

pub(crate) fn flag(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> bool {
    if let Some(Value::Bool(value)) = node.value() {
        return value;
    }
    let text = format!("`{key}` must be true or false, without quotes");
    findings.problem(Diagnostic::new(node.location, text));
    false
}

/// The items of a list; none for a null.
pub(crate) fn list<T>(
    node: &Node,
    findings: &mut SourceFindings<'_>,
    mut read: impl FnMut(&Node, &mut SourceFindings<'_>) -> Option<T>,
) -> Vec<T> {
    if let Kind::List(items) = &node.kind {
        let items = items.iter().enumerate();
        let read = |(index, item)| read(item, &mut findings.at(format_args!("[{index}]")));
        return items.filter_map(read).collect();
    }
    if !node.is_null() {
        findings.reject(node.location, "expected a list", "begin each item with a hyphen");
    }
    Vec::new()
}
