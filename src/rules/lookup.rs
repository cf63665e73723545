//! Matches one descriptor against the tree. Serving and `explain` use the same matcher.

use smallvec::SmallVec;

use crate::rules::query::{Descriptor, Entry};
use crate::rules::rule::Rule;
use crate::rules::tree::{Domain, Found, Node};

/// A matched rule.
#[derive(Debug)]
pub struct Match<'r> {
    /// See [`Rule`].
    pub rule: &'r Rule,
    /// One for each entry.
    pub hops: Hops<'r>,
}

/// From the root to a rule.
pub type Hops<'r> = SmallVec<[Hop<'r>; 4]>;

/// One level of a match.
#[derive(Debug, Clone, Copy)]
pub struct Hop<'r> {
    /// The matched node.
    pub node: &'r Node,
    /// How it matched.
    pub found: Found,
}

/// Observes a lookup. `()` ignores it at no cost.
pub trait Observer {
    /// An entry led to a node.
    fn hop(&mut self, _entry: Entry<'_>, _hop: Hop<'_>) {}
    /// The lookup ended.
    fn end(&mut self, _end: End<'_>) {}
}

/// How a lookup ended.
#[derive(Debug)]
pub enum End<'r> {
    /// At a rule.
    Rule(&'r Rule),
    /// The descriptor has no entries.
    NoEntries,
    /// No child for this entry: neither its value nor a pattern nor a default.
    NoChild(Entry<'r>),
    /// The descriptor goes on below the last descriptor of the rules.
    TooDeep,
    /// The descriptor ends at one without a limit.
    NoLimit,
}

impl Observer for () {}

impl<'r> Hop<'r> {
    /// The pattern, for an entry whose values share one counter.
    pub fn shared_value(&self, entry: Entry<'_>) -> Option<&'r [u8]> {
        if !self.node.share_threshold || self.found != Found::Pattern {
            return None;
        }
        let label = self.node.label.as_bytes();
        Some(
            label
                .strip_prefix(entry.key)
                .and_then(|rest| rest.strip_prefix(b"_"))
                .unwrap_or(label),
        )
    }
}

/// Entries with the values that are part of the counter key: their own, or the pattern if they share
/// one counter. The name of a holder is left out; its key is not, so that two rules side by side
/// have two counters.
pub fn counted_by<'e>(
    entries: &'e [Entry<'e>],
    hops: &'e [Hop<'e>],
    rule: &Rule,
) -> impl Iterator<Item = Entry<'e>> {
    let holder = rule.names_holders().then(|| hops.len() - 1);
    entries
        .iter()
        .zip(hops)
        .enumerate()
        .map(move |(index, (&entry, hop))| {
            let shared = if holder == Some(index) {
                Some(&[][..])
            } else {
                hop.shared_value(entry)
            };
            Entry {
                value: shared.unwrap_or(entry.value),
                ..entry
            }
        })
}

/// Finds the rule of a descriptor: each entry must match one level further down, and the last node
/// must have a limit. There is no backtracking: a matching node without a limit hides the default
/// beside it.
pub fn lookup<'r>(
    domain: &'r Domain,
    descriptor: &Descriptor<'_>,
    observer: &mut impl Observer,
) -> Option<Match<'r>> {
    let mut hops = Hops::new();
    let mut level = Some(&domain.root);
    for &entry in &descriptor.entries {
        let Some(here) = level else {
            observer.end(End::TooDeep);
            return None;
        };
        let Some((node, found)) = here.find(entry) else {
            observer.end(End::NoChild(entry));
            return None;
        };
        let hop = Hop { node, found };
        observer.hop(entry, hop);
        hops.push(hop);
        level = node.below.as_deref();
    }
    let Some(last) = hops.last() else {
        observer.end(End::NoEntries);
        return None;
    };
    let Some(rule) = last.node.rule.as_deref() else {
        observer.end(End::NoLimit);
        return None;
    };
    observer.end(End::Rule(rule));
    Some(Match { rule, hops })
}
