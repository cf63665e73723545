//! The compiled rules: domains, and in each a tree of descriptors whose levels find a child without
//! looking at its siblings.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};

use hashbrown::{Equivalent, HashMap};

use crate::limit::{Algorithm, Limit, Months};
use crate::rules::key::KeyHead;
use crate::rules::query::Entry;
use crate::rules::rule::{OnLimit, Rule};
use crate::rules::wildcard::Pattern;

/// All rules in force. Immutable: new rules are a new set.
#[derive(Debug, Default)]
pub struct RuleSet {
    domains: HashMap<Box<[u8]>, Domain>,
}

/// A call that meets a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The domain.
    pub domain: String,
    /// Keys and values of its one descriptor.
    pub entries: Vec<(String, String)>,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// Its name.
    pub name: Box<str>,
    /// What its counter keys begin with.
    pub key_head: KeyHead,
    /// All or nothing over the descriptors of one request.
    pub all_or_nothing: bool,
    /// What becomes of dots in the names of its metrics.
    pub metric_dots: Dots,
    /// What limits in requests take over where no rule applies.
    pub override_defaults: OverrideDefaults,
    /// Its outermost descriptors.
    pub root: Level,
}

/// What limits in requests take over where no rule applies.
#[derive(Debug, Clone, Copy)]
pub struct OverrideDefaults {
    /// DEFAULT_ALGORITHM, else fixed windows.
    pub algorithm: Algorithm,
    /// USE_CALENDAR_MONTH_RATE_LIMIT.
    pub months: Months,
}

/// What becomes of dots in the keys and values of a name, where dots part the levels:
/// SANITIZE_DESCRIPTOR_METRIC_DOTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dots {
    /// They stay.
    #[default]
    Keep,
    /// They become `_`.
    Replace,
}

/// Descriptors side by side.
#[derive(Debug, Default)]
pub struct Level {
    nodes: Vec<Node>,
    /// By key and value, as written: a star is only a character here.
    exact: HashMap<Pair, u32>,
    /// By key, those without a value.
    defaults: HashMap<Box<[u8]>, u32>,
    /// By key, those whose value has a star, in the order of the file.
    patterns: HashMap<Box<[u8]>, Vec<(Pattern, u32)>>,
    /// Those whose key has a star, in file order: an undocumented feature of envoyproxy/ratelimit.
    starred_keys: Vec<(Pattern, u32)>,
}

/// A descriptor of the rules.
#[derive(Debug)]
pub struct Node {
    /// Its key.
    pub key: Box<str>,
    /// Its value; empty for any.
    pub value: Box<str>,
    /// `key`, or `key_value`.
    pub label: Box<str>,
    /// All values that reach it through its star share one counter.
    pub share_threshold: bool,
    /// The value of the request becomes part of the metric's name.
    pub value_to_metric: bool,
    /// Its limit.
    pub rule: Option<Box<Rule>>,
    /// The descriptors inside it.
    pub below: Option<Box<Level>>,
}

/// How a node was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// By its key and value.
    Exact,
    /// By its pattern.
    Pattern,
    /// By its key alone.
    Default,
}

#[derive(Debug, PartialEq, Eq)]
struct Pair {
    key: Box<[u8]>,
    value: Box<[u8]>,
}

impl RuleSet {
    /// Puts domains together. Their names are distinct.
    pub fn new(domains: impl IntoIterator<Item = Domain>) -> Self {
        Self {
            domains: domains
                .into_iter()
                .map(|domain| (domain.name.as_bytes().into(), domain))
                .collect(),
        }
    }

    /// The domain of that name.
    pub fn domain(&self, name: &[u8]) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All domains, in no order.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    /// How many domains.
    pub fn domain_count(&self) -> usize {
        self.domains.len()
    }

    /// How many limits.
    pub fn rule_count(&self) -> usize {
        self.rules().len()
    }

    /// Every rule, sorted by path.
    pub fn rules(&self) -> Vec<&Rule> {
        let mut rules = Vec::new();
        for domain in self.domains.values() {
            domain.root.collect(&mut rules);
        }
        rules.sort_by(|a, b| a.path.cmp(&b.path));
        rules
    }

    /// The names of all domains, sorted.
    pub fn domain_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.domains().map(|domain| &*domain.name).collect();
        names.sort_unstable();
        names
    }

    /// A request for a first try: the first that matches the smallest limit. Repeated, it is
    /// rejected.
    pub fn example(&self) -> Option<Example> {
        let mut best: Option<(u32, Example)> = None;
        for name in self.domain_names() {
            let Some(domain) = self.domain(name.as_bytes()) else {
                continue;
            };
            domain
                .root
                .each_rule(&mut Vec::new(), &mut |entries, rule| {
                    let capacity = if rejects_when_repeated(rule) {
                        rule.limit().map_or(0, Limit::capacity)
                    } else {
                        0
                    };
                    if capacity > 0 && best.as_ref().is_none_or(|(least, _)| capacity < *least) {
                        best = Some((
                            capacity,
                            Example {
                                domain: name.to_owned(),
                                entries: entries.to_vec(),
                            },
                        ));
                    }
                });
        }
        best.map(|(_, example)| example)
    }
}

impl Dots {
    /// A key, a value or both as a part of a name.
    pub fn part(self, text: &str) -> Cow<'_, str> {
        if self == Self::Replace && text.contains('.') {
            text.replace('.', "_").into()
        } else {
            text.into()
        }
    }
}

impl Level {
    /// Adds a descriptor. Its key and value were checked not to be here already.
    pub fn insert(&mut self, node: Node) {
        let (key, value) = (node.key.as_bytes(), node.value.as_bytes());
        let index =
            u32::try_from(self.nodes.len()).expect("a rules file is bounded far below 2^32 nodes");
        if value.is_empty() {
            self.defaults.insert(key.into(), index);
        } else {
            self.exact.insert(
                Pair {
                    key: key.into(),
                    value: value.into(),
                },
                index,
            );
        }
        if let Some(pattern) = Pattern::new(&node.label).filter(|_| node.key.contains('*')) {
            self.starred_keys.push((pattern, index));
        } else if let Some(pattern) = Pattern::new(&node.value) {
            self.patterns
                .entry(key.into())
                .or_default()
                .push((pattern, index));
        }
        self.nodes.push(node);
    }

    /// In file order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The child for an entry: exactly it, else the first pattern that takes it, else the default
    /// of its key.
    pub fn find(&self, entry: Entry<'_>) -> Option<(&Node, Found)> {
        let (index, found) = if let Some(&index) = self.exact.get(&entry) {
            (index, Found::Exact)
        } else if let Some(index) = self.first_pattern(entry) {
            (index, Found::Pattern)
        } else {
            (*self.defaults.get(entry.key)?, Found::Default)
        };
        Some((&self.nodes[index as usize], found))
    }

    fn first_pattern(&self, entry: Entry<'_>) -> Option<u32> {
        let of_key = || {
            self.patterns
                .get(entry.key)?
                .iter()
                .find(|(pattern, _)| pattern.matches(entry.value))
        };
        let by_value = if self.patterns.is_empty() {
            None
        } else {
            of_key().map(|&(_, index)| index)
        };
        if self.starred_keys.is_empty() {
            return by_value;
        }
        let joined = [entry.key, b"_", entry.value].concat();
        let by_key = self
            .starred_keys
            .iter()
            .find(|(pattern, _)| pattern.matches(&joined))
            .map(|&(_, index)| index);
        // The lower index is earlier in the file.
        by_value.into_iter().chain(by_key).min()
    }

    /// Shows every rule from here down, with entries that lead to it.
    fn each_rule(
        &self,
        entries: &mut Vec<(String, String)>,
        show: &mut impl FnMut(&[(String, String)], &Rule),
    ) {
        for node in &self.nodes {
            let value = if node.value.is_empty() {
                "1".to_owned()
            } else {
                node.value.replace('*', "1")
            };
            entries.push((node.key.to_string(), value));
            if let Some(rule) = &node.rule {
                show(entries, rule);
            }
            if let Some(below) = &node.below {
                below.each_rule(entries, show);
            }
            entries.pop();
        }
    }

    fn collect<'r>(&'r self, rules: &mut Vec<&'r Rule>) {
        for node in &self.nodes {
            rules.extend(node.rule.as_deref());
            if let Some(below) = &node.below {
                below.collect(rules);
            }
        }
    }
}

/// Whether one request is rejected when repeated. A holder keeps its slot.
fn rejects_when_repeated(rule: &Rule) -> bool {
    matches!(rule.on_limit, OnLimit::Reject { .. }) && !rule.shadow_mode && !rule.names_holders()
}

impl Hash for Pair {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Entry {
            key: &self.key,
            value: &self.value,
        }
        .hash(state);
    }
}

impl Hash for Entry<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A slice begins its hash with its length, so ("ab", "c") and ("a", "bc") differ.
        self.key.hash(state);
        self.value.hash(state);
    }
}

impl Equivalent<Pair> for Entry<'_> {
    fn equivalent(&self, pair: &Pair) -> bool {
        self.key == &*pair.key && self.value == &*pair.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, CompileOptions, Source};
    use crate::rules::KeyFormat;
    use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
    use crate::telemetry::metric::Metrics;

    const RULES: &str = "
domain: d
descriptors:
  - {key: nothing, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: &one {unit: day, requests_per_unit: 1}}
  - {key: degrade, rate_limit: *one, metadata: {tollgate: {on_limit: degrade}}}
  - {key: queue, rate_limit: *one, metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1s}}}
  - {key: held, rate_limit: *one, metadata: {tollgate: {algorithm: concurrency, lease_by: held, lease: 30s}}}
  - {key: many, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: few, value: f*, rate_limit: {unit: day, requests_per_unit: 2}}
";

    #[test]
    fn the_example_matches_the_smallest_limit_that_rejects() {
        let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
        let options = CompileOptions {
            key_format: KeyFormat::Safe,
            ..CompileOptions::new(stats)
        };
        let source = Source {
            name: "d".into(),
            path: "d".into(),
            text: RULES.into(),
        };
        let rules = config::load(&[source], &options)
            .expect("these rules are right")
            .rules;
        let expected = Example {
            domain: "d".to_owned(),
            entries: vec![("few".to_owned(), "f1".to_owned())],
        };
        assert_eq!(rules.example(), Some(expected));
    }
}
