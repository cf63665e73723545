//! The limits that are decided in one step with a rule's own: its `limits`, and with `parents`
//! those of the rules above.
//!
//! A chain is known at the rule that it ends at. The counters of the levels above must be in the
//! same store for calls that end there, so the compiler marks them when all that is below them is
//! compiled.

use std::cell::Cell;

use crate::config::descriptor::Context;
use crate::config::error::SourceFindings;
use crate::config::spec::DescriptorSpec;
use crate::config::tollgate::{Layer, LimitItem, ResolvedOptions};
use crate::config::yaml::{Diagnostic, Location};
use crate::limit::{Algorithm, Limit, Terms, WarnAt};
use crate::rules::key::{KeyFormat, KeyTail};
use crate::rules::stats::counts::RuleStats;
use crate::rules::{Allowance, EnforcedShare, FurtherLimit, Provenance, Rule};

/// Checks of one descriptor. More would be a rule set that nobody understands.
// bound chain_max: rejected, the previous rules stay; ratelimit_service_config_load_error
const CHAIN_MAX: usize = 16;

/// The rule of a descriptor with others below it.
pub(crate) struct Above<'c> {
    up: Option<&'c Self>,
    rule: Option<&'c Rule>,
    /// The number of entries down to it.
    entries: usize,
    /// A rule below counts its limits.
    is_chained: Cell<bool>,
}

impl<'c> Above<'c> {
    pub(crate) fn new(up: Option<&'c Self>, rule: Option<&'c Rule>) -> Self {
        Self {
            up,
            rule: rule.filter(|rule| rule.all_limits().next().is_some()),
            entries: entries(up) + 1,
            is_chained: Cell::new(false),
        }
    }

    pub(crate) fn is_chained(&self) -> bool {
        self.is_chained.get()
    }

    /// Itself and those above that have limits.
    fn limited(&'c self) -> impl Iterator<Item = (&'c Self, &'c Rule)> {
        let levels = std::iter::successors(Some(self), |level| level.up);
        levels.filter_map(|level| Some((level, level.rule?)))
    }
}

/// The number of entries down to a level.
fn entries(above: Option<&Above<'_>>) -> usize {
    above.map_or(0, |above| above.entries)
}

/// Whether the rule itself says that its hits are taken ahead.
fn own_leases(rule: &Rule) -> bool {
    let mut options = rule.options.iter();
    rule.lease.is_some()
        && options
            .any(|option| option.key == "consistency" && option.provenance == Provenance::Rule)
}

/// Marks the limits of a rule whose descriptor is below `above`, which are decided with others: of
/// its own only, unless it `reaches` beyond. `one_slot` is for a cluster.
pub(crate) fn join(rule: &mut Rule, above: Option<&Above<'_>>, reaches: bool, one_slot: bool) {
    // What a block for many rules says about leases is for rules alone.
    if rule.lease.take().is_some() {
        let options = std::mem::take(&mut rule.options).into_iter();
        rule.options = options
            .filter(|option| !["consistency", "lease"].contains(&option.key))
            .collect();
    }
    if let Allowance::Limited(limit) = &mut rule.allowance {
        limit.chained = true;
        if one_slot {
            rule.key_tail = KeyTail::new(KeyFormat::Safe, limit, 1);
        }
    }
    if one_slot {
        let uppermost = above.and_then(|above| above.limited().last());
        let uppermost = uppermost.filter(|_| reaches);
        rule.tagged_entries = uppermost.map_or(entries(above) + 1, |(level, _)| level.entries);
    }
}

impl Context<'_> {
    /// Whether the limits of the rules above apply.
    pub(crate) fn parents(
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
        let elsewhere = elsewhere(&option.layer, resolved);
        let mut problem = |text: String, hint: &str| {
            findings.problem(Diagnostic::new(location, text).hint(format!("{hint}{elsewhere}")));
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
        let checks = own
            + levels()
                .map(|(_, rule)| rule.all_limits().count())
                .sum::<usize>();
        if checks > CHAIN_MAX {
            let text = format!(
                "{checks} limits of one descriptor, more than the {CHAIN_MAX} of chain_max"
            );
            problem(text, "remove `parents`, or limits above");
        }
        for (_, rule) in levels() {
            if rule.names_holders() {
                let text = format!(
                    "{} above counts holders, which only the last entry names",
                    rule.path
                );
                problem(text, "remove `parents`, or the concurrency above");
            }
            if rule.quota_mode != spec.quota_mode {
                let text = format!("{} above has another quota_mode", rule.path);
                problem(text, "set quota_mode on all levels, or on none");
            }
            if own_leases(rule) {
                let text = format!("{} above has consistency: leased", rule.path);
                problem(text, "write consistency: exact above, or remove `parents`");
            }
        }
        let mut level = self.above;
        while let Some(above) = level {
            above.is_chained.set(true);
            level = above.up;
        }
        true
    }

    /// The limits of `limits`.
    pub(crate) fn further_limits(
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
        let rule_name = spec
            .rate_limit
            .as_ref()
            .map_or("", |rate_limit| &*rate_limit.name);
        let mut limits: Vec<FurtherLimit> = Vec::new();
        for (index, item) in option.items().iter().enumerate() {
            let findings = &mut findings.at(format_args!(".limits[{index}]"));
            let location = own_location(&option.layer, item.location, spec);
            let at = |stated: Option<Location>| {
                let stated = stated.map(|stated| own_location(&option.layer, stated, spec));
                stated.unwrap_or(location)
            };
            let made = self.further_limit(item, &option.layer, resolved);
            let (limit, warn_at) = match made {
                Ok(made) => made,
                Err((stated, text)) => {
                    let hint = resolved.inherited();
                    findings.problem(Diagnostic {
                        location: at(stated),
                        text,
                        hint: hint.filter(|_| !option.layer.provenance.is_in_rules_file()),
                    });
                    continue;
                }
            };
            let name = item.name.clone().unwrap_or_else(|| {
                let base = if rule_name.is_empty() {
                    &*spec.key.value
                } else {
                    rule_name
                };
                format!("{base}-{}", item.unit).into()
            });
            let key_tail = KeyTail::new(KeyFormat::Safe, &limit, 1);
            let is_named = limits.iter().any(|other| other.name == name)
                || own.is_some() && *name == *rule_name;
            let own_tail = own.map(|limit| KeyTail::new(KeyFormat::Safe, limit, 1));
            let mut tails = limits.iter().map(|other| &other.key_tail).chain(&own_tail);
            let problem = if is_named {
                Some((
                    format!("two limits of the rule are named '{name}'"),
                    "write a `name` that no other limit has",
                ))
            } else if tails.any(|tail| *tail == key_tail) {
                Some((
                    "two limits of the rule have the same period".to_owned(),
                    "keep the lower one, or write another period",
                ))
            } else {
                None
            };
            if let Some((text, hint)) = problem {
                let hint = format!("{hint}{}", elsewhere(&option.layer, resolved));
                findings.problem(Diagnostic::new(location, text).hint(hint));
                continue;
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

    /// Warns about limits of a rule that others decided with them keep from being reached.
    pub(crate) fn warn_about_unreachable(
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
                findings.warning(
                    Diagnostic::new(location, text).hint("remove it, or lower its amount"),
                );
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

/// Where options in force are set, at the end of a hint, if a layer is in another file.
fn elsewhere(layer: &Layer<'_>, resolved: &ResolvedOptions<'_>) -> String {
    let inherited = resolved.inherited();
    let inherited = inherited.filter(|_| !layer.provenance.is_in_rules_file());
    inherited.map_or_else(String::new, |inherited| format!("; {inherited}"))
}

/// Whether hits that a limit admits are never so many that another one is over.
fn keeps_away(limit: &Limit, other: &Limit) -> bool {
    if limit.algorithm.counts_holders() || other.algorithm.counts_holders() {
        return false;
    }
    // Periods that end and begin within one of the other, and the one that began before.
    let periods = other.period.as_micros() / limit.period.as_micros() + 1;
    let most = u128::from(limit.requests) * u128::from(periods) + u128::from(limit.capacity);
    most < other.capacity.min(other.requests).into()
}
