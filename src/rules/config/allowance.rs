//! The allowance of a `rate_limit` with its options, and what is invalid or surprising about it.

use crate::limits::{Algorithm, LEASED_LIMIT_MIN, LOG_ENTRIES_MAX, Limit, LimitOption, Terms};
use crate::rules::Allowance;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::spec::DescriptorSpec;
use crate::rules::config::tollgate::{OnLimitWord, ResolvedOptions, Sourced};
use crate::rules::config::yaml::Diagnostic;

const UNITS_HINT: &str = "write one of second, minute, hour, day, week, month, year";

/// The allowance of a rate_limit with its options; `None` after a problem.
pub(super) fn allowance(
    descriptor: &DescriptorSpec,
    options: &mut ResolvedOptions<'_>,
    terms: &mut Option<Terms>,
    calendars_max: usize,
    findings: &mut SourceFindings<'_>,
) -> Option<Allowance> {
    let spec = descriptor.rate_limit.as_ref()?;
    if spec.unlimited {
        if terms.is_some() {
            let text = "should not specify rate limit unit when unlimited";
            findings.reject(spec.unit.location, text, "remove unit, or unlimited");
            return None;
        }
        report_options_of_no_limit(descriptor, options, findings)?;
        return Some(Allowance::Unlimited { requests_per_unit: spec.requests_per_unit });
    }
    let Some(terms) = terms else {
        if !spec.unit_misspelled || !spec.unit.value.is_empty() {
            let text = format!("invalid rate limit unit '{}'", spec.unit.value);
            findings.reject(spec.unit.location, text, UNITS_HINT);
        }
        return None;
    };
    if options.is_faulty() {
        return None;
    }
    let mut problems = options.conflicts(descriptor);
    let faulty_windows = options.settle_windows(terms, calendars_max);
    problems
        .extend(faulty_windows.map(|(location, text)| (location.unwrap_or(spec.location), text)));
    let limit = Limit::new(terms);
    match &limit {
        Ok(limit) => problems.extend(options.settle_leases(terms, limit)),
        Err(error) => {
            let location = options.location_of(error).unwrap_or(spec.location);
            problems.push((location, error.to_string()));
        }
    }
    let is_valid = problems.is_empty();
    for (location, text) in problems {
        findings.problem(Diagnostic { location, text, hint: options.inherited() });
    }
    limit.ok().filter(|_| is_valid).map(Allowance::Limited)
}

/// Reports options that have no effect on an unlimited rule: all of them unless other limits apply.
/// `None` if there are some.
fn report_options_of_no_limit(
    descriptor: &DescriptorSpec,
    options: &ResolvedOptions<'_>,
    findings: &mut SourceFindings<'_>,
) -> Option<()> {
    let Some(block) = &descriptor.block else {
        return Some(());
    };
    let has_others = options.limits.is_some() || options.parents.is_some_and(|option| *option);
    if !has_others {
        let problem = Diagnostic::new(block.location, "metadata.tollgate of an unlimited rule");
        findings.problem(problem.hint("remove it: nothing is counted here"));
        return None;
    }
    let mut is_valid = true;
    for (key, location, _) in block.stated().filter(|(key, ..)| is_of_limit(key)) {
        let text = format!("`{key}` is of the rule's own limit, and the rule is unlimited");
        findings.reject(location, text, "remove it, or write it in an item of `limits`");
        is_valid = false;
    }
    is_valid.then_some(())
}

/// Whether an option is about a rule's own limit, and not about the rule.
fn is_of_limit(key: &str) -> bool {
    let mut options = LimitOption::ALL.into_iter();
    // A settlement is one of all levels.
    let is_shape =
        options.any(|option| option.name() == key && option != LimitOption::OverLimitHits);
    is_shape || ["algorithm", "consistency", "warn_at"].contains(&key)
}

/// Warns about valid limits that may surprise.
pub(super) fn warn_about_limit(
    spec: &DescriptorSpec,
    limit: Option<&Limit>,
    options: &ResolvedOptions<'_>,
    findings: &mut SourceFindings<'_>,
) {
    let Some(limit) = limit else {
        return;
    };
    if limit.algorithm == Algorithm::SlidingLog && limit.requests > LOG_ENTRIES_MAX.into() {
        let text = format!(
            "a sliding_log of {} stores {LOG_ENTRIES_MAX} calls (log_entries_max), and may admit fewer",
            limit.requests
        );
        let location = options.algorithm_location().unwrap_or(spec.location);
        let hint = "write algorithm: sliding_window with buckets: 10, whose size does not grow with the limit";
        findings.warning(Diagnostic::new(location, text).hint(hint));
    }
    let leased = options.leased();
    if let Some(location) = leased.and_then(Sourced::own_location)
        && limit.capacity < LEASED_LIMIT_MIN
    {
        let text = format!(
            "a limit of {} is never leased: a lease needs {LEASED_LIMIT_MIN} for each replica",
            limit.capacity
        );
        findings.warning(Diagnostic::new(location, text).hint("write consistency: exact"));
    }
    let queue = options.on_limit.filter(|word| **word == OnLimitWord::Queue);
    let share = options.enforce_percent;
    let without_effect = [
        ("on_limit: queue", queue.and_then(Sourced::own_location)),
        ("enforce_percent", share.and_then(Sourced::own_location)),
    ];
    for (option, location) in without_effect {
        if let Some(location) = location.filter(|_| spec.shadow_mode) {
            let text = format!("{option} has no effect in shadow_mode");
            findings.warning(Diagnostic::new(location, text));
        }
    }
}
