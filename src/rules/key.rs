//! The names of counters.
//!
//! A counter's key has one of two forms. The reference form is the reference's own, so that counts
//! survive a change of the service and both can count together; but its parts are joined by
//! underscores that values may have, too, so different counters can get the same key. The safe form
//! is `tg:domain:key:value:…:algorithm:period:tick`, each part percent-encoded so that no two
//! counters can have the same key whatever clients send. Both forms have bytes that are not UTF-8
//! unchanged.

use percent_encoding::percent_encode_byte;
use ring::digest::{SHA256, digest};

use crate::base::named_enum::named_enum;
use crate::limits::check::{KEY_BYTES_MAX, Key};
use crate::limits::{Limit, OverLimitHits, Windows};
use crate::rules::query::Entry;

/// Bytes of the name of a holder. No id of a request or of a session comes near it.
pub const HOLDER_BYTES_MAX: usize = 128;

/// Bytes of a key up to the end of its hash tag: half of [`KEY_BYTES_MAX`].
const TAG_BYTES_MAX: usize = 256;

/// Bytes of a hash in a key.
const HASH_BYTES: usize = 16;

named_enum! {
    /// How the keys of counters are written that the reference has, too: CACHE_KEY_FORMAT. All
    /// others always have the safe form.
    pub enum KeyFormat {
        /// The format of the reference.
        Reference = "reference",
        /// A format in which no two counters have the same key.
        Safe = "safe",
    }
}

/// The start of the keys of a domain.
#[derive(Debug)]
pub struct KeyHead {
    format: KeyFormat,
    /// `PREFIX domain_`
    reference: Box<str>,
    /// `PREFIX tg:domain`
    safe: Box<str>,
    /// Where the domain begins in `safe`.
    domain_at: usize,
}

/// The end of the keys of a limit, which also decides their format. It is made when the
/// rules are compiled: what a limit came from can no longer be seen from it.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyTail {
    /// `key_value_key_value_`, at the end of which a store writes the start of the window.
    Reference,
    /// `:key:value:key:value`, and this.
    Safe(Box<str>),
}

impl KeyHead {
    /// The start of the keys of a domain. CACHE_KEY_PREFIX is not escaped.
    pub fn new(format: KeyFormat, prefix: &str, domain: &str) -> Self {
        let mut safe = Key::from(prefix);
        safe.push(b"tg:");
        let domain_at = safe.len();
        push_encoded(&mut safe, domain.as_bytes());
        Self {
            format,
            reference: format!("{prefix}{domain}_").into(),
            safe: safe.to_string().into(),
            domain_at,
        }
    }

    /// How its counters are written that the reference has, too.
    pub const fn format(&self) -> KeyFormat {
        self.format
    }
}

impl KeyTail {
    /// The reference format is for the counters of envoyproxy/ratelimit: fixed windows of one unit
    /// that count over-limit hits.
    ///
    /// The safe format ends with the algorithm, the period and its tick, because a state is only
    /// read in the units it was written in. For fixed windows it ends with `:`, as the reference
    /// format ends with `_`: a store appends the start of the window in seconds. For calendars it
    /// ends with the kind of the period and `@`, and a store appends its local date, so that a
    /// change of the zone keeps the count.
    ///
    /// With sub-windows their number follows the algorithm, because their state is different. A
    /// concurrency limit has no period: its lease is part of the state, so that a changed lease
    /// keeps the holders.
    pub fn new(format: KeyFormat, limit: &Limit, unit_multiplier: u32) -> Self {
        let (algorithm, is_window) = (limit.algorithm, limit.algorithm.has_windows());
        if let Windows::Calendar(calendar) = limit.windows {
            let months = match calendar.months {
                1 => String::new(),
                months => months.to_string(),
            };
            return Self::Safe(format!(":{algorithm}:{months}{}@", calendar.unit).into());
        }
        if format == KeyFormat::Reference
            && is_window
            && unit_multiplier == 1
            && limit.requests <= u32::MAX.into()
            && limit.over_limit_hits == OverLimitHits::Count
        {
            return Self::Reference;
        }
        let end = if is_window { ":" } else { "" };
        let buckets = match limit.buckets {
            0 => String::new(),
            buckets => format!("-{buckets}"),
        };
        let period = match limit.windows {
            _ if algorithm.counts_holders() => "0".to_owned(),
            Windows::UtcMonths(_) => "month".to_owned(),
            _ => limit.period_ticks().to_string(),
        };
        let tick = limit.tick.name();
        Self::Safe(format!(":{algorithm}{buckets}:{period}:{tick}{end}").into())
    }

    /// The end of the keys of a rule that counts nothing.
    pub fn none() -> Self {
        Self::Safe("".into())
    }

    /// Which form keys with it have.
    pub const fn format(&self) -> KeyFormat {
        match self {
            Self::Reference => KeyFormat::Reference,
            Self::Safe(_) => KeyFormat::Safe,
        }
    }
}

/// The key of a counter, of entries whose values are those it is counted by.
///
/// The reference form has no escapes and no bound: the reference finds only what is written as it
/// writes it.
pub fn counter_key<'e>(
    head: &KeyHead,
    entries: impl Iterator<Item = Entry<'e>>,
    tagged_entries: usize,
    tail: &KeyTail,
) -> Key {
    let KeyTail::Safe(tail) = tail else {
        let mut key = Key::from(&*head.reference);
        for part in entries.flat_map(|entry| [entry.key, entry.value]) {
            key.push(part);
            key.push(b"_");
        }
        return key;
    };
    if tagged_entries > 0 {
        return tagged_key(head, entries, tagged_entries, tail);
    }
    let mut key = Key::from(&*head.safe);
    push_entries(&mut key, entries);
    shorten(&mut key, head.safe.len(), KEY_BYTES_MAX.saturating_sub(tail.len()));
    key.push(tail.as_bytes());
    key
}

/// The key of a counter that is decided in one step with others, on a cluster. The hash tag has the
/// domain and the entries that all of them have, and is shortened on its own, so that all of them
/// are in one slot: `tg:{domain:org:acme}:team:search:…`.
fn tagged_key<'e>(
    head: &KeyHead,
    mut entries: impl Iterator<Item = Entry<'e>>,
    tagged_entries: usize,
    tail: &str,
) -> Key {
    let (prefix, domain) = head.safe.split_at(head.domain_at);
    let mut key = Key::from(prefix);
    key.push(b"{");
    key.push(domain.as_bytes());
    let tag_at = key.len();
    push_entries(&mut key, entries.by_ref().take(tagged_entries));
    shorten(&mut key, tag_at, TAG_BYTES_MAX);
    key.push(b"}");
    let rest_at = key.len();
    push_entries(&mut key, entries);
    if key.len() > rest_at {
        shorten(&mut key, rest_at, KEY_BYTES_MAX.saturating_sub(tail.len()));
    }
    key.push(tail.as_bytes());
    key
}

fn push_entries<'e>(key: &mut Key, entries: impl Iterator<Item = Entry<'e>>) {
    for part in entries.flat_map(|entry| [entry.key, entry.value]) {
        key.push(b":");
        push_encoded(key, part);
    }
}

/// Replaces what begins at `from` by its hash if the key is too long. Entries come in pairs, so no
/// key of entries looks like this.
fn shorten(key: &mut Key, from: usize, len_max: usize) {
    if key.len() > len_max {
        let hash = hashed(&key.as_bytes()[from..]);
        key.truncate(from);
        key.push(b":");
        key.push(hash.as_bytes());
    }
}

/// The name of a holder, from a value of the request.
pub(crate) fn holder(value: &[u8]) -> Box<[u8]> {
    if value.len() > HOLDER_BYTES_MAX { hashed(value).into_bytes().into() } else { value.into() }
}

fn push_encoded(key: &mut Key, bytes: &[u8]) {
    let mut plain_from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte <= b' ' || matches!(byte, b'%' | b':' | b'{' | b'}' | 0x7f) {
            key.push(&bytes[plain_from..at]);
            key.push(percent_encode_byte(byte).as_bytes());
            plain_from = at + 1;
        }
    }
    key.push(&bytes[plain_from..]);
}

/// `#` and 128 bits of SHA-256.
fn hashed(bytes: &[u8]) -> String {
    let mut text = "#".to_owned();
    for byte in digest(&SHA256, bytes).as_ref().iter().take(HASH_BYTES) {
        text += &format!("{byte:02X}");
    }
    text
}
