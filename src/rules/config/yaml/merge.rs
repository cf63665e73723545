//! Applies merge keys (`<<`) and lets the last of repeated keys count, as yaml.v2 does when it
//! fills a struct.
//!
//! A `<<` counts as if its pairs were written in its place: they replace pairs above and are
//! replaced by pairs below. Where the old and the new value of a key are maps, they are joined:
//! a `rate_limit` that overrides one number of the merged one keeps its unit.
//!
//! Keys are equal if their texts are. yaml.v2 compares values (`1` is `0x1`, `1` is not `"1"`), but
//! the keys of rules are words, and those of metadata become text in the end.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::mem;

use crate::rules::config::yaml::node::{Diagnostic, Kind, Location, Node, WARNINGS_MAX, shortened};

type Pair = (Node, Node);

/// The pairs so far, each at the place of the first with its key.
#[derive(Default)]
struct Pairs {
    pairs: Vec<Merged>,
    indexes: HashMap<String, usize>,
}

/// The latest pair of a key.
struct Merged {
    key: Node,
    value: Node,
    /// The `<<` it came from.
    merge: Option<Location>,
    /// The pairs of several maps one after another, `value` the last of them, so keys may repeat.
    /// Empty for a value that was not joined.
    joined: Vec<Pair>,
}

/// The effective pairs of a map. Most maps have no merges or repeats and are returned unchanged.
///
/// # Errors
/// The value of a `<<` is neither a map nor a list of maps.
pub(super) fn apply(
    pairs: Vec<Pair>,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Vec<Pair>, Diagnostic> {
    if !pairs.iter().any(|(key, _)| is_merge(key)) && !has_repeats(&pairs) {
        return Ok(pairs);
    }
    let mut merged = Pairs::default();
    for (key, value) in pairs {
        if is_merge(&key) {
            let merge = Some(key.location);
            for map in maps_of(&value)? {
                for (key, value) in map.iter().cloned() {
                    merged.insert(key, value, merge, warnings);
                }
            }
        } else {
            merged.insert(key, value, None, warnings);
        }
    }
    Ok(merged.pairs.into_iter().map(Merged::into_pair).collect())
}

impl Pairs {
    fn insert(
        &mut self,
        key: Node,
        value: Node,
        merge: Option<Location>,
        warnings: &mut Vec<Diagnostic>,
    ) {
        let index = self.indexes.entry(key.text().to_owned());
        let new = Merged { key, value, merge, joined: Vec::new() };
        match index {
            Entry::Vacant(index) => {
                index.insert(self.pairs.len());
                self.pairs.push(new);
            }
            Entry::Occupied(index) => self.pairs[*index.get()].replace(new, warnings),
        }
    }
}

impl Merged {
    fn replace(&mut self, new: Self, warnings: &mut Vec<Diagnostic>) {
        let old = mem::replace(self, new);
        let name = shortened(old.key.text());
        let line = old.key.location.line;
        let both_maps = matches!((&old.value.kind, &self.value.kind), (Kind::Map(_), Kind::Map(_)));
        let warning = match (old.merge, self.merge) {
            (None, None) => {
                let effect = if both_maps {
                    "the two maps are joined, this one takes precedence"
                } else {
                    "only this one counts"
                };
                let text = format!("the key `{name}` is on line {line} already: {effect}");
                Some(Diagnostic::new(self.key.location, text))
            }
            (None, Some(merge)) => {
                let text = format!(
                    "`<<` replaces `{name}` of line {line} above it: put `<<` first to keep that"
                );
                Some(Diagnostic::new(merge, text))
            }
            // Overriding merged pairs is the purpose of `<<`.
            (Some(_), _) => None,
        };
        warnings.extend(warning.filter(|_| warnings.len() < WARNINGS_MAX));
        if let (Kind::Map(below), Kind::Map(above)) = (old.value.kind, &self.value.kind) {
            self.joined = old.joined;
            if self.joined.is_empty() {
                self.joined.extend_from_slice(&below);
            }
            self.joined.extend_from_slice(above);
        }
    }

    fn into_pair(mut self) -> Pair {
        if !self.joined.is_empty() {
            self.value.kind = Kind::Map(last_of_each(self.joined).into());
        }
        (self.key, self.value)
    }
}

/// The maps of a `<<`, lowest precedence first: yaml.v2 goes through a list of maps backwards.
fn maps_of(value: &Node) -> Result<Vec<&[Pair]>, Diagnostic> {
    match &value.kind {
        Kind::List(items) => items.iter().rev().map(merged_map).collect(),
        _ => merged_map(value).map(|map| vec![map]),
    }
}

fn merged_map(node: &Node) -> Result<&[Pair], Diagnostic> {
    node.pairs().ok_or_else(|| {
        Diagnostic::new(node.location, "`<<` takes a map or a list of maps")
            .hint("quote '<<' if it is meant as a key")
    })
}

/// Below two joined maps nothing is joined: the last of repeated keys replaces the others.
fn last_of_each(pairs: Vec<Pair>) -> Vec<Pair> {
    let mut indexes = HashMap::new();
    let mut last = Vec::with_capacity(pairs.len());
    for pair in pairs {
        match indexes.entry(pair.0.text().to_owned()) {
            Entry::Vacant(index) => {
                index.insert(last.len());
                last.push(pair);
            }
            Entry::Occupied(index) => last[*index.get()] = pair,
        }
    }
    last
}

fn has_repeats(pairs: &[Pair]) -> bool {
    let mut seen = HashSet::with_capacity(pairs.len());
    !pairs.iter().all(|(key, _)| seen.insert(key.text()))
}

fn is_merge(key: &Node) -> bool {
    key.scalar().is_some_and(super::node::Scalar::is_merge)
}

#[cfg(test)]
mod tests {
    use crate::rules::config::yaml::tests::shape::{shape, shape_of};
    use crate::rules::config::yaml::{Kind, Location, Node, read};

    #[test]
    fn merges_apply_where_they_stand_as_in_yaml_v2() {
        let shape = |map: &str| {
            shape_of(&format!("[&a {{k: a, x: ax}}, &b {{k: b, y: by}}, {map}]"))
                .split_off("[{k: a, x: ax}, {k: b, y: by}, ".len())
        };
        for (map, expected) in [
            ("{<<: *a, k: own}", "{k: own, x: ax}]"),
            // In YAML's own words the explicit key should win here too. It does not in yaml.v2.
            ("{k: own, <<: *a}", "{k: a, x: ax}]"),
            ("{<<: [*a, *b]}", "{k: a, y: by, x: ax}]"),
            ("{<<: [*b, *a], y: own}", "{k: b, x: ax, y: own}]"),
            ("{<<: *a, <<: *b}", "{k: b, x: ax, y: by}]"),
            ("{<<: {z: 1}}", "{z: 1}]"),
            ("{!!merge <<: *a}", "{k: a, x: ax}]"),
            ("{'<<': *a}", "{<<: {k: a, x: ax}}]"),
            ("{!!str <<: *a}", "{<<: {k: a, x: ax}}]"),
        ] {
            assert_eq!(shape(map), expected, "{map}");
        }
        for invalid in ["<<: 1\n", "<<:\n", "<<: [[a: b]]\n", "<<: [1]\n"] {
            assert!(read(invalid).unwrap_err().text.starts_with("`<<` takes"), "{invalid}");
        }
    }

    #[test]
    fn a_merged_map_within_is_joined_as_when_yaml_v2_fills_a_struct() {
        let base = "- &b {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}\n";
        let joined = format!("{base}- <<: *b\n  rate_limit: {{requests_per_unit: 6}}\n");
        assert_eq!(
            shape_of(&joined),
            "[{key: a, rate_limit: {unit: hour, requests_per_unit: 5}}, {key: a, rate_limit: {unit: hour, requests_per_unit: 6}}]"
        );
        assert!(read(&joined).unwrap().warnings.is_empty());
        // One level only, as there; a list or a null replaces.
        assert_eq!(shape_of("{m: {a: {x: 1}, b: 2}, m: {a: {y: 1}}}"), "{m: {a: {y: 1}, b: 2}}");
        assert_eq!(shape_of("{m: {a: 1}, m: , m: {b: 2}}"), "{m: {b: 2}}");
    }

    #[test]
    fn the_last_of_repeated_keys_counts_with_a_warning() {
        let text = "a: 1\nb: 2\na: 3\n\"a\": 4\n";
        let document = read(text).unwrap();
        assert_eq!(shape(document.root.as_ref().unwrap()), "{a: 4, b: 2}");
        let locations: Vec<_> = document.warnings.iter().map(|warning| warning.location).collect();
        assert_eq!(locations, [Location::new(3, 1, 1), Location::new(4, 1, 3)]);
        assert_eq!(
            document.warnings[0].text,
            "the key `a` is on line 1 already: only this one counts"
        );
        assert_eq!(
            shape_of("{1: a, 0x1: b, '1': c, y: d, yes: e}"),
            "{1: c, 0x1: b, y: d, yes: e}"
        );
        let long: Vec<String> = (0..300).map(|i| format!("k{}: {i}", i % 250)).collect();
        let document = read(&long.join("\n")).unwrap();
        let Some(Node { kind: Kind::Map(pairs), .. }) = document.root else { panic!("no map") };
        assert_eq!((pairs.len(), document.warnings.len()), (250, 50));
    }

    #[test]
    fn a_merge_that_replaces_an_explicit_key_is_a_warning() {
        let document = read("a: &a {k: 1}\nb:\n  k: 2\n  <<: *a\n").unwrap();
        assert_eq!(document.warnings.len(), 1);
        assert_eq!(document.warnings[0].location, Location::new(4, 3, 2));
        assert!(document.warnings[0].text.contains("put `<<` first"));
    }
}
