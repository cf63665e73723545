//! Plans one request: a step for each descriptor, and the checks to make.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::check::{Check, CheckRequest, Hits};
use crate::limit::{Limit, LimitError};
use crate::rules::key;
use crate::rules::lookup::{Hops, Match, counted_by, lookup};
use crate::rules::metric_name;
use crate::rules::overrides::{self, OverrideError, Resolved};
use crate::rules::query::{Descriptor, Query};
use crate::rules::rule::{Allowance, Naming, Rule};
use crate::rules::tree::{Domain, RuleSet};
use crate::text::Text;
use crate::time::{Span, Time};

/// One request against the rules.
#[derive(Debug)]
pub struct Plan<'r> {
    /// Whether the domain has rules at all.
    pub domain_known: bool,
    /// One for each descriptor, in order.
    pub steps: SmallVec<[Step<'r>; 2]>,
    /// The checks of the steps that count.
    pub request: CheckRequest,
}

/// What is done about one descriptor.
#[derive(Debug)]
pub enum Step<'r> {
    /// No rule is about it.
    NoRule,
    /// Its rule allows anything.
    Unlimited(&'r Rule),
    /// Another rule of the same request takes the place of its rule.
    Replaced(&'r Rule),
    /// It states a limit of its own.
    Override {
        /// The rule that the limit takes everything but number and unit from.
        rule: Option<&'r Rule>,
        /// Index of its check.
        check: usize,
        /// Name of its metrics.
        metric_name: String,
    },
    /// Its rule is counted.
    Counted {
        /// The rule.
        rule: &'r Rule,
        /// Index of its check.
        check: usize,
        /// Name of its metrics, where it depends on the request.
        metric_name: Option<String>,
    },
}

/// What is the same for all requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modes {
    /// SHADOW_MODE: count and report, never reject.
    pub shadow: bool,
    /// QUOTA_MODE: every rule is a quota.
    pub quota: bool,
    /// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: all or nothing, in every domain.
    pub all_or_nothing: bool,
}

/// A request that cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// A limit in the request whose unit is no unit.
    #[error(
        "descriptors[{descriptor}].limit.unit {wire_unit} is no unit; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
    )]
    UnknownUnit {
        /// Which descriptor.
        descriptor: usize,
        /// What was sent.
        wire_unit: i32,
    },
    /// A limit in the request that the algorithm of its rule cannot count exactly.
    #[error("descriptors[{descriptor}].limit: {error}")]
    UncountableLimit {
        /// Which descriptor.
        descriptor: usize,
        /// Why.
        error: LimitError,
    },
    /// A holder without a name, which could never release its slot.
    #[error(
        "descriptors[{descriptor}] has no value for {lease_by}, which names the holder of a slot; send one that no other request has"
    )]
    NoHolder {
        /// Which descriptor.
        descriptor: usize,
        /// The key of the entry.
        lease_by: Box<str>,
    },
}

/// What the rules say of one descriptor, before rules of the same request replace each other.
enum MatchOutcome<'r> {
    Nothing,
    Unlimited(&'r Rule),
    Limited {
        rule: &'r Rule,
        limit: Limit,
        hops: Hops<'r>,
    },
    /// The descriptor states its own.
    Override(Resolved<'r>),
}

/// Plans a request that came `now`.
///
/// # Errors
/// [`InvalidRequest`], for what cannot be counted. In an unknown domain nothing is counted, so
/// nothing is wrong.
pub fn plan<'r>(
    rules: &'r RuleSet,
    query: &Query<'_>,
    modes: Modes,
    now: Time,
) -> Result<Plan<'r>, InvalidRequest> {
    let Some(domain) = rules.domain(query.domain) else {
        return Ok(Plan::without_rules(query));
    };
    let met = query
        .descriptors
        .iter()
        .enumerate()
        .map(|(index, descriptor)| match_descriptor(domain, descriptor, index));
    let met: SmallVec<[MatchOutcome<'r>; 2]> = met.collect::<Result<_, _>>()?;
    let replaced = replaced_names(&met);

    let mut request = CheckRequest {
        all_or_nothing: modes.all_or_nothing || domain.all_or_nothing,
        deadline: query.deadline,
        ..CheckRequest::default()
    };
    let mut count = |check: Check| {
        // A slot must not be booked for a request that another limit rejects.
        request.all_or_nothing |=
            check.book_ahead > Span::ZERO && matches!(check.hits, Hits::Add(_));
        request.checks.push(check);
        request.checks.len() - 1
    };
    let checks = Checks {
        domain,
        query,
        modes,
        now,
    };
    let steps = met.into_iter().enumerate().map(|(index, met)| {
        Ok(match met {
            MatchOutcome::Nothing => Step::NoRule,
            MatchOutcome::Unlimited(rule) => Step::Unlimited(rule),
            MatchOutcome::Limited { rule, .. } if replaced.contains(&*rule.name) => {
                Step::Replaced(rule)
            }
            MatchOutcome::Limited { rule, limit, hops } => {
                let (check, metric_name) = checks.of_rule(index, rule, limit, &hops)?;
                Step::Counted {
                    rule,
                    check: count(check),
                    metric_name,
                }
            }
            MatchOutcome::Override(Resolved { limit, rule }) => {
                let (check, metric_name) = checks.of_override(index, limit, rule)?;
                Step::Override {
                    rule,
                    check: count(check),
                    metric_name,
                }
            }
        })
    });
    let steps = steps.collect::<Result<_, _>>()?;
    Ok(Plan {
        domain_known: true,
        steps,
        request,
    })
}

/// Makes the checks of one request, each with the name of its metrics.
struct Checks<'a, 'q> {
    domain: &'a Domain,
    query: &'a Query<'q>,
    modes: Modes,
    now: Time,
}

impl Checks<'_, '_> {
    /// The check of a rule. The name is `None` where it does not depend on the request.
    fn of_rule(
        &self,
        index: usize,
        rule: &Rule,
        limit: Limit,
        hops: &Hops<'_>,
    ) -> Result<(Check, Option<String>), InvalidRequest> {
        let descriptor = &self.query.descriptors[index];
        let key = key::counter_key(
            &self.domain.key_head,
            counted_by(&descriptor.entries, hops, rule),
            &rule.key_tail,
        );
        let mut check = Check::new(key, limit, descriptor.hits);
        hold(&mut check, rule, descriptor, index)?;
        if !rule.shadow_mode {
            check.book_ahead = self.book_ahead(&limit);
        }
        check.enforcing = self.can_reject(descriptor)
            && !rule.shadow_mode
            && !rule.quota_mode
            && !rule.degrades();
        let metric_name = (rule.naming != Naming::Fixed)
            .then(|| metric_name::of_rule(self.domain, &descriptor.entries, hops, rule));
        Ok((check, metric_name))
    }

    /// The check of a limit that a descriptor states, with what `rule` adds to it.
    fn of_override(
        &self,
        index: usize,
        limit: Limit,
        rule: Option<&Rule>,
    ) -> Result<(Check, String), InvalidRequest> {
        let descriptor = &self.query.descriptors[index];
        let entries = overrides::named_by(&descriptor.entries, rule);
        let tail = overrides::key_tail(self.domain, &limit);
        let key = key::counter_key(&self.domain.key_head, entries, &tail);
        let mut check = Check::new(key, limit, descriptor.hits);
        if let Some(rule) = rule {
            hold(&mut check, rule, descriptor, index)?;
        }
        check.book_ahead = self.book_ahead(&limit);
        check.enforcing = self.can_reject(descriptor) && !rule.is_some_and(Rule::degrades);
        let entries = overrides::named_by(&descriptor.entries, rule);
        Ok((check, metric_name::of_override(self.domain, entries)))
    }

    /// Whether the modes of the process let a check reject. A refund is never rejected.
    fn can_reject(&self, descriptor: &Descriptor<'_>) -> bool {
        !self.modes.shadow && !self.modes.quota && !matches!(descriptor.hits, Hits::Refund(_))
    }

    /// How long the call may be held back: as the limit says, but not beyond the caller's deadline;
    /// in shadow mode not at all. A peek books nothing; its verdict says whether hits would be held back.
    fn book_ahead(&self, limit: &Limit) -> Span {
        if self.modes.shadow {
            return Span::ZERO;
        }
        let max_wait = limit.max_wait();
        self.query
            .deadline
            .map_or(max_wait, |deadline| max_wait.min(deadline.since(self.now)))
    }
}

/// Puts the holder into a check of what is held at once.
fn hold(
    check: &mut Check,
    rule: &Rule,
    descriptor: &Descriptor<'_>,
    index: usize,
) -> Result<(), InvalidRequest> {
    if rule.names_holders() {
        (check.hits, check.holder) = (
            descriptor.hits.at_most_one(),
            Some(holder_of(descriptor, index)?),
        );
    }
    Ok(())
}

/// The name of who takes a place or gives it back: the value of the last entry.
fn holder_of(descriptor: &Descriptor<'_>, index: usize) -> Result<Box<[u8]>, InvalidRequest> {
    let last = descriptor
        .entries
        .last()
        .expect("a rule was met by its last entry");
    if last.value.is_empty() {
        return Err(InvalidRequest::NoHolder {
            descriptor: index,
            lease_by: Text(last.key).shown().into(),
        });
    }
    Ok(key::holder(last.value))
}

fn match_descriptor<'r>(
    domain: &'r Domain,
    descriptor: &Descriptor<'_>,
    index: usize,
) -> Result<MatchOutcome<'r>, InvalidRequest> {
    if let Some(stated) = descriptor.limit {
        return overrides::resolve(domain, descriptor, stated)
            .map(MatchOutcome::Override)
            .map_err(|error| match error {
                OverrideError::UnknownUnit(wire_unit) => InvalidRequest::UnknownUnit {
                    descriptor: index,
                    wire_unit,
                },
                OverrideError::Uncountable(error) => InvalidRequest::UncountableLimit {
                    descriptor: index,
                    error,
                },
            });
    }
    let Some(Match { rule, hops }) = lookup(domain, descriptor, &mut ()) else {
        return Ok(MatchOutcome::Nothing);
    };
    Ok(match rule.allowance {
        Allowance::Unlimited { .. } => MatchOutcome::Unlimited(rule),
        Allowance::Limited(limit) => MatchOutcome::Limited { rule, limit, hops },
    })
}

/// The names of the rules that are out of force for this request. The order does not matter: two
/// that replace each other are both out, and one that is replaced still replaces.
fn replaced_names<'r>(met: &[MatchOutcome<'r>]) -> HashSet<&'r str> {
    let rules = met.iter().filter_map(|met| match met {
        MatchOutcome::Limited { rule, .. } | MatchOutcome::Unlimited(rule) => Some(*rule),
        MatchOutcome::Nothing | MatchOutcome::Override(_) => None,
    });
    rules
        .flat_map(|rule| rule.replaces.iter().map(|name| &**name))
        .collect()
}

impl Plan<'_> {
    /// For a domain that has no rules.
    fn without_rules(query: &Query<'_>) -> Self {
        Self {
            domain_known: false,
            steps: query.descriptors.iter().map(|_| Step::NoRule).collect(),
            request: CheckRequest::default(),
        }
    }
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

    /// Whether its rule only counts. A limit in a request is never in shadow, as in the reference.
    pub fn in_shadow(&self) -> bool {
        matches!(self, Self::Counted { rule, .. } if rule.shadow_mode)
    }

    /// The index of its check, if it has one.
    pub fn check(&self) -> Option<usize> {
        match self {
            Self::Override { check, .. } | Self::Counted { check, .. } => Some(*check),
            Self::NoRule | Self::Unlimited(_) | Self::Replaced(_) => None,
        }
    }
}

impl Hits {
    /// What a call does to places that are held, of which it has one whatever it costs.
    fn at_most_one(self) -> Self {
        match self {
            Self::Add(_) => Self::Add(1),
            Self::Refund(_) => Self::Refund(1),
            Self::Peek => Self::Peek,
        }
    }
}

#[cfg(test)]
mod tests;
