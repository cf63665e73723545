//! The names of counters and of metrics.
//!
//! A counter's key is `tg:domain:key:value:…:algorithm:period:tick`, each part percent-encoded so that no two counters can have the
//! same key whatever clients send. Metric names are built as the reference builds them, so that dashboards go on working.

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use crate::check::Key;
use crate::limit::Limit;
use crate::rules::Naming;
use crate::rules::lookup::Hops;
use crate::rules::query::Entry;
use crate::rules::tree::Found;

/// Entries that would make a key longer than this are hashed instead: clients choose their length, and every store has to keep them.
pub const KEY_BYTES_MAX: usize = 512;

/// What the keys of a domain begin with.
pub fn key_head(prefix: &str, domain: &str) -> Box<str> {
    let mut key = Key::from(prefix);
    key.push(b"tg:");
    push_encoded(&mut key, domain);
    key.to_string().into()
}

/// What the keys of a limit end with. State is never read in units that it was not written in, since these are part of its key.
pub fn key_tail(limit: &Limit) -> Box<str> {
    format!(":{}:{}:{}", limit.algorithm(), limit.period_ticks(), limit.tick().name()).into()
}

/// The key of a counter. Where values share one, `hops` has the text that stands for them.
pub fn counter_key(head: &str, entries: &[Entry<'_>], hops: &Hops<'_>, tail: &str) -> Key {
    let mut key = Key::from(head);
    for (index, &entry) in entries.iter().enumerate() {
        let shared = hops.get(index).and_then(|hop| hop.shared_value(entry));
        key.push(b":");
        push_encoded(&mut key, entry.key);
        key.push(b":");
        push_encoded(&mut key, shared.unwrap_or(entry.value));
    }
    if key.len() + tail.len() > KEY_BYTES_MAX {
        hash_entries(&mut key, head.len());
    }
    key.push(tail.as_bytes());
    key
}

/// The name of a rule's metrics for this request: `domain.key_value.key_value…`.
pub fn metric_name(domain: &str, entries: &[Entry<'_>], hops: &Hops<'_>, naming: Naming) -> String {
    let any_shared = entries.iter().zip(hops).any(|(&entry, hop)| hop.shared_value(entry).is_some());
    let mut name = domain.to_owned();
    for (&entry, hop) in entries.iter().zip(hops) {
        name.push('.');
        match (hop.shared_value(entry), naming) {
            (Some(pattern), _) => push_pair(&mut name, entry.key, pattern),
            (None, Naming::Detailed) if entry.value.is_empty() && !any_shared => {
                name.push_str(entry.key);
                name.push('_');
            }
            (None, Naming::Detailed) => push_pair(&mut name, entry.key, entry.value),
            (None, Naming::ByValue) if hop.node.value_to_metric && hop.found != Found::Exact => {
                push_pair(&mut name, entry.key, entry.value);
            }
            (None, Naming::ByValue | Naming::Fixed) => name.push_str(&hop.node.label),
        }
    }
    sanitized(name)
}

/// The name of the metrics of a limit that came with the request.
pub fn override_metric_name(domain: &str, entries: &[Entry<'_>]) -> String {
    let mut name = format!("{domain}.");
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            name.push('.');
        }
        push_pair(&mut name, entry.key, entry.value);
    }
    sanitized(name)
}

/// A name without the characters that statsd needs for itself, and with addresses in one piece: `:` and `|` become `_`, and so do the
/// dots of whatever looks like an IPv4 address.
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
                if text.get(at) != Some(&b'.') {
                    return None;
                }
                at += 1;
            }
            let digits = text[at..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return None;
            }
            at += digits;
        }
        Some((start, at))
    })
}

fn push_pair(name: &mut String, key: &str, value: &str) {
    name.push_str(key);
    if !value.is_empty() {
        name.push('_');
        name.push_str(value);
    }
}

fn push_encoded(key: &mut Key, text: &str) {
    let mut plain_from = 0;
    for (at, &byte) in text.as_bytes().iter().enumerate() {
        if byte <= b' ' || matches!(byte, b'%' | b':' | b'{' | b'}' | 0x7f) {
            key.push(&text.as_bytes()[plain_from..at]);
            key.push(&[b'%', hex(byte >> 4), hex(byte & 15)]);
            plain_from = at + 1;
        }
    }
    key.push(&text.as_bytes()[plain_from..]);
}

/// Puts `:#` and 128 bits of SHA-256 in the place of all entries. Entries come in pairs, so no key of entries looks like this.
fn hash_entries(key: &mut Key, head_len: usize) {
    let digest = Sha256::digest(&key.as_bytes()[head_len..]);
    let mut text: SmallVec<[u8; 34]> = SmallVec::from_slice(b":#");
    for byte in digest.iter().take(16) {
        text.extend([hex(byte >> 4), hex(byte & 15)]);
    }
    key.truncate(head_len);
    key.push(&text);
}

fn hex(nibble: u8) -> u8 {
    b"0123456789ABCDEF"[nibble as usize]
}
