//! Budgets: limits of a day or more, and how much of them the keys with the most hits have used.

use maud::{Markup, html};

use crate::base::time::{Span, Time};
use crate::limits::Unit;
use crate::operator::admin::api::viewer::Viewer;
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::dialogs::hidden_values;
use crate::operator::console::parts::Parts;
use crate::operator::console::rules::href_of;
use crate::operator::console::top_keys::{key_href, name_of};
use crate::operator::console::widgets::{bar, clamped, moment, number, table};
use crate::operator::observe::redact::Values;
use crate::operator::observe::top_keys::windows::{By, Window};
use crate::report::top::KeyHits;
use crate::report::usage::{LimitUsage, UsagePeriod};
use crate::rules::{Rule, RuleSet};

/// Rules of the page.
const RULES_MAX: usize = 20;
/// Keys of a rule.
const KEYS_MAX: usize = 10;

pub(crate) async fn content(parts: &Parts, viewer: &Viewer) -> Markup {
    let rules = parts.rules_in_force();
    let budgets = match &rules {
        Some(rules) => budgets(rules),
        None => Vec::new(),
    };
    let others = budgets.len().saturating_sub(RULES_MAX);
    let mut shown = Vec::new();
    for (domain, rule) in budgets.into_iter().take(RULES_MAX) {
        shown.push(section(parts, domain, rule, viewer).await);
    }
    html! {
        h1 { "Budgets" }
        @if shown.is_empty() {
            p.empty { "No rule has a limit of a day or more: " code { "unit: day" } ", " code { "week" } ", " code { "month" } " or " code { "year" } "." }
        } @else {
            p { "Of each rule the " (KEYS_MAX) " keys with the most hits in the last hour, " (parts.this_replica()) "." }
            (hidden_values(viewer))
        }
        @for section in &shown { (section) }
        @if others > 0 { p.dim { (others) " more rules are left out." } }
    }
}

/// Rules with such limits, each with its domain.
fn budgets(rules: &RuleSet) -> Vec<(&str, &Rule)> {
    let by_domain = rules.domains().into_iter().map(|domain| (&*domain.name, domain.rules()));
    by_domain
        .flat_map(|(domain, rules)| rules.into_iter().map(move |rule| (domain, rule)))
        .filter(|(_, rule)| rule.has_long_period())
        .collect()
}

async fn section(parts: &Parts, domain: &str, rule: &Rule, viewer: &Viewer) -> Markup {
    let top = &parts.api.top;
    let keys = top.of_rule(domain, &rule.path, Window::Hour, By::Hits, viewer.values).await;
    let mut rows = Vec::new();
    // Without its values it is not known which key it is.
    let known = keys.iter().flatten();
    let known = known.filter(|_| viewer.values == Values::Clear);
    for key in known.take(KEYS_MAX) {
        rows.extend(read(parts, domain, rule, key).await);
    }
    rows.sort_by_key(|(_, usage)| std::cmp::Reverse(usage.used_percent));
    html! {
        section {
            h2 { a href=(href_of(domain, &rule.path)) { (rule.path) } }
            @if let Err(rejected) = &keys { p.empty role="alert" { (rejected.reason()) } }
            @else if viewer.values == Values::Dropped { p.empty { "Its keys are shown with a token." } }
            @else if rows.is_empty() { p.empty { "No hits in the last hour." } }
            @else {
                (usage_table("Key", &html! { @for (key, usage) in &rows { (row(key, usage, parts.clock.now())) } }))
            }
        }
    }
}

/// The limits of the rule for a key, with a link to its page.
async fn read(
    parts: &Parts,
    domain: &str,
    rule: &Rule,
    key: &KeyHits,
) -> Vec<(Markup, LimitUsage)> {
    let href = key_href(domain, &key.key);
    let (_, query) = href.split_once('?').unwrap_or_default();
    let usage = parts.api.counters.usage(&Pairs::new(query)).await;
    let limits = usage.map(|usage| usage.limits).unwrap_or_default();
    let is_long = |period: &UsagePeriod| {
        let secs = Unit::Day.span().ceil_secs();
        period.end.is_some() || period.seconds >= Some(secs)
    };
    let own = limits.into_iter().filter(|limit| limit.rule == *rule.path && is_long(&limit.period));
    own.map(|limit| {
        let link = html! { a href=(href) { (clamped(&name_of(&key.key, &[]))) } };
        (link, limit)
    })
    .collect()
}

/// All limits that decide a key, if they are several.
pub(crate) async fn of_key(parts: &Parts, pairs: &Pairs) -> Option<Markup> {
    let usage = parts.api.counters.usage(pairs).await.ok()?;
    let now = parts.clock.now();
    (usage.limits.len() > 1).then(|| {
        html! {
            section aria-labelledby="limits" {
                h2 #limits { "All limits" }
                p.dim { "Hits pass if all of them admit them." }
                (usage_table("Rule", &html! {
                    @for limit in &usage.limits { (row(&html! { (limit.rule) }, limit, now)) }
                }))
            }
        }
    })
}

fn usage_table(first: &str, rows: &Markup) -> Markup {
    let texts = [first, "Limit", "Used", "Until", "Used up at"];
    table(&texts, &["%", "Remaining"], rows)
}

/// When nothing is used any more.
fn until(usage: &LimitUsage, now: Time) -> String {
    let end = usage.period.end.as_deref().map(moment);
    let reset = now.plus(Span::from_secs(usage.resets_in_seconds));
    end.unwrap_or_else(|| match usage.used {
        0 => "–".to_owned(),
        _ => moment(&reset.to_rfc3339_secs()),
    })
}

fn row(first: &Markup, usage: &LimitUsage, now: Time) -> Markup {
    html! {
        tr {
            th scope="row" { (first) }
            td { (usage.name) }
            td { (bar(usage.used, usage.limit)) }
            td { (until(usage, now)) }
            td { (usage.used_up().map_or("–".to_owned(), moment)) }
            td.number.over[usage.over_limit] { (usage.used_percent.min(100)) }
            td.number { (number(usage.remaining)) }
        }
    }
}
