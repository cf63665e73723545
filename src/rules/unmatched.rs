//! Why no rule is about a descriptor, and which names of the rules are like its own.

use crate::base::text::{Text, nearest};
use crate::rules::lookup::{End, Hop, lookup};
use crate::rules::query::{Descriptor, Entry};
use crate::rules::tree::{Domain, Level, RuleSet};

/// What the rules have instead of an entry that they do not have.
#[derive(Debug)]
pub(crate) struct Alternatives<'e, 'r> {
    /// Whether they have its key, so that its value is another.
    pub(crate) has_key: bool,
    /// Its key, or its value if they have the key.
    pub(crate) name: &'e [u8],
    /// Keys, or values of its key.
    pub(crate) known: Vec<&'r str>,
}

/// Those for the entry behind the last hop.
pub(crate) fn alternatives<'e, 'r>(
    domain: &'r Domain,
    hops: &[Hop<'r>],
    entry: Entry<'e>,
) -> Alternatives<'e, 'r> {
    let level = hops.last().map_or(Some(&domain.root), |hop| hop.node.below.as_deref());
    let nodes = level.map_or(&[][..], Level::nodes);
    let of_key = nodes.iter().filter(|node| node.key.as_bytes() == entry.key);
    let values: Vec<&str> = of_key.map(|node| &*node.value).collect();
    let has_key = !values.is_empty();
    let (name, known) = if has_key {
        (entry.value, values)
    } else {
        (entry.key, nodes.iter().map(|node| &*node.key).collect())
    };
    Alternatives { has_key, name, known }
}

/// Why no rule is about a descriptor, with the nearest name of the rules; without values that
/// clients sent. `None` if there is a rule.
pub(crate) fn why_no_rule(
    rules: &RuleSet,
    domain: &[u8],
    descriptor: &Descriptor<'_>,
) -> Option<String> {
    let ending = |name: &[u8], known: &[&str]| {
        let name = Text(name).shown();
        let nearest = nearest(&name, known.iter().copied());
        nearest.map_or_else(String::new, |nearest| format!(", nearest is {nearest}"))
    };
    let Some(domain) = rules.domain(domain) else {
        let known: Vec<&str> = rules.domains().iter().map(|known| &*known.name).collect();
        let nearest = ending(domain, &known);
        return Some(format!("no rule: unknown domain{nearest}"));
    };
    let (hops, end) = lookup(domain, &descriptor.entries);
    let label = hops.last().map_or("", |hop| &hop.node.label);
    Some(match end {
        End::Rule(_) => return None,
        End::NoEntries => "no rule: no entries".to_owned(),
        End::NoLimit => format!("no rule: {label} has no rate_limit"),
        End::TooDeep => format!("no rule: nothing is below {label}"),
        End::NoChild => {
            let entry = descriptor.entries[hops.len()];
            let Alternatives { has_key, name, known } = alternatives(domain, &hops, entry);
            let nearest = ending(name, &known);
            let key = Text(entry.key);
            let missing = if has_key { "this value of" } else { "key" };
            format!("no rule for {missing} {key}{nearest}")
        }
    })
}
