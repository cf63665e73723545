//! Leaves out the values that clients send, for callers of admin pages without a token.
//!
//! Values that the rules in force name stay, and so do the fixed parts of their patterns: they are
//! in the configuration.
//!
//! ```text
//! rule                    request              without values
//! key: user               user=ann             user=
//! key: user, value: bot   user=bot             user=bot
//! key: path, value: /a/*  path=/a/ann          path=/a/
//! ```

use std::sync::Arc;

use crate::base::named_enum::named_enum;
use crate::rules::lookup::{Hop, lookup};
use crate::rules::tree::Found;
use crate::rules::{Descriptor, Entry, LiveRules, Query, RuleSet};

named_enum! {
    /// How a caller sees values; without a token as ADMIN_REDACT says.
    pub enum Values {
        /// As they are.
        Clear = "none",
        /// Only those that the rules name.
        Dropped = "drop",
    }
}

/// Texts about a request, for callers that see its values and for others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quoted<T> {
    clear: T,
    /// `None` if it is the same.
    dropped: Option<T>,
}

/// Shows descriptors of clients on pages of the process, to callers with a token and to others.
#[derive(Debug, Clone)]
pub struct DescriptorView {
    /// What callers without a token see.
    pub values: Values,
    /// The rules in force.
    pub rules: Arc<LiveRules>,
}

/// A request and what is left of its values.
pub(crate) struct Redacted<'r, 'q> {
    query: &'r Query<'q>,
    /// Of each entry of each descriptor.
    values: Vec<Vec<Vec<u8>>>,
}

impl<T> Quoted<T> {
    pub(crate) fn seen(&self, values: Values) -> &T {
        match (values, &self.dropped) {
            (Values::Dropped, Some(dropped)) => dropped,
            _ => &self.clear,
        }
    }

    pub(crate) fn map<U>(self, map: impl Fn(Values, T) -> U) -> Quoted<U> {
        Quoted {
            clear: map(Values::Clear, self.clear),
            dropped: self.dropped.map(|text| map(Values::Dropped, text)),
        }
    }
}

impl DescriptorView {
    /// The first `max` descriptors of a request, each as text.
    pub(crate) fn shown(&self, query: &Query<'_>, max: usize) -> Quoted<Vec<String>> {
        let shown = |query: &Query<'_>| {
            let descriptors = query.descriptors.iter().take(max);
            descriptors.map(Descriptor::shown).collect()
        };
        let dropped = (self.values == Values::Dropped).then(|| {
            let rules = self.rules.load();
            // Without rules none of them names a value.
            let rules = rules.as_ref().map_or_else(Arc::default, Arc::clone);
            shown(&Redacted::of(query, &rules).query())
        });
        Quoted { clear: shown(query), dropped }
    }
}

impl<'r, 'q> Redacted<'r, 'q> {
    /// A request without the values that these rules do not name.
    pub(crate) fn of(query: &'r Query<'q>, rules: &RuleSet) -> Self {
        let domain = rules.domain(query.domain);
        let values = query.descriptors.iter().map(|descriptor| {
            let hops = domain.map(|domain| lookup(domain, &descriptor.entries).0);
            let hops = hops.unwrap_or_default();
            let entries = descriptor.entries.iter().enumerate();
            entries.map(|(index, entry)| named(*entry, hops.get(index))).collect()
        });
        Self { values: values.collect(), query }
    }

    pub(crate) fn query(&self) -> Query<'_> {
        let mut values = self.values.iter().flatten();
        self.query.with_entries(|entry| {
            let value = values.next().expect("one for each entry");
            Entry::new(entry.key, value)
        })
    }
}

/// What the rules name of a value.
fn named(entry: Entry<'_>, hop: Option<&Hop<'_>>) -> Vec<u8> {
    match hop {
        Some(hop) if hop.found == Found::Exact => entry.value.to_vec(),
        Some(hop) if hop.found == Found::Pattern => hop.node.value.replace('*', "").into_bytes(),
        _ => Vec::new(),
    }
}
