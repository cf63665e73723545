//! Matches one descriptor against the tree. Serving and `explain` use the same matcher.

use smallvec::SmallVec;

use crate::rules::query::Entry;
use crate::rules::rule::Rule;
use crate::rules::tree::{Domain, Found, Node};

/// The matched nodes from the root on, one for each entry up to the end of the lookup.
pub(crate) type Hops<'r> = SmallVec<[Hop<'r>; 4]>;

/// A level of a match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hop<'r> {
    pub(crate) node: &'r Node,
    pub(crate) found: Found,
}

/// The end of a lookup.
#[derive(Debug)]
pub(crate) enum End<'r> {
    Rule(&'r Rule),
    /// The descriptor has no entries.
    NoEntries,
    /// No child for the entry behind the last hop: neither its value nor a pattern nor a default.
    NoChild,
    /// The descriptor goes on below the last descriptor of the rules.
    TooDeep,
    /// The descriptor ends at one without a limit.
    NoLimit,
}

impl<'r> End<'r> {
    pub(crate) fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::Rule(rule) => Some(rule),
            Self::NoEntries | Self::NoChild | Self::TooDeep | Self::NoLimit => None,
        }
    }
}

impl<'r> Hop<'r> {
    /// The pattern, for an entry whose values share one counter.
    pub(crate) fn shared_value(&self, entry: Entry<'_>) -> Option<&'r [u8]> {
        if !self.node.share_threshold || self.found != Found::Pattern {
            return None;
        }
        let label = self.node.label.as_bytes();
        let value = label.strip_prefix(entry.key).and_then(|rest| rest.strip_prefix(b"_"));
        Some(value.unwrap_or(label))
    }
}

/// Entries with the values that are part of the counter key: their own, or the pattern if they
/// share one counter. Without hops, for a limit in a request, no values are shared. The name of a
/// holder is left out; its key is not, so that two rules side by side have two counters.
pub(crate) fn counted_by<'e>(
    entries: &'e [Entry<'e>],
    hops: &'e [Hop<'e>],
    rule: Option<&Rule>,
) -> impl Iterator<Item = Entry<'e>> {
    let names_holders = rule.is_some_and(Rule::names_holders);
    let holder = names_holders.then(|| entries.len() - 1);
    entries.iter().enumerate().map(move |(index, &entry)| {
        let shared = hops.get(index).and_then(|hop| hop.shared_value(entry));
        let value = if holder == Some(index) { &[] } else { shared.unwrap_or(entry.value) };
        Entry { value, ..entry }
    })
}

/// Finds the rule of a descriptor: each entry must match one level further down, and the last node
/// must have a limit. There is no backtracking: a matching node without a limit hides the default
/// beside it.
pub(crate) fn lookup<'r>(domain: &'r Domain, entries: &[Entry<'_>]) -> (Hops<'r>, End<'r>) {
    let mut hops = Hops::new();
    let mut level = Some(&domain.root);
    for &entry in entries {
        let Some(here) = level else {
            return (hops, End::TooDeep);
        };
        let Some((node, found)) = here.find(entry) else {
            return (hops, End::NoChild);
        };
        hops.push(Hop { node, found });
        level = node.below.as_deref();
    }
    let end = match hops.last().map(|last| last.node.rule.as_deref()) {
        None => End::NoEntries,
        Some(None) => End::NoLimit,
        Some(Some(rule)) => End::Rule(rule),
    };
    (hops, end)
}
