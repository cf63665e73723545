//! The limit that a descriptor gets, and what distinguishes it from others.

use std::fmt;

use crate::base::time::{Span, Time};
use crate::limits::Limit;
use crate::rules::plan::Modes;
use crate::rules::{EnforcedShare, OnLimit, Query, Rule, RuleSet, Step, plan};

/// A limit to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compare {
    pub(crate) limit: Limit,
    /// The maximum time in the queue.
    pub(crate) book_ahead: Span,
}

/// The limit of a rule.
#[derive(Debug)]
pub(crate) struct RuleLimit {
    /// The path of the rule.
    pub(crate) rule: String,
    /// Where it is.
    pub(crate) origin: String,
    /// Properties that a simulation of the limit does not show.
    pub(crate) notes: Vec<String>,
    pub(crate) compare: Compare,
}

/// Why a descriptor has no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotLimited {
    UnknownDomain,
    NoRule,
    /// By the rule with this path.
    Unlimited(String),
    /// The service would answer with this error.
    Invalid(String),
}

impl fmt::Display for NotLimited {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::UnknownDomain => "there is no such domain",
            Self::NoRule => "it matches no rule with a limit",
            Self::Unlimited(_) => "its rule is unlimited",
            Self::Invalid(error) => error,
        })
    }
}

impl RuleLimit {
    /// Finds the limit of a request with one descriptor, as a service does.
    ///
    /// # Errors
    /// Nothing is limited.
    pub(crate) fn find(rules: &RuleSet, query: &Query<'_>) -> Result<Self, NotLimited> {
        // The time of the request does not matter for its plan.
        let planned = plan(rules, query, Modes::default(), Time::default())
            .map_err(|error| NotLimited::Invalid(error.to_string()))?;
        if !planned.domain_known {
            return Err(NotLimited::UnknownDomain);
        }
        let step = planned.steps.first().ok_or(NotLimited::NoRule)?;
        if let Step::Unlimited(rule) = step {
            return Err(NotLimited::Unlimited(rule.path.to_string()));
        }
        let link = step.links().last().ok_or(NotLimited::NoRule)?;
        let rule = link.own_rule().ok_or(NotLimited::NoRule)?;
        let check = &planned.request.checks[link.check];
        Ok(Self {
            rule: rule.path.to_string(),
            origin: rule.origin.to_string(),
            notes: notes(rule),
            compare: Compare { limit: check.limit, book_ahead: check.book_ahead },
        })
    }
}

fn notes(rule: &Rule) -> Vec<String> {
    let notes = [
        (rule.shadow_mode, "shadow_mode: counted as shown, but never over limit"),
        (rule.quota_mode, "quota_mode: over limit when every quota of the request is used up"),
        (
            matches!(rule.on_limit, OnLimit::Degrade { .. }),
            "on_limit: degrade: requests over the limit are admitted, and a header asks the upstream for a cheap response",
        ),
        (
            rule.is_chained(),
            "limits or parents: other limits are decided in one step with it, and may reject more",
        ),
        (
            rule.enforced_share != EnforcedShare::ALL,
            "enforce_percent: over limit as shown, but only for a share of keys",
        ),
    ];
    let apply = notes.into_iter().filter(|(applies, _)| *applies);
    apply.map(|(_, note)| note.to_owned()).collect()
}

/// A label that distinguishes a limit from the others.
pub(crate) fn label(limit: &Limit) -> String {
    let mut label = limit.algorithm.name().to_owned();
    if limit.algorithm.is_bucket() {
        label += &format!(", burst {}", limit.capacity);
    }
    if limit.buckets > 0 {
        label += &format!(", {} buckets", limit.buckets);
    }
    if limit.max_wait > Span::ZERO {
        label += &format!(", queue {}", limit.max_wait);
    }
    if limit.algorithm.counts_holders() {
        label += &format!(", lease {}", limit.period);
    }
    if limit.over_limit_hits != limit.algorithm.default_over_limit_hits() {
        label += &format!(", {}", limit.over_limit_hits.name());
    }
    label
}
