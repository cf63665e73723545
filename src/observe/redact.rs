//! Replaces values by hashes, so that admin pages have no personal data and still have distinct
//! keys; or drops them.
//!
//! Values that the rules in force name stay, and so do the fixed parts of their patterns: they are
//! in the configuration.
//!
//! ```text
//! rule                    request              hashed
//! key: user               user=ann             user=8a3f5c0e1b7d2946
//! key: user, value: bot   user=bot             user=bot
//! key: path, value: /a/*  path=/a/ann          path=/a/c41d08e6f2957b3a
//! ```
//! The hash is keyed: without the key, a list of all users or addresses does not tell which is
//! which.

use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use crate::base::hash_key::HashKey;
use crate::base::named_enum::named_enum;
use crate::rules::lookup::{Hop, lookup};
use crate::rules::tree::Found;
use crate::rules::{Descriptor, Entry, LiveRules, Query, RuleSet};

named_enum! {
    /// What values are replaced by: ADMIN_REDACT.
    pub enum Redact {
        /// Nothing.
        None = "none",
        /// Their hashes.
        Hash = "hash",
        /// The empty value.
        Drop = "drop",
    }
}

/// Hashes values, or drops them.
#[derive(Debug)]
pub struct Redaction {
    /// `None` drops them.
    key: Option<HashKey>,
}

/// How a caller sees values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// As they are.
    Clear,
    /// As set by ADMIN_REDACT.
    Redacted,
}

/// Texts about a request, for callers that see its values and for others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quoted<T> {
    clear: T,
    /// `None` if it is the same.
    redacted: Option<T>,
}

/// Shows descriptors of clients on pages of the process, to callers with a token and to others.
#[derive(Debug, Clone)]
pub struct DescriptorView {
    /// `None` shows values as they are.
    pub redaction: Option<Arc<Redaction>>,
    /// The rules in force.
    pub rules: Arc<LiveRules>,
}

/// A request and its values after redaction.
pub(crate) struct Redacted<'r, 'q> {
    query: &'r Query<'q>,
    /// Of each entry of each descriptor.
    values: Vec<Vec<Vec<u8>>>,
}

impl<T> Quoted<T> {
    pub(crate) fn seen(&self, values: Values) -> &T {
        match (values, &self.redacted) {
            (Values::Redacted, Some(redacted)) => redacted,
            _ => &self.clear,
        }
    }

    pub(crate) fn map<U>(self, map: impl Fn(Values, T) -> U) -> Quoted<U> {
        Quoted {
            clear: map(Values::Clear, self.clear),
            redacted: self.redacted.map(|text| map(Values::Redacted, text)),
        }
    }
}

impl Redaction {
    /// Replaces values by hashes.
    pub(crate) fn hashing(key: HashKey) -> Self {
        Self { key: Some(key) }
    }

    /// Leaves values empty.
    pub(crate) fn dropping() -> Self {
        Self { key: None }
    }

    /// Whether distinct values stay distinct.
    pub(crate) fn hashes(&self) -> bool {
        self.key.is_some()
    }

    pub(crate) fn of<'r, 'q>(&self, query: &'r Query<'q>, rules: &RuleSet) -> Redacted<'r, 'q> {
        let domain = rules.domain(query.domain);
        let values = query.descriptors.iter().map(|descriptor| {
            let hops = domain.map(|domain| lookup(domain, &descriptor.entries).0);
            let hops = hops.unwrap_or_default();
            let entries = descriptor.entries.iter().enumerate();
            entries
                .map(|(index, entry)| self.value(*entry, hops.get(index)))
                .collect()
        });
        Redacted {
            values: values.collect(),
            query,
        }
    }

    fn value(&self, entry: Entry<'_>, hop: Option<&Hop<'_>>) -> Vec<u8> {
        match hop {
            _ if entry.value.is_empty() => Vec::new(),
            Some(hop) if hop.found == Found::Exact => entry.value.to_vec(),
            // The star may be in the key.
            Some(hop) if hop.found == Found::Pattern && hop.node.value.contains('*') => {
                let pattern = hop.node.value.replace('*', &self.hash(entry));
                pattern.into_bytes()
            }
            _ => self.hash(entry).into_bytes(),
        }
    }

    fn hash(&self, entry: Entry<'_>) -> String {
        let Some(key) = &self.key else {
            return String::new();
        };
        let mut hasher = SipHasher24::new_with_key(&key.get().to_be_bytes());
        hasher.write(&(entry.key.len() as u64).to_le_bytes());
        hasher.write(entry.key);
        hasher.write(entry.value);
        format!("{:016x}", hasher.finish())
    }
}

impl DescriptorView {
    /// The first `max` descriptors of a request, each as text.
    pub(crate) fn shown(&self, query: &Query<'_>, max: usize) -> Quoted<Vec<String>> {
        let shown = |query: &Query<'_>| {
            let descriptors = query.descriptors.iter().take(max);
            descriptors.map(Descriptor::shown).collect()
        };
        let redacted = self.redaction.as_ref().map(|redaction| {
            let rules = self.rules.load();
            // Without rules none of them names a value.
            let rules = rules.as_ref().map_or_else(Arc::default, Arc::clone);
            shown(&redaction.of(query, &rules).query())
        });
        Quoted {
            clear: shown(query),
            redacted,
        }
    }
}

impl Redacted<'_, '_> {
    pub(crate) fn query(&self) -> Query<'_> {
        let mut values = self.values.iter().flatten();
        self.query.with_entries(|entry| {
            let value = values.next().expect("one for each entry");
            Entry::new(entry.key, value)
        })
    }
}
