//! The compiled rules: domains, and in each a tree of descriptors whose levels find a child without
//! looking at its siblings.

use std::borrow::Cow;

use hashbrown::HashMap;

use crate::limits::Terms;
use crate::rules::enforced_share::EnforcedShare;
use crate::rules::key::{KeyFormat, KeyHead};
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
    /// The name of the domain.
    pub name: Box<str>,
    /// The start of its counter keys.
    pub key_head: KeyHead,
    /// All or nothing over the descriptors of one request.
    pub all_or_nothing: bool,
    /// The treatment of dots in the names of its metrics.
    pub metric_dots: Dots,
    /// The terms of limits in requests where no rule applies, except for number and unit.
    pub override_terms: Terms,
    /// The outermost descriptors.
    pub root: Level,
}

/// The treatment of dots in the keys and values of a name, where dots part the levels:
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
    by_key: HashMap<Box<[u8]>, Siblings>,
    /// Nodes whose key has a star, in file order: an undocumented feature of envoyproxy/ratelimit.
    starred_keys: Vec<(Pattern, u32)>,
}

/// The indices of the nodes of one key.
#[derive(Debug, Default)]
struct Siblings {
    /// By value, as written: a star is only a character here.
    exact: HashMap<Box<[u8]>, u32>,
    /// Nodes whose value has a star, in file order.
    patterns: Vec<(Pattern, u32)>,
    /// The one without a value.
    default: Option<u32>,
}

/// A descriptor of the rules.
#[derive(Debug)]
pub struct Node {
    /// The key of the descriptor.
    pub key: Box<str>,
    /// The value of the descriptor; empty for any.
    pub value: Box<str>,
    /// `key`, or `key_value`.
    pub label: Box<str>,
    /// All values that reach it through its star share one counter.
    pub share_threshold: bool,
    /// The value of the request becomes part of the metric's name.
    pub value_to_metric: bool,
    /// The limit of the descriptor.
    pub rule: Option<Box<Rule>>,
    /// The descriptors inside it.
    pub below: Option<Box<Level>>,
}

/// The match of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// By its key and value.
    Exact,
    /// By its pattern.
    Pattern,
    /// By its key alone.
    Default,
}

impl RuleSet {
    /// Puts domains together. Their names are distinct.
    pub fn new(domains: impl IntoIterator<Item = Domain>) -> Self {
        let named = |domain: Domain| (domain.name.as_bytes().into(), domain);
        Self { domains: domains.into_iter().map(named).collect() }
    }

    /// Whether a rule counts over a day or more.
    pub fn has_long_periods(&self) -> bool {
        let mut domains = self.domains.values();
        domains.any(|domain| domain.rules().into_iter().any(Rule::has_long_period))
    }

    /// The paths of the rules that Redis decides by its script.
    pub fn scripted(&self) -> Vec<String> {
        let rules = self.rules().into_iter().filter(|rule| rule.needs_script());
        rules.map(|rule| rule.path.to_string()).collect()
    }

    /// The domain of that name.
    pub fn domain(&self, name: &[u8]) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All domains, sorted by name.
    pub fn domains(&self) -> Vec<&Domain> {
        let mut domains: Vec<&Domain> = self.domains.values().collect();
        domains.sort_unstable_by_key(|domain| &domain.name);
        domains
    }

    /// The number of domains.
    pub fn domain_count(&self) -> usize {
        self.domains.len()
    }

    /// The number of limits.
    pub fn rule_count(&self) -> usize {
        self.rules().len()
    }

    /// Every rule, sorted by path.
    pub fn rules(&self) -> Vec<&Rule> {
        let mut rules: Vec<&Rule> = self.domains().into_iter().flat_map(Domain::rules).collect();
        rules.sort_by(|a, b| a.path.cmp(&b.path));
        rules
    }

    /// Shows every rule to be changed, with the format of the keys of its domain.
    pub(crate) fn change_rules(&mut self, mut change: impl FnMut(&mut Rule, KeyFormat)) {
        for domain in self.domains.values_mut() {
            let format = domain.key_head.format();
            domain.root.change_rules(&mut |rule| change(rule, format));
        }
    }

    /// A request for a first try: the first that matches the smallest limit. Repeated, it is
    /// rejected.
    pub fn example(&self) -> Option<Example> {
        let mut best: Option<(u64, Example)> = None;
        for domain in self.domains() {
            domain.visit(&mut |nodes| {
                let rule = rule_of(nodes).filter(|rule| rejects_when_repeated(rule));
                let capacity = rule.and_then(Rule::limit).map_or(0, |limit| limit.capacity);
                if capacity > 0 && best.as_ref().is_none_or(|(least, _)| capacity < *least) {
                    let entries = nodes.iter().map(|node| {
                        let value = if node.value.is_empty() {
                            "1".to_owned()
                        } else {
                            node.value.replace('*', "1")
                        };
                        (node.key.to_string(), value)
                    });
                    let example =
                        Example { domain: domain.name.to_string(), entries: entries.collect() };
                    best = Some((capacity, example));
                }
            });
        }
        best.map(|(_, example)| example)
    }
}

impl Domain {
    /// Every rule, in the order of the file.
    pub(crate) fn rules(&self) -> Vec<&Rule> {
        let mut rules = Vec::new();
        self.visit(&mut |nodes| rules.extend(rule_of(nodes)));
        rules
    }

    /// Shows every descriptor behind those around it, the outermost first: depth first, in the
    /// order of the file.
    pub(crate) fn visit<'r>(&'r self, show: &mut impl FnMut(&[&'r Node])) {
        self.root.visit(&mut Vec::new(), show);
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
    pub(crate) fn insert(&mut self, node: Node) {
        let key = node.key.as_bytes();
        let value = node.value.as_bytes();
        let index =
            u32::try_from(self.nodes.len()).expect("a rules file is bounded far below 2^32 nodes");
        let siblings = self.by_key.entry(key.into()).or_default();
        if value.is_empty() {
            siblings.default = Some(index);
        } else {
            siblings.exact.insert(value.into(), index);
        }
        if let Some(pattern) = Pattern::new(&node.label).filter(|_| node.key.contains('*')) {
            self.starred_keys.push((pattern, index));
        } else if let Some(pattern) = Pattern::new(&node.value) {
            siblings.patterns.push((pattern, index));
        }
        self.nodes.push(node);
    }

    /// In file order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The child for an entry: exactly it, else the first pattern that takes it, else the default
    /// of its key.
    pub(crate) fn find(&self, entry: Entry<'_>) -> Option<(&Node, Found)> {
        let siblings = self.by_key.get(entry.key);
        let exact = siblings.and_then(|siblings| siblings.exact.get(entry.value));
        let (index, found) = if let Some(&index) = exact {
            (index, Found::Exact)
        } else if let Some(index) = self.first_pattern(siblings, entry) {
            (index, Found::Pattern)
        } else {
            (siblings?.default?, Found::Default)
        };
        Some((&self.nodes[index as usize], found))
    }

    fn first_pattern(&self, siblings: Option<&Siblings>, entry: Entry<'_>) -> Option<u32> {
        let first = |patterns: &[(Pattern, u32)], text: &[u8]| {
            let mut patterns = patterns.iter();
            let matched = patterns.find(|(pattern, _)| pattern.matches(text));
            matched.map(|&(_, index)| index)
        };
        let by_value = siblings.and_then(|siblings| first(&siblings.patterns, entry.value));
        if self.starred_keys.is_empty() {
            return by_value;
        }
        let by_key = first(&self.starred_keys, &[entry.key, b"_", entry.value].concat());
        // The lower index is earlier in the file.
        by_value.into_iter().chain(by_key).min()
    }

    fn change_rules(&mut self, change: &mut impl FnMut(&mut Rule)) {
        for node in &mut self.nodes {
            if let Some(rule) = &mut node.rule {
                change(rule);
            }
            if let Some(below) = &mut node.below {
                below.change_rules(change);
            }
        }
    }

    fn visit<'r>(&'r self, nodes: &mut Vec<&'r Node>, show: &mut impl FnMut(&[&'r Node])) {
        for node in &self.nodes {
            nodes.push(node);
            show(nodes);
            if let Some(below) = &node.below {
                below.visit(nodes, show);
            }
            nodes.pop();
        }
    }
}

fn rule_of<'r>(nodes: &[&'r Node]) -> Option<&'r Rule> {
    nodes.last()?.rule.as_deref()
}

/// Whether one request is rejected when repeated. A holder keeps its slot.
fn rejects_when_repeated(rule: &Rule) -> bool {
    matches!(rule.on_limit, OnLimit::Reject { .. })
        && !rule.shadow_mode
        && rule.enforced_share == EnforcedShare::ALL
        && !rule.names_holders()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::rules::KeyFormat;
    use crate::rules::config::{self, CompileOptions, Source};
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

    /// The rules of one file.
    pub(crate) fn rules_of(text: &str) -> RuleSet {
        let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
        let options = CompileOptions { key_format: KeyFormat::Safe, ..CompileOptions::new(stats) };
        let source =
            Source { name: "rules.yaml".into(), path: "rules.yaml".into(), text: text.into() };
        config::load(&[source], &options).expect("the rules are valid").rules
    }

    #[test]
    fn the_example_matches_the_smallest_limit_that_rejects() {
        let rules = rules_of(RULES);
        let expected =
            Example { domain: "d".to_owned(), entries: vec![("few".to_owned(), "f1".to_owned())] };
        assert_eq!(rules.example(), Some(expected));
    }

    #[test]
    fn long_periods_are_those_of_a_day_or_more_and_no_leases() {
        for (rule, is_long) in [
            (
                "rate_limit: {unit: hour, requests_per_unit: 1}, metadata: {tollgate: {unit_multiplier: 23}}",
                false,
            ),
            (
                "rate_limit: {unit: hour, requests_per_unit: 1}, metadata: {tollgate: {unit_multiplier: 24}}",
                true,
            ),
            (
                "rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {algorithm: token_bucket}}",
                true,
            ),
            ("rate_limit: {unit: year, requests_per_unit: 0}, shadow_mode: true", true),
            ("rate_limit: {unlimited: true}", false),
            (
                "rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {algorithm: concurrency, lease_by: k, lease: 24h}}",
                false,
            ),
        ] {
            let rules = rules_of(&format!(
                "domain: d\ndescriptors:\n  - key: a\n    descriptors:\n      - {{key: k, {rule}}}\n"
            ));
            assert_eq!(rules.has_long_periods(), is_long, "{rule}");
        }
    }
}
