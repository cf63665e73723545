//! The limits that are decided in one step with a rule's own: its `limits`, and with `parents`
//! those of the rules above.
//!
//! A chain is known at the rule that it ends at. The counters of the levels above must be in the
//! same store for calls that end there, so the compiler marks them when all that is below them is
//! compiled.

use std::cmp::Ordering;

use crate::config::context::{Above, Context};
use crate::config::error::SourceFindings;
use crate::config::spec::DescriptorSpec;
use crate::config::tollgate::{Layer, LimitItem, ResolvedOptions};
use crate::config::yaml::{Diagnostic, Location};
use crate::limit::{Algorithm, Limit, Terms, WarnAt};
use crate::rules::key::{KeyFormat, KeyTail};
use crate::rules::stats::counts::RuleStats;
use crate::rules::{Allowance, FurtherLimit, Provenance, Rule};

/// Checks of one descriptor. More would be a rule set that nobody understands.
// bound chain_max: rejected, the previous rules stay; ratelimit_service_config_load_error
const CHAIN_MAX: usize = 16;

/// Marks the limits of a rule below `above`, which are decided with others: with those of its own,
/// or as far as the uppermost if it `reaches` there. In `one_slot` they need a hash tag.
pub(crate) fn join(rule: &mut Rule, above: Option<&Above<'_>>, reaches: bool, one_slot: bool) {
    if let Allowance::Limited(limit) = &mut rule.allowance {
        limit.chained = true;
        if one_slot {
            rule.key_tail = KeyTail::new(KeyFormat::Safe, limit, 1);
        }
    }
    if one_slot {
        let uppermost = above.and_then(|above| above.limited().last());
        let entries = uppermost
            .filter(|_| reaches)
            .map(|(level, _)| level.entries);
        let own = above.map_or(0, |above| above.entries) + 1;
        rule.tagged_entries = entries.unwrap_or(own);
    }
}

impl Context<'_> {
    /// The limits that are decided with the rule's `own`: those of `limits`, and whether those of
    /// the rules above.
    pub(crate) fn chain(
        &self,
        spec: &DescriptorSpec<'_>,
        resolved: &mut ResolvedOptions<'_>,
        own: Option<&Limit>,
        stats: &RuleStats,
        findings: &mut SourceFindings<'_>,
    ) -> (Box<[FurtherLimit]>, bool) {
        let limits = self.further_limits(spec, resolved, own, stats, findings);
        let count = usize::from(own.is_some()) + limits.len();
        let parents = self.parents(spec, resolved, count, findings);
        if parents || !limits.is_empty() || resolved.warn_at.is_some() {
            resolved.settle_exact(findings);
        }
        (limits, parents)
    }

    /// Whether the limits of the rules above apply beside so many of its `own`.
    fn parents(
        &self,
        spec: &DescriptorSpec<'_>,
        resolved: &mut ResolvedOptions<'_>,
        own: usize,
        findings: &mut SourceFindings<'_>,
    ) -> bool {
        let Some(option) = resolved.parents.filter(|option| **option) else {
            return false;
        };
        let location = own_location(&option.layer, option.located.location, spec);
        let mut problem = |text: String, hint: &str| {
            findings.problem(Diagnostic::new(location, text).hint(hint));
        };
        let levels = || self.above.into_iter().flat_map(Above::limited);
        if levels().next().is_none() {
            // A block for many rules is meant for those that have such rules.
            if option.layer.provenance == Provenance::Rule {
                let text = "`parents` without a limit above".to_owned();
                problem(text, "remove it, or give a descriptor above a rate_limit");
            }
            resolved.parents = None;
            return false;
        }
        let checks = own + levels().map(|(_, rule)| rule.limit_count()).sum::<usize>();
        if checks > CHAIN_MAX {
            let text = format!(
                "{checks} limits of one descriptor, more than the {CHAIN_MAX} of chain_max"
            );
            problem(text, "remove `parents`, or limits above");
        }
        for (_, rule) in levels() {
            let path = &rule.path;
            if rule.names_holders() {
                let text = format!("{path} above counts holders, which only the last entry names");
                problem(text, "remove `parents`, or the concurrency above");
            }
            if rule.quota_mode != spec.quota_mode {
                let text = format!("{path} above has another quota_mode");
                problem(text, "set quota_mode on all levels, or on none");
            }
        }
        self.above.into_iter().for_each(Above::chain);
        true
    }

    /// The limits of `limits`, beside the rule's `own`.
    fn further_limits(
        &self,
        spec: &DescriptorSpec<'_>,
        resolved: &ResolvedOptions<'_>,
        own: Option<&Limit>,
        stats: &RuleStats,
        findings: &mut SourceFindings<'_>,
    ) -> Box<[FurtherLimit]> {
        let Some(option) = &resolved.limits else {
            return Box::default();
        };
        let place = |location| own_location(&option.layer, location, spec);
        let rule_name = spec.rate_limit.as_ref().map_or("", |limit| &*limit.name);
        let base = if rule_name.is_empty() {
            &*spec.key.value
        } else {
            rule_name
        };
        let tail = |limit: &Limit| KeyTail::new(KeyFormat::Safe, limit, 1);
        let mut tails: Vec<KeyTail> = own.map(tail).into_iter().collect();
        let mut limits: Vec<FurtherLimit> = Vec::new();
        for (index, item) in option.items().iter().enumerate() {
            let findings = &mut findings.at(format_args!(".limits[{index}]"));
            let (limit, warn_at) = match self.further_limit(item, &option.layer, resolved) {
                Ok(made) => made,
                Err((stated, text)) => {
                    let location = place(stated.unwrap_or(item.location));
                    findings.problem(Diagnostic::new(location, text));
                    continue;
                }
            };
            let mut problem = |text: String, hint: &str| {
                findings.problem(Diagnostic::new(place(item.location), text).hint(hint));
            };
            let default_name = || format!("{base}-{}", item.unit).into();
            let name: Box<str> = item.name.clone().unwrap_or_else(default_name);
            if *name == *rule_name || limits.iter().any(|other| other.name == name) {
                let text = format!("two limits of the rule are named '{name}'");
                problem(text, "write a `name` that no other limit has");
            }
            let key_tail = tail(&limit);
            if tails.contains(&key_tail) {
                let text = "two limits of the rule have the same period".to_owned();
                problem(text, "keep the lower one, or write another period");
            }
            tails.push(tail(&limit));
            limits.push(FurtherLimit {
                stats: stats.of_limit(&name),
                name,
                limit,
                key_tail,
                warn_at,
            });
        }
        let further = limits.iter().map(|further| &further.limit);
        for text in unreachable(&own.into_iter().chain(further).collect::<Vec<_>>()) {
            let problem = Diagnostic::new(place(option.located.location), text);
            findings.warning(problem.hint("remove it, or lower its amount"));
        }
        limits.into()
    }

    /// A limit of `limits`, which takes over nothing from the rule's own options, or why it is
    /// none, and where.
    fn further_limit(
        &self,
        item: &LimitItem,
        layer: &Layer<'_>,
        resolved: &ResolvedOptions<'_>,
    ) -> Result<(Limit, WarnAt), (Option<Location>, String)> {
        let own = Layer {
            block: &item.block,
            provenance: Provenance::Rule,
            file: layer.file,
        };
        let for_many = resolved
            .layers
            .iter()
            .filter(|layer| layer.provenance.is_for_many());
        let mut options =
            ResolvedOptions::new([own].into_iter().chain(for_many.copied()).collect());
        let rate = Terms::new(item.requests, item.unit, Algorithm::FixedWindow);
        let mut terms = Terms {
            windows: self.options.windows,
            chained: true,
            max_wait: None,
            ..options.terms(rate)
        };
        if let Some(problem) = options.settle_windows(&mut terms, self.options.calendars_max) {
            return Err(problem);
        }
        if terms.algorithm.counts_holders() {
            let text = "concurrency is only for the rule's own limit; write it beside rate_limit";
            return Err((options.algorithm_location(), text.to_owned()));
        }
        if let Some((stated, text)) = options.misplaced().into_iter().next() {
            return Err((stated, text));
        }
        let limit =
            Limit::new(&terms).map_err(|error| (options.location_of(&error), error.to_string()))?;
        let warn_at = options.warn_at.map(|option| (*option).clone());
        Ok((limit, warn_at.unwrap_or(WarnAt::NEVER)))
    }
}

/// The location of what a layer states; of the descriptor if that is in another file.
fn own_location(layer: &Layer<'_>, location: Location, spec: &DescriptorSpec<'_>) -> Location {
    if layer.provenance.is_in_rules_file() {
        location
    } else {
        spec.location
    }
}

/// What is said of limits of one rule that others keep from being reached.
fn unreachable(limits: &[&Limit]) -> Vec<String> {
    let is_beside = |limit: &Limit, other: &Limit| {
        let periods = limit.period.as_micros() / other.period.as_micros().max(1) + 1;
        let most = u128::from(other.requests) * u128::from(periods) + u128::from(other.capacity);
        match limit.period.cmp(&other.period) {
            Ordering::Greater => most < limit.requests.into(),
            Ordering::Less => other.requests <= limit.requests,
            Ordering::Equal => false,
        }
    };
    let periodic = limits
        .iter()
        .filter(|limit| !limit.algorithm.counts_holders());
    let pairs = periodic.clone().flat_map(|limit| {
        let others = periodic.clone().filter(|other| is_beside(limit, other));
        others.map(move |other| format!("{limit} cannot be reached beside {other}"))
    });
    pairs.collect()
}
