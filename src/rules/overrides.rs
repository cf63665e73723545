//! The limit that a request states for a descriptor, and what it takes over from the rules.
//!
//! The request states a number and a unit. The rest comes from the rule that matches the descriptor
//! if a `tollgate` block or DEFAULT_ALGORITHM says something about that rule, else from
//! DEFAULT_ALGORITHM. With neither, the limit is what it is in envoyproxy/ratelimit: a fixed window
//! that no rule has a say in.
//!
//! As there, `shadow_mode`, `quota_mode`, `replaces`, `share_threshold`, `metadata` and the names
//! of metrics are never taken over.

use crate::limit::{Limit, LimitError, Terms};
use crate::rules::key::KeyTail;
use crate::rules::lookup::lookup;
use crate::rules::query::{Descriptor, Entry, Override};
use crate::rules::rule::Rule;
use crate::rules::tree::{Domain, OverrideDefaults};

/// A limit in a request, with what it took over.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'r> {
    /// The limit to count by.
    pub limit: Limit,
    /// The rule that it takes everything but number and unit from.
    pub rule: Option<&'r Rule>,
}

/// A limit in a request that cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideError {
    /// The number on the wire is no unit's.
    UnknownUnit(i32),
    /// The rule's algorithm cannot count it exactly.
    Uncountable(LimitError),
}

/// Resolves the limit that a request states for a descriptor.
///
/// # Errors
/// [`OverrideError`], if it cannot be counted.
pub fn resolve<'r>(
    domain: &'r Domain,
    descriptor: &Descriptor<'_>,
    stated: Override,
) -> Result<Resolved<'r>, OverrideError> {
    let unit = stated
        .unit
        .ok_or(OverrideError::UnknownUnit(stated.wire_unit))?;
    let matched = lookup(domain, descriptor, &mut ()).map(|matched| matched.rule);
    let (rule, terms) = match matched.and_then(|rule| Some((rule, rule.override_terms.as_deref()?)))
    {
        Some((rule, terms)) => (Some(rule), *terms),
        None => {
            let OverrideDefaults { algorithm, months } = domain.override_defaults;
            (
                None,
                Terms {
                    months,
                    ..Terms::new(stated.requests_per_unit, unit, algorithm)
                },
            )
        }
    };
    let limit = terms
        .with_rate(stated.requests_per_unit, unit)
        .map_err(OverrideError::Uncountable)?;
    Ok(Resolved { limit, rule })
}

/// What the counter's key ends with. A fixed window has the reference's key wherever a rule would:
/// limits of one unit share a counter.
pub fn key_tail(domain: &Domain, limit: &Limit) -> KeyTail {
    /// The period of a limit in a request is one unit.
    const UNIT_MULTIPLIER: u32 = 1;
    KeyTail::new(domain.key_head.format(), limit, UNIT_MULTIPLIER)
}

/// The entries that name the counter and the metrics of a limit in a request: as sent, but without
/// the name of a holder.
pub fn named_by<'e>(
    entries: &'e [Entry<'e>],
    rule: Option<&Rule>,
) -> impl Iterator<Item = Entry<'e>> {
    let holder = rule
        .filter(|rule| rule.names_holders())
        .map(|_| entries.len() - 1);
    entries.iter().enumerate().map(move |(index, &entry)| {
        if holder == Some(index) {
            Entry {
                value: &[],
                ..entry
            }
        } else {
            entry
        }
    })
}
