//! Plans one request: a step for each descriptor, and the checks to make.

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::text::Text;
use crate::base::time::{Span, Time};
use crate::check::{Check, CheckRequest, Hits, Leased};
use crate::limit::{LeaseTerms, Limit, OverLimitHits};
use crate::rules::key::{self, KeyFormat, KeyTail};
use crate::rules::lookup::{End, Hops, counted_by, lookup};
use crate::rules::metric_name;
use crate::rules::query::{Descriptor, Override, Query};
use crate::rules::rule::{Allowance, Naming, Rule};
use crate::rules::tree::{Domain, RuleSet};

/// Shown instead of the path of a rule if the limit comes with the request.
const OWN_LIMIT: &str = "(limit of the request)";

/// A request matched with the rules.
#[derive(Debug)]
pub struct Plan<'r> {
    /// Whether the domain has rules at all.
    pub domain_known: bool,
    /// A step for each descriptor, in order.
    pub steps: SmallVec<[Step<'r>; 2]>,
    /// The checks of the steps that count.
    pub request: CheckRequest,
}

/// The treatment of a descriptor.
#[derive(Debug)]
pub enum Step<'r> {
    /// No rule is about it.
    NoRule,
    /// The rule is unlimited.
    Unlimited(&'r Rule),
    /// Another rule of the same request takes the place of its rule.
    Replaced(&'r Rule),
    /// The request states a limit of its own.
    Override {
        /// The rule that the limit takes everything but number and unit from.
        rule: Option<&'r Rule>,
        /// Index of its check.
        check: usize,
        /// Whether the rule's `enforce_percent` includes its key.
        enforced: bool,
        /// The form of its key.
        key_format: KeyFormat,
        /// Name of its metrics.
        metric_name: String,
    },
    /// The rule is counted.
    Counted {
        /// The rule.
        rule: &'r Rule,
        /// Index of its check.
        check: usize,
        /// Whether `enforce_percent` includes its key.
        enforced: bool,
        /// Name of its metrics, where it depends on the request.
        metric_name: Option<String>,
    },
}

/// Modes of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modes {
    /// SHADOW_MODE: count and report, never reject.
    pub shadow: bool,
    /// QUOTA_MODE: every rule is a quota.
    pub quota: bool,
    /// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: all or nothing, in every domain.
    pub all_or_nothing: bool,
}

/// A request that cannot be counted, as text: a limit with an unknown unit or that the algorithm of
/// its rule cannot count exactly, or a holder without a name, which could never release its slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRequest(String);

/// The match of a descriptor, before rules of the same request replace each other.
struct Matched<'r> {
    /// `None` for a limit in the request that takes nothing over from a rule.
    rule: Option<&'r Rule>,
    /// `None` if nothing is counted.
    limit: Option<Limit>,
    /// The descriptor states the limit.
    is_override: bool,
    /// Empty for a limit in the request: no values share its counter.
    hops: Hops<'r>,
}

/// Makes the checks of one request.
struct Planner<'a, 'q> {
    domain: &'a Domain,
    query: &'a Query<'q>,
    modes: Modes,
    now: Time,
}

/// Plans a request that came `now`.
///
/// # Errors
/// [`InvalidRequest`], for what cannot be counted. In an unknown domain nothing is counted, so
/// nothing is invalid.
pub fn plan<'r>(
    rules: &'r RuleSet,
    query: &Query<'_>,
    modes: Modes,
    now: Time,
) -> Result<Plan<'r>, InvalidRequest> {
    let Some(domain) = rules.domain(query.domain) else {
        return Ok(Plan {
            domain_known: false,
            steps: query.descriptors.iter().map(|_| Step::NoRule).collect(),
            request: CheckRequest::default(),
        });
    };
    let count = query.descriptors.len();
    let mut matches: SmallVec<[Matched<'r>; 2]> = SmallVec::with_capacity(count);
    for (index, descriptor) in query.descriptors.iter().enumerate() {
        matches.push(match_descriptor(domain, descriptor, index)?);
    }
    // The order does not matter: two rules that replace each other are both out, and one that is
    // replaced still replaces.
    let replaced: HashSet<&str> = matches
        .iter()
        .filter(|matched| !matched.is_override)
        .flat_map(|matched| matched.rule.map_or(&[][..], |rule| &rule.replaces))
        .map(|name| &**name)
        .collect();
    let planner = Planner {
        domain,
        query,
        modes,
        now,
    };
    let mut request = CheckRequest {
        checks: SmallVec::with_capacity(count),
        all_or_nothing: modes.all_or_nothing || domain.all_or_nothing,
        deadline: query.deadline,
    };
    let mut steps = SmallVec::with_capacity(count);
    for (index, matched) in matches.into_iter().enumerate() {
        let is_replaced = |rule: &Rule| !matched.is_override && replaced.contains(&*rule.name);
        steps.push(match (matched.rule, matched.limit) {
            (None, None) => Step::NoRule,
            (Some(rule), None) => Step::Unlimited(rule),
            (Some(rule), Some(_)) if is_replaced(rule) => Step::Replaced(rule),
            (_, Some(limit)) => planner.count(index, &matched, limit, &mut request)?,
        });
    }
    Ok(Plan {
        domain_known: true,
        steps,
        request,
    })
}

impl<'r> Matched<'r> {
    /// A limit in a request may have none although its rule has them.
    fn lease(&self, limit: &Limit) -> Option<&'r Arc<Leased>> {
        let lease = self.rule?.lease.as_ref()?;
        (!self.is_override || LeaseTerms::new(limit, None).is_some()).then_some(lease)
    }
}

impl Planner<'_, '_> {
    /// Adds the check of a descriptor.
    fn count<'r>(
        &self,
        index: usize,
        matched: &Matched<'r>,
        limit: Limit,
        request: &mut CheckRequest,
    ) -> Result<Step<'r>, InvalidRequest> {
        let Matched { rule, hops, .. } = matched;
        // Whose shadow_mode, quota_mode, names and keys apply: no rule's to a limit in a request,
        // as in envoyproxy/ratelimit.
        let own = rule.filter(|_| !matched.is_override);
        let descriptor = &self.query.descriptors[index];
        let entries = &descriptor.entries;
        let tail = match own {
            Some(rule) => &rule.key_tail,
            None => &KeyTail::new(self.domain.key_head.format(), &limit, 1),
        };
        let key_entries = || counted_by(entries, hops, *rule);
        let key = key::counter_key(&self.domain.key_head, key_entries(), tail);
        let mut check = Check::new(key, limit, descriptor.hits);
        if rule.is_some_and(Rule::names_holders) {
            check.holder = Some(holder(descriptor, index)?);
            check.hits = match check.hits {
                Hits::Add(_) => Hits::Add(1),
                Hits::Refund(_) => Hits::Refund(1),
                Hits::Peek => Hits::Peek,
            };
        }
        check.lease = matched.lease(&limit).cloned();
        if check.lease.is_some() {
            // Hits that come back must be usable. The key stays: counts survive a change.
            check.limit.over_limit_hits = OverLimitHits::Drop;
        }
        let enforced = rule.is_none_or(|rule| {
            let share = rule.enforced_share;
            share.includes(&self.domain.name, key_entries())
        });
        let in_shadow = self.modes.shadow || !enforced || own.is_some_and(|rule| rule.shadow_mode);
        let is_quota = self.modes.quota || own.is_some_and(|rule| rule.quota_mode);
        check.enforcing = !in_shadow
            && !is_quota
            && !rule.is_some_and(Rule::degrades)
            && !matches!(descriptor.hits, Hits::Refund(_));
        if !in_shadow {
            check.book_ahead = self.book_ahead(&limit);
        }
        // A slot must not be booked for a request that another limit rejects.
        request.all_or_nothing |=
            check.book_ahead > Span::ZERO && matches!(check.hits, Hits::Add(_));
        request.checks.push(check);
        let check = request.checks.len() - 1;
        Ok(match own {
            Some(rule) => Step::Counted {
                rule,
                check,
                enforced,
                metric_name: (rule.naming != Naming::Fixed)
                    .then(|| metric_name::of_rule(self.domain, entries, hops, rule)),
            },
            None => Step::Override {
                rule: *rule,
                check,
                enforced,
                key_format: tail.format(),
                metric_name: metric_name::of_override(self.domain, key_entries()),
            },
        })
    }

    /// The longest delay of the call: `max_wait` of the limit, at most until the caller's deadline.
    /// A peek books nothing; its verdict says whether hits would be held back.
    fn book_ahead(&self, limit: &Limit) -> Span {
        let max_wait = limit.max_wait;
        self.query
            .deadline
            .map_or(max_wait, |deadline| max_wait.min(deadline.since(self.now)))
    }
}

/// The name of the holder that takes or releases a slot: the value of the last entry.
fn holder(descriptor: &Descriptor<'_>, index: usize) -> Result<Box<[u8]>, InvalidRequest> {
    let last = descriptor
        .entries
        .last()
        .expect("a rule was met by its last entry");
    if last.value.is_empty() {
        return Err(InvalidRequest(format!(
            "descriptors[{index}] has no value for {}, which names the holder of a slot; send one that no other request has",
            Text(last.key)
        )));
    }
    Ok(key::holder(last.value))
}

fn match_descriptor<'r>(
    domain: &'r Domain,
    descriptor: &Descriptor<'_>,
    index: usize,
) -> Result<Matched<'r>, InvalidRequest> {
    let (hops, end) = lookup(domain, &descriptor.entries);
    let rule = match end {
        End::Rule(rule) => Some(rule),
        End::NoEntries | End::NoChild | End::TooDeep | End::NoLimit => None,
    };
    if let Some(stated) = descriptor.limit {
        return match_override(domain, rule, stated, index);
    }
    Ok(Matched {
        rule,
        limit: rule.and_then(|rule| match rule.allowance {
            Allowance::Unlimited { .. } => None,
            Allowance::Limited(limit) => Some(limit),
        }),
        is_override: false,
        hops,
    })
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
) -> Result<Matched<'r>, InvalidRequest> {
    let requests = stated.requests_per_unit;
    let unit = stated.unit.ok_or_else(|| {
        InvalidRequest(format!(
            "descriptors[{index}].limit.unit {} is no unit; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
            stated.wire_unit
        ))
    })?;
    let rule = rule.filter(|rule| rule.override_terms.is_some());
    let terms = rule
        .and_then(|rule| rule.override_terms.as_deref())
        .unwrap_or(&domain.override_terms);
    let limit = terms
        .with_rate(requests, unit)
        .map_err(|error| InvalidRequest(format!("descriptors[{index}].limit: {error}")))?;
    Ok(Matched {
        rule,
        limit: Some(limit),
        is_override: true,
        hops: Hops::new(),
    })
}

impl<'r> Step<'r> {
    /// The rule that says what is done beyond the limit and without the store.
    pub fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::Counted { rule, .. } => Some(rule),
            Self::Override { rule, .. } => *rule,
            Self::NoRule | Self::Unlimited(_) | Self::Replaced(_) => None,
        }
    }

    /// The rule that the descriptor matches, whether it is counted or not.
    pub(crate) fn matched(&self) -> Option<&'r Rule> {
        match self {
            Self::Unlimited(rule) | Self::Replaced(rule) => Some(rule),
            Self::NoRule | Self::Override { .. } | Self::Counted { .. } => self.rule(),
        }
    }

    /// The path of its rule, as `explain` shows it; `None` if no rule applies.
    pub(crate) fn path(&self) -> Option<Arc<str>> {
        match self {
            Self::Override { rule: None, .. } => Some(OWN_LIMIT.into()),
            _ => self.matched().map(|rule| rule.path.clone()),
        }
    }

    /// Whether over limit is only counted, by `shadow_mode` or `enforce_percent`. As in
    /// envoyproxy/ratelimit, `shadow_mode` does not apply to a limit in a request.
    pub fn in_shadow(&self) -> bool {
        match self {
            Self::Counted { rule, enforced, .. } => rule.shadow_mode || !enforced,
            Self::Override { enforced, .. } => !enforced,
            Self::NoRule | Self::Unlimited(_) | Self::Replaced(_) => false,
        }
    }

    /// Whether its status is OK even over its limit.
    pub fn admits(&self) -> bool {
        self.in_shadow() || self.rule().is_some_and(Rule::degrades)
    }

    /// The index of its check, if it has one.
    pub fn check(&self) -> Option<usize> {
        match self {
            Self::Override { check, .. } | Self::Counted { check, .. } => Some(*check),
            Self::NoRule | Self::Unlimited(_) | Self::Replaced(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
