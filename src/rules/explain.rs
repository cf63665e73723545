//! Explains which limit a descriptor gets and why: the lookup that serves, with an observer.

use std::fmt::Write as _;
use std::iter;

use crate::base::named_enum::named_enum;
use crate::base::text::{Escaped, Text, did_you_mean};
use crate::base::time::Time;
use crate::limits::check::{Check, Hits};
use crate::limits::{Algorithm, LeaseTerms, Limit, Windows};
use crate::rules::enforced_share::EnforcedShare;
use crate::rules::key::KeyFormat;
use crate::rules::lookup::{End, Hops, counted_by, lookup};
use crate::rules::plan::{Modes, Plan, plan};
use crate::rules::query::{Descriptor, Query};
use crate::rules::rule::{OnLimit, Rule};
use crate::rules::step::{Link, Step};
use crate::rules::tree::{Domain, Found, RuleSet};
use crate::rules::unmatched::{Alternatives, alternatives};

/// Why a request gets its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What people read.
    pub text: String,
    /// What programs read.
    pub outcome: Outcome,
}

named_enum! {
    /// The result of an explanation.
    pub enum Outcome {
        /// Every descriptor matches a rule, or has a limit of its own.
        Matched = "matched",
        /// At least one descriptor does not.
        NoRule = "no_rule",
        /// No rules for this domain.
        UnknownDomain = "unknown_domain",
        /// The service would answer INVALID_ARGUMENT.
        Invalid = "invalid",
    }
}

/// Explains the match of every descriptor, its rule, its counter's key and its limit, line by line.
pub fn explain(rules: &RuleSet, query: &Query<'_>, modes: Modes) -> Explanation {
    let explanation = |outcome, text| Explanation { text, outcome };
    let Some(domain) = rules.domain(query.domain) else {
        let known: Vec<&str> = rules.domains().iter().map(|known| &*known.name).collect();
        let text = format!(
            "domain {}: unknown, so nothing is limited{}\nknown domains: {}\n",
            Escaped(Text(query.domain)),
            hint(query.domain, &known),
            known.join(", ")
        );
        return explanation(Outcome::UnknownDomain, text);
    };
    // No caller waits for an answer, so the time does not matter.
    let plan = match plan(rules, query, modes, Time::default()) {
        Ok(plan) => plan,
        Err(error) => {
            let text = format!("rejected with INVALID_ARGUMENT: {}\n", Escaped(error));
            return explanation(Outcome::Invalid, text);
        }
    };
    let mut text = format!("domain {}\n", domain.name);
    if plan.all_or_nothing && plan.request.checks.len() > 1 {
        text +=
            "all or nothing: a request that one limit rejects consumes nothing from the others\n";
    }
    for (descriptor, step) in query.descriptors.iter().zip(&plan.steps) {
        let entries = descriptor.entries.iter();
        let entries: Vec<String> = entries.map(|entry| Escaped(entry).to_string()).collect();
        let mut notes = matched(domain, descriptor);
        notes.extend(override_source(step, domain));
        let _ = writeln!(text, "descriptor {}", entries.join(","));
        for note in notes {
            let _ = writeln!(text, "  {note}");
        }
        for line in outcome(step, &plan) {
            let _ = writeln!(text, "  {line}");
        }
    }
    let is_unmatched = plan.steps.iter().any(|step| matches!(step, Step::NoRule));
    let outcome = if is_unmatched { Outcome::NoRule } else { Outcome::Matched };
    explanation(outcome, text)
}

/// The entries that name the counter of a descriptor, such as `user=42,path=/api/*`: with the
/// pattern instead of values that share a counter, and without the name of a holder.
pub(crate) fn counter_entries(
    rules: &RuleSet,
    domain: &[u8],
    descriptor: &Descriptor<'_>,
) -> String {
    let (hops, end) = match rules.domain(domain) {
        Some(domain) if descriptor.limit.is_none() => lookup(domain, &descriptor.entries),
        _ => (Hops::new(), End::NoEntries),
    };
    let entries = counted_by(&descriptor.entries, &hops, end.rule());
    let entries: Vec<String> = entries.map(|entry| entry.to_string()).collect();
    entries.join(",")
}

/// The nodes that the entries of a descriptor match, and how its lookup ends.
fn matched(domain: &Domain, descriptor: &Descriptor<'_>) -> Vec<String> {
    let (hops, end) = lookup(domain, &descriptor.entries);
    let mut notes = Vec::new();
    for (entry, hop) in descriptor.entries.iter().zip(&hops) {
        let how = match hop.found {
            Found::Exact => "its key and value",
            Found::Pattern => "a pattern",
            Found::Default => "its key, for any value",
        };
        notes.push(format!("{} -> {} ({how})", Escaped(entry), hop.node.label));
        notes.extend(hop.shared_value(*entry).map(|pattern| {
            let pattern = Escaped(Text(pattern));
            format!("    share_threshold: all values of {pattern} share one counter")
        }));
    }
    notes.push(match end {
        End::Rule(rule) => format!("rule {} at {}", rule.path, rule.origin),
        End::NoEntries => "no entries: nothing can match".to_owned(),
        End::NoChild => {
            let entry = descriptor.entries[hops.len()];
            let Alternatives { has_key, name, known } = alternatives(domain, &hops, entry);
            let missing =
                if has_key { "no such value, no pattern, no default" } else { "no such key" };
            format!("{} -> nothing: {missing}{}", Escaped(entry), hint(name, &known))
        }
        End::TooDeep => {
            "the rules end here, and the descriptor goes on: too deep to match".to_owned()
        }
        End::NoLimit => "no rate_limit here: not limited".to_owned(),
    });
    notes
}

/// A name of the rules that is similar, as the end of a sentence.
fn hint(name: &[u8], known: &[&str]) -> String {
    let meant = did_you_mean(&Text(name).shown(), known.iter().copied());
    meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"))
}

fn outcome(step: &Step<'_>, plan: &Plan<'_>) -> Vec<String> {
    let not_counted = match step {
        Step::NoRule => "=> not limited".to_owned(),
        Step::Unlimited(_) => "=> unlimited: passes, and is not counted".to_owned(),
        Step::Replaced(rule) => {
            let name = &rule.name;
            format!("=> not counted: another rule of the request replaces `{name}`")
        }
        Step::Counted(link) => return vec![limit_note(link, plan)],
        Step::Chain { rule, links } => {
            let together = if rule.settles() {
                "charged to all of these limits, whatever they answer"
            } else {
                "decided by all of these limits in one step: over limit in one, consumed in none"
            };
            let limits = links.iter().map(|link| limit_note(link, plan));
            return iter::once(together.to_owned()).chain(limits).collect();
        }
    };
    vec![not_counted]
}

fn limit_note(link: &Link<'_>, plan: &Plan<'_>) -> String {
    let check = &plan.request.checks[link.check];
    let name = match link.further {
        Some(further) => format!(" `{}`", further.name),
        None => String::new(),
    };
    let mut text = format!(
        "=> limit{name} {}\n     key   {} ({})",
        check.limit,
        Escaped(&check.key),
        key_note(link.key_format, &check.limit)
    );
    if let Some(holder) = &check.holder {
        let _ = write!(text, "\n     holder {}", Escaped(Text(holder)));
    }
    text += &hits_note(check.hits);
    if let Some(rule) = link.rule {
        text += &over_the_limit(rule, link);
        for choice in &rule.options {
            let _ = write!(text, "\n     {choice}");
            if choice.key == "consistency" {
                text += &leases_note(check);
            }
        }
        if rule.quota_mode && !link.is_override {
            text += "\n     quota_mode: rejects when every quota of the request is used up";
        }
    }
    text
}

/// The bounds of the leases of a counter, if it can have some.
fn leases_note(check: &Check) -> String {
    let lease = check.lease.as_ref();
    let terms = lease.and_then(|lease| LeaseTerms::new(&check.limit, lease.lifetime));
    let held = check.limit.held_max();
    let all = check.limit.capacity;
    terms.map_or_else(String::new, |terms| {
        let lifetime = terms.lifetime;
        format!(": at most {held} of {all} hits held, given back after {lifetime}")
    })
}

/// The origin of a limit in a request.
fn override_source(step: &Step<'_>, domain: &Domain) -> Option<String> {
    let link = step.links().iter().find(|link| link.is_override)?;
    Some(match (link.rule, domain.override_terms.algorithm) {
        (Some(rule), _) => format!("number and unit are stated by the request, everything else by rule {}", rule.path),
        (None, Algorithm::FixedWindow) => {
            "the limit is stated by the request, and no tollgate block applies: a fixed window, as in envoyproxy/ratelimit".to_owned()
        }
        (None, algorithm) => format!("the limit is stated by the request, and counted by DEFAULT_ALGORITHM: {algorithm}"),
    })
}

/// The effect of the request on the counter, unless it is one hit.
fn hits_note(hits: Hits) -> String {
    match hits {
        Hits::Add(1) => String::new(),
        Hits::Add(hits) => format!("\n     hits  {hits}"),
        Hits::Peek => "\n     hits  0: reads the counter, and counts nothing".to_owned(),
        Hits::Refund(hits) => format!("\n     hits  gives back {hits}"),
    }
}

/// The treatment of a request over the limit, unless it is the default.
fn over_the_limit(rule: &Rule, link: &Link<'_>) -> String {
    let is_shadow_rule = rule.shadow_mode && !link.is_override;
    if is_shadow_rule {
        return "\n     shadow_mode: counted, never rejected".to_owned();
    }
    if link.in_shadow() {
        return "\n     enforce_percent leaves this key out: counted, never rejected".to_owned();
    }
    let text = on_limit(&rule.on_limit);
    if rule.enforced_share == EnforcedShare::ALL {
        text
    } else {
        format!("\n     enforce_percent includes this key: over limit is enforced{text}")
    }
}

fn on_limit(on_limit: &OnLimit) -> String {
    match on_limit {
        OnLimit::Reject { body: None } => String::new(),
        OnLimit::Reject { body: Some(body) } => {
            format!("\n     on_limit: reject: the response body is {body:?}")
        }
        OnLimit::Queue => {
            "\n     on_limit: queue: waits for its slot, rejected if that takes longer".to_owned()
        }
        OnLimit::Degrade { request_headers } => {
            let headers: Vec<String> =
                request_headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let sent = if headers.is_empty() {
                "dynamic metadata alone".to_owned()
            } else {
                headers.join(", ")
            };
            format!("\n     on_limit: degrade: passes, never rejected; the upstream gets {sent}")
        }
    }
}

/// The format of the key, as needed to find it in Redis.
fn key_note(format: KeyFormat, limit: &Limit) -> String {
    let start = match limit.windows {
        _ if !limit.algorithm.has_windows() => "",
        Windows::Calendar(_) => "; on Redis the window's first local date follows",
        Windows::Aligned | Windows::UtcMonths(_) => {
            "; on Redis the window's start in seconds follows"
        }
    };
    format!("{} form{start}", format.name())
}
