//! The rule and the limit that a descriptor matches.

use std::sync::Arc;

use crate::limits::check::Leased;
use crate::limits::{LeaseTerms, Limit};
use crate::rules::lookup::{Hops, lookup};
use crate::rules::query::{Descriptor, Override};
use crate::rules::rule::Rule;
use crate::rules::tree::Domain;

/// A request that cannot be counted, as text: a limit with an unknown unit or that the algorithm of
/// its rule cannot count exactly, a holder without a name, which could never release its slot, or
/// more checks than [`CHECKS_MAX`](super::CHECKS_MAX).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRequest(pub(super) String);

/// The match of a descriptor, before rules of the same request replace each other.
pub(super) struct Matched<'r> {
    /// The rule that it ends at.
    pub(super) found: Option<&'r Rule>,
    /// The rule of its own limit: `None` for a limit in the request that takes nothing over from a
    /// rule.
    pub(super) rule: Option<&'r Rule>,
    /// The limit that the descriptor states.
    pub(super) stated: Option<Box<Limit>>,
    pub(super) hops: Hops<'r>,
}

impl<'r> Matched<'r> {
    /// Matches a descriptor of the request.
    pub(super) fn new(
        domain: &'r Domain,
        descriptor: &Descriptor<'_>,
        index: usize,
    ) -> Result<Self, InvalidRequest> {
        let (hops, end) = lookup(domain, &descriptor.entries);
        let found = end.rule();
        let (rule, stated) = match descriptor.limit {
            Some(stated) => {
                let (rule, limit) = match_override(domain, found, stated, index)?;
                (rule, Some(Box::new(limit)))
            }
            None => (found, None),
        };
        Ok(Self { found, rule, stated, hops })
    }

    /// `None` if nothing is counted by a limit of its own.
    pub(super) fn limit(&self) -> Option<&Limit> {
        match &self.stated {
            Some(limit) => Some(limit),
            None => self.rule?.limit(),
        }
    }

    /// The names of rules that it replaces: those of the rules above count if their limits apply.
    pub(super) fn replaces(&self) -> impl Iterator<Item = &'r str> {
        let own = self.rule.filter(|_| self.stated.is_none());
        let above = self.found.filter(|rule| rule.parents);
        let above = above.map_or(&[][..], |_| &self.hops[..self.hops.len() - 1]);
        let above = above.iter().filter_map(|hop| hop.node.rule.as_deref());
        let rules = own.into_iter().chain(above);
        rules.flat_map(|rule| rule.replaces.iter().map(|name| &**name))
    }

    /// Whether it is charged to every limit, whatever they answer.
    pub(super) fn settles(&self) -> bool {
        self.found.is_some_and(Rule::settles)
    }

    /// A limit in a request may have none although its rule has them.
    pub(super) fn lease(&self, limit: &Limit) -> Option<&'r Arc<Leased>> {
        let lease = self.rule?.lease.as_ref()?;
        (self.stated.is_none() || LeaseTerms::new(limit, None).is_some()).then_some(lease)
    }
}

/// A limit in a request. Everything but number and unit comes from the rule that matches the
/// descriptor if a `tollgate` block or DEFAULT_ALGORITHM says something about that rule, else from
/// DEFAULT_ALGORITHM. With neither it is what it is in envoyproxy/ratelimit: a fixed window.
///
/// Like there, `shadow_mode`, `quota_mode`, `replaces`, `share_threshold`, `metadata` and the names
/// of metrics are never taken over.
fn match_override<'r>(
    domain: &Domain,
    rule: Option<&'r Rule>,
    stated: Override,
    index: usize,
) -> Result<(Option<&'r Rule>, Limit), InvalidRequest> {
    let requests = stated.requests_per_unit;
    let unit = stated.unit.ok_or_else(|| {
        InvalidRequest(format!(
            "descriptors[{index}].limit.unit {} is no unit; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
            stated.wire_unit
        ))
    })?;
    let rule = rule.filter(|rule| rule.override_terms.is_some());
    let terms =
        rule.and_then(|rule| rule.override_terms.as_deref()).unwrap_or(&domain.override_terms);
    let limit = terms
        .with_rate(requests.into(), unit)
        .map_err(|error| InvalidRequest(format!("descriptors[{index}].limit: {error}")))?;
    Ok((rule, limit))
}
