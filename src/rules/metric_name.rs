//! The names of metrics, as the reference builds them, so that dashboards go on working. They are
//! text also where a request is not ([`Text`]).

use crate::base::text::Text;
use crate::rules::lookup::Hop;
use crate::rules::query::Entry;
use crate::rules::rule::{Naming, Rule};
use crate::rules::tree::{Domain, Dots, Found};

/// The name of a rule's metrics for this request: `domain.key_value.key_value…`. Holders are left
/// out, as they are of what is counted: each would be a name of its own.
pub(crate) fn of_rule(
    domain: &Domain,
    entries: &[Entry<'_>],
    hops: &[Hop<'_>],
    rule: &Rule,
) -> String {
    let holder = rule.names_holders().then(|| hops.len() - 1);
    let mut matched = entries.iter().zip(hops);
    let any_shared = matched.any(|(&entry, hop)| hop.shared_value(entry).is_some());
    let dots = domain.metric_dots;
    let mut name = domain.name.to_string();
    for (index, (&entry, hop)) in entries.iter().zip(hops).enumerate() {
        name.push('.');
        let shows_value = match rule.naming {
            Naming::Detailed => true,
            Naming::ByValue => hop.node.value_to_metric && hop.found != Found::Exact,
            Naming::Fixed => false,
        };
        match hop.shared_value(entry) {
            _ if holder == Some(index) => name.push_str(&dots.part(&hop.node.label)),
            Some(pattern) => push_pair(&mut name, entry.key, pattern, dots),
            None if !shows_value => name.push_str(&dots.part(&hop.node.label)),
            None => {
                push_pair(&mut name, entry.key, entry.value, dots);
                // As in the reference.
                if rule.naming == Naming::Detailed && entry.value.is_empty() && !any_shared {
                    name.push('_');
                }
            }
        }
    }
    sanitized(name)
}

/// The name of the metrics of a limit that came with the request, by the entries that name its
/// counter.
pub(crate) fn of_override<'e>(domain: &Domain, entries: impl Iterator<Item = Entry<'e>>) -> String {
    let mut name = format!("{}.", domain.name);
    for (index, entry) in entries.enumerate() {
        if index > 0 {
            name.push('.');
        }
        push_pair(&mut name, entry.key, entry.value, domain.metric_dots);
    }
    sanitized(name)
}

/// A name without the characters that statsd needs for itself, and with addresses in one piece: `:`
/// and `|` become `_`, and so do the dots of whatever looks like an IPv4 address.
pub fn sanitized(mut name: String) -> String {
    if name.contains([':', '|']) {
        name = name.replace([':', '|'], "_");
    }
    // An address has three dots; most names have no digit beside one.
    let mut from = 0;
    while let Some((start, end)) = find_address(name.as_bytes(), from) {
        name.replace_range(start..end, &name[start..end].replace('.', "_"));
        from = end;
    }
    name
}

/// The next four groups of one to three digits with dots between them.
fn find_address(text: &[u8], from: usize) -> Option<(usize, usize)> {
    (from..text.len()).find_map(|start| {
        let mut at = start;
        for group in 0..4 {
            if group > 0 {
                at += text[at..].starts_with(b".").then_some(1)?;
            }
            let digits = text[at..].iter().take(3);
            match digits.take_while(|byte| byte.is_ascii_digit()).count() {
                0 => return None,
                digits => at += digits,
            }
        }
        Some((start, at))
    })
}

fn push_pair(name: &mut String, key: &[u8], value: &[u8], dots: Dots) {
    name.push_str(&dots.part(&Text(key).shown()));
    if !value.is_empty() {
        name.push('_');
        name.push_str(&dots.part(&Text(value).shown()));
    }
}

/// Labels of a rule's name. As in the default mapping, the part before the first dot is the domain,
/// then two keys.
pub(crate) fn labels(name: &str) -> Vec<(&'static str, String)> {
    let parts = name.split('.').map(str::to_owned);
    ["domain", "key1", "key2"].into_iter().zip(parts).collect()
}
