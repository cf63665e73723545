//! What is to be done for one request: a step for each descriptor, and the checks to make.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::check::{Ask, Check, Hits};
use crate::limit::{Algorithm, Limit, Terms, Unit};
use crate::rules::lookup::{Hops, lookup};
use crate::rules::query::{Descriptor, Override, Query};
use crate::rules::tree::{Domain, RuleSet};
use crate::rules::{Allowance, Naming, Rule, key};

/// One request against the rules.
#[derive(Debug)]
pub struct Plan<'r> {
    /// Whether the domain has rules at all.
    pub domain_known: bool,
    /// One for each descriptor, in order.
    pub steps: SmallVec<[Step<'r>; 2]>,
    /// The checks of the steps that count.
    pub ask: Ask,
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
    /// It brings a limit of its own.
    Override {
        /// Index of its check.
        check: usize,
        /// Name of its metrics.
        series: String,
    },
    /// Its rule is counted.
    Counted {
        /// The rule.
        rule: &'r Rule,
        /// Index of its check.
        check: usize,
        /// Name of its metrics, where it depends on the request.
        series: Option<String>,
    },
}

/// What is the same for all requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modes {
    /// SHADOW_MODE: count and tell, never refuse.
    pub shadow: bool,
    /// QUOTA_MODE: every rule is a quota.
    pub quota: bool,
    /// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: all or nothing, in every domain.
    pub together: bool,
}

/// A limit in the request whose unit is no unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("descriptors[{descriptor}].limit.unit {wire_unit} is no unit; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")]
pub struct UnknownUnit {
    /// Which descriptor.
    pub descriptor: usize,
    /// What was sent.
    pub wire_unit: i32,
}

/// Plans a request.
///
/// # Errors
/// [`UnknownUnit`], for a limit in the request that cannot be counted. In an unknown domain nothing is counted, so nothing is wrong.
pub fn plan<'r>(rules: &'r RuleSet, query: &Query<'_>, modes: Modes) -> Result<Plan<'r>, UnknownUnit> {
    let Some(domain) = rules.domain(query.domain) else {
        let steps = query.descriptors.iter().map(|_| Step::NoRule).collect();
        return Ok(Plan { domain_known: false, steps, ask: Ask::default() });
    };
    let mut ask = Ask { together: modes.together || domain.together, ..Ask::default() };
    let mut steps = SmallVec::new();
    let mut any_replaces = false;
    let mut found: SmallVec<[Hops<'r>; 2]> = SmallVec::new();
    for (index, descriptor) in query.descriptors.iter().enumerate() {
        let (step, hops) = match descriptor.limit {
            Some(limit) => (override_step(domain, descriptor, limit, index)?, Hops::new()),
            None => match lookup(domain, descriptor, &mut ()) {
                None => (Step::NoRule, Hops::new()),
                Some(found) => {
                    any_replaces |= !found.rule.replaces.is_empty();
                    let step = match found.rule.allowance {
                        Allowance::Unlimited { .. } => Step::Unlimited(found.rule),
                        Allowance::Limited(_) => Step::Counted { rule: found.rule, check: 0, series: None },
                    };
                    (step, found.hops)
                }
            },
        };
        steps.push(step);
        found.push(hops);
    }
    if any_replaces {
        replace(&mut steps);
    }
    for ((step, descriptor), hops) in steps.iter_mut().zip(&query.descriptors).zip(&found) {
        let entries = &descriptor.entries;
        let override_tail;
        let (limit, tail, veto) = match step {
            Step::Counted { rule, check, series } => {
                let Allowance::Limited(limit) = rule.allowance else { continue };
                *check = ask.checks.len();
                *series = (rule.naming != Naming::Fixed).then(|| key::metric_name(&domain.name, entries, hops, rule.naming));
                (limit, &rule.key_tail, !rule.shadow_mode && !rule.quota_mode)
            }
            Step::Override { check, .. } => {
                *check = ask.checks.len();
                let Some(limit) = descriptor.limit.and_then(|limit| override_limit(&limit)) else { continue };
                override_tail = key::key_tail(&limit);
                (limit, &override_tail, true)
            }
            Step::NoRule | Step::Unlimited(_) | Step::Replaced(_) => continue,
        };
        let key = key::counter_key(&domain.key_head, entries, hops, tail);
        ask.checks.push(Check { key, limit, hits: descriptor.hits, veto: veto && !modes.shadow && !modes.quota });
    }
    Ok(Plan { domain_known: true, steps, ask })
}

/// An override is a fixed window, and no rule is asked.
fn override_step<'r>(domain: &Domain, descriptor: &Descriptor<'_>, limit: Override, index: usize) -> Result<Step<'r>, UnknownUnit> {
    if override_limit(&limit).is_none() {
        return Err(UnknownUnit { descriptor: index, wire_unit: limit.wire_unit });
    }
    Ok(Step::Override { check: 0, series: key::override_metric_name(&domain.name, &descriptor.entries) })
}

fn override_limit(limit: &Override) -> Option<Limit> {
    let unit: Unit = limit.unit?;
    let terms = Terms {
        requests: limit.requests_per_unit,
        unit,
        unit_multiplier: 1,
        algorithm: Algorithm::FixedWindow,
        burst: None,
        refused_hits: None,
    };
    Limit::new(&terms).ok()
}

/// Takes every counted rule out whose name another rule of the request replaces. The order does not matter: two that replace each
/// other are both out, and one that is replaced still replaces.
fn replace(steps: &mut [Step<'_>]) {
    let mut names: HashSet<&str> = HashSet::new();
    for step in &*steps {
        if let Step::Counted { rule, .. } | Step::Unlimited(rule) = step {
            names.extend(rule.replaces.iter().map(|name| &**name));
        }
    }
    for step in &mut *steps {
        if let Step::Counted { rule, .. } = step
            && names.contains(&*rule.name)
        {
            *step = Step::Replaced(rule);
        }
    }
}

impl Step<'_> {
    /// The index of its check, if it has one.
    pub fn check(&self) -> Option<usize> {
        match self {
            Self::Override { check, .. } | Self::Counted { check, .. } => Some(*check),
            Self::NoRule | Self::Unlimited(_) | Self::Replaced(_) => None,
        }
    }
}

impl Hits {
    /// What a call does to its counter: its own number if it has one, of which 0 only looks; else the request's, of which 0 means 1.
    pub fn from_wire(own: Option<u64>, of_request: u32, is_negative: bool) -> Self {
        match own.unwrap_or(u64::from(of_request.max(1))) {
            0 => Self::Look,
            hits if is_negative => Self::GiveBack(hits),
            hits => Self::Add(hits),
        }
    }
}
