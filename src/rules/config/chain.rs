//! The limits that are decided in one step with a rule's own: its `limits`, and with `parents`
//! those of the rules above.
//!
//! A chain is known at the rule that it ends at. The counters of the levels above must be in the
//! same store for calls that end there, so the compiler marks them when all that is below them is
//! compiled.

use crate::limits::{Algorithm, Limit, OverLimitHits, Terms, WarnAt, Windows};
use crate::rules::config::context::{Above, Context};
use crate::rules::config::error::SourceFindings;
use crate::rules::config::spec::DescriptorSpec;
use crate::rules::config::tollgate::{Layer, LimitItem, ResolvedOptions, Sourced};
use crate::rules::config::yaml::{Diagnostic, Location};
use crate::rules::key::{KeyFormat, KeyTail};
use crate::rules::stats::counts::RuleStats;
use crate::rules::{Allowance, EnforcedShare, FurtherLimit, Provenance, Rule};

/// Checks of one descriptor: one command to Redis reads and writes all of their counters.
const CHAIN_MAX: usize = 16;

/// Marks the limits of a rule below `above`, which are decided with others: with those of its own,
/// or as far as the uppermost if it `reaches` there. In `one_slot` they need a hash tag.
pub(crate) fn join(rule: &mut Rule, above: Option<&Above<'_>>, reaches: bool, one_slot: bool) {
    // What a block for many rules says about leases is for rules alone.
    if rule.lease.take().is_some() {
        let options = std::mem::take(&mut rule.options).into_iter();
        let others = options.filter(|option| !["consistency", "lease"].contains(&option.key));
        rule.options = others.collect();
    }
    if let Allowance::Limited(limit) = &mut rule.allowance {
        limit.chained = true;
        // One counter: hits over it are dropped alone as in a chain.
        if rule.over_limit_hits != Some(OverLimitHits::Count) {
            limit.over_limit_hits = OverLimitHits::Drop;
        }
        if one_slot {
            rule.key_tail = KeyTail::new(KeyFormat::Safe, limit, 1);
        }
    }
    if one_slot {
        let uppermost = above.and_then(|above| above.limited().last());
        let entries = uppermost.filter(|_| reaches).map(|(level, _)| level.entries);
        let own = above.map_or(0, |above| above.entries) + 1;
        rule.tagged_entries = entries.unwrap_or(own);
    }
}

/// Whether the rule itself says that its hits are taken ahead.
fn own_leases(rule: &Rule) -> bool {
    let mut options = rule.options.iter();
    rule.lease.is_some()
        && options
            .any(|option| option.key == "consistency" && option.provenance == Provenance::Rule)
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

    /// Whether the limits of the rules above apply, beside this number of its `own`.
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
        let location = option.location().unwrap_or(spec.location);
        let also = also(elsewhere(&option.layer, resolved).as_ref());
        let mut problem = |text: String, hint: &str| {
            findings.reject(location, text, format!("{hint}{also}"));
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
        let checks = own + levels().flat_map(|(_, rule)| rule.all_limits()).count();
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
            if own_leases(rule) {
                let text = format!("{path} above has consistency: leased");
                problem(text, "write consistency: exact above, or remove `parents`");
            }
        }
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
        let is_in_file = option.layer.provenance.is_in_rules_file();
        let place = |location| if is_in_file { location } else { spec.location };
        let elsewhere = elsewhere(&option.layer, resolved);
        let also = also(elsewhere.as_ref());
        let rule_name = spec.rate_limit.as_ref().map_or("", |limit| &*limit.name);
        let base = if rule_name.is_empty() { &*spec.key.value } else { rule_name };
        let tail = |limit: &Limit| KeyTail::new(KeyFormat::Safe, limit, 1);
        let own_tail = own.map(tail);
        let mut limits: Vec<FurtherLimit> = Vec::new();
        for (index, item) in option.0.iter().enumerate() {
            let findings = &mut findings.at(format_args!(".limits[{index}]"));
            let (limit, warn_at) = match self.further_limit(item, &option.layer, resolved) {
                Ok(made) => made,
                Err((stated, text)) => {
                    findings.problem(Diagnostic {
                        location: place(stated.unwrap_or(item.location)),
                        text,
                        hint: elsewhere.clone(),
                    });
                    continue;
                }
            };
            let mut problem = |text: String, hint: &str| {
                findings.reject(place(item.location), text, format!("{hint}{also}"));
            };
            let default_name = || format!("{base}-{}", item.unit).into();
            let name: Box<str> = item.name.clone().unwrap_or_else(default_name);
            let is_own = own.is_some() && *name == *rule_name;
            if is_own || limits.iter().any(|other| other.name == name) {
                let text = format!("two limits of the rule are named '{name}'");
                problem(text, "write a `name` that no other limit has");
            }
            let key_tail = tail(&limit);
            let mut tails = limits.iter().map(|other| &other.key_tail).chain(&own_tail);
            if tails.any(|other| *other == key_tail) {
                let text = "two limits of the rule have the same period".to_owned();
                problem(text, "keep the lower one, or write another period");
            }
            limits.push(FurtherLimit {
                stats: stats.of_limit(&name),
                name,
                limit,
                key_tail,
                warn_at,
            });
        }
        limits.into()
    }

    /// Warns about limits of a rule that others decided with them keep from being reached, or that
    /// were hardly meant as two.
    pub(crate) fn warn_about_overlaps(
        &self,
        rule: &Rule,
        location: Location,
        findings: &mut SourceFindings<'_>,
    ) {
        let above = self.above.filter(|_| rule.parents);
        let above = above.into_iter().flat_map(Above::limited);
        let enforced = above.map(|(_, rule)| rule).filter(|rule| {
            let is_partial = rule.enforced_share != EnforcedShare::ALL;
            !rule.shadow_mode && !is_partial && !rule.degrades()
        });
        let others: Vec<&Limit> = enforced.chain([rule]).flat_map(Rule::all_limits).collect();
        for limit in rule.all_limits() {
            let other = others.iter().find(|other| keeps_away(other, limit));
            if let Some(other) = other {
                let text = format!("{limit} cannot be reached beside {other}");
                let hint = "remove it, or lower its amount";
                findings.warning(Diagnostic::new(location, text).hint(hint));
            }
            let twin = rule.all_limits().find(|other| is_calendar_of(other, limit));
            if let Some(twin) = twin {
                let text = format!("{limit} and {twin} differ only in where their periods begin");
                let hint = "keep one of them, or write calendar for both";
                findings.warning(Diagnostic::new(location, text).hint(hint));
            }
        }
    }

    /// A limit of `limits`, which takes over nothing from the rule's own options, or why it is
    /// none, and where.
    fn further_limit(
        &self,
        item: &LimitItem,
        layer: &Layer<'_>,
        resolved: &ResolvedOptions<'_>,
    ) -> Result<(Limit, WarnAt), (Option<Location>, String)> {
        let own = Layer::of(Provenance::Rule, layer.file)(&item.block);
        let for_many = resolved.layers.iter().filter(|layer| layer.provenance.is_for_many());
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
        let warn_at = options.warn_at.map_or(WarnAt::NEVER, Sourced::value);
        Ok((limit, warn_at))
    }
}

/// Where options in force are set, if a layer is in another file.
fn elsewhere(layer: &Layer<'_>, resolved: &ResolvedOptions<'_>) -> Option<String> {
    let inherited = resolved.inherited();
    inherited.filter(|_| !layer.provenance.is_in_rules_file())
}

/// The same as the end of another hint.
fn also(elsewhere: Option<&String>) -> String {
    elsewhere.map(|options| format!("; {options}")).unwrap_or_default()
}

/// Whether the windows of a limit are those of a calendar, and of the same unit as those of another
/// one, which are not.
fn is_calendar_of(limit: &Limit, other: &Limit) -> bool {
    let is_aligned = |limit: &Limit| limit.windows == Windows::Aligned;
    limit.algorithm == Algorithm::FixedWindow
        && other.algorithm == Algorithm::FixedWindow
        && !is_aligned(limit)
        && is_aligned(other)
        && limit.unit().is_some_and(|unit| other.unit() == Some(unit))
}

/// Whether a limit keeps another one from being reached: all hits that it admits are within the
/// other.
fn keeps_away(limit: &Limit, other: &Limit) -> bool {
    if limit.algorithm.counts_holders() || other.algorithm.counts_holders() {
        return false;
    }
    // Periods that end and begin within one of the other, and the one that began before.
    let periods = other.period.as_micros() / limit.period.as_micros() + 1;
    let most = u128::from(limit.requests) * u128::from(periods) + u128::from(limit.capacity);
    most < other.capacity.min(other.requests).into()
}
