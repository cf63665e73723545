//! A rule: its limit and options, its last hour, its keys, and why requests get it.

use maud::{Markup, html};

use crate::limiter::Modes;
use crate::limits::check::LeaseEvent;
use crate::operator::admin::api::viewer::Viewer;
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::parts::Parts;
use crate::operator::console::rules::{admitted_by, algorithm, amount, chart_of};
use crate::operator::console::top_keys;
use crate::operator::console::widgets::{MINUTE, TimeAxis, admitted_tag, bar, chart, number};
use crate::rules::explain::explain;
use crate::rules::tree::Node;
use crate::rules::{Descriptor, Entry, OnLimit, OnStoreError, Query, Rule, RuleSet};

/// The title and the content; `None` without such a rule.
pub(crate) async fn content(
    parts: &Parts,
    pairs: &Pairs,
    viewer: &Viewer,
) -> Option<(String, Markup)> {
    let [domain, path] = ["domain", "rule"].map(|name| pairs.text(name));
    let rules = parts.rules_in_force()?;
    let usages = parts.usages().await;
    let nodes = find(&rules, &domain, &path)?;
    let rule = nodes.last()?.rule.as_deref()?;
    let [hits, over, admitted] = rule.stats.hits();
    let by = admitted_by(rule).name();
    let now = parts.clock.now();
    let axis = TimeAxis { last: now, bar: MINUTE };
    let since = parts.since_start(&parts.metrics.snapshot());
    let this_replica = parts.this_replica();
    let open: Vec<bool> = nodes.iter().map(|node| !is_fixed(node)).collect();
    let top = top_keys::section(parts, pairs, &domain, &path, &open, viewer).await;
    let content = html! {
        p.crumbs { a href="/console/rules" { "Rules" } " / " (domain) }
        h1 { (path) }
        dl.tiles.facts {
            div.tile { dt { "Limit" } dd { (amount(rule)) } }
            div.tile { dt { "Algorithm" } dd { (algorithm(rule)) } }
            @if let Some(usage) = usages.get(&rule.path) {
                div.tile { dt { "Utilization" } dd { (bar(usage.used, usage.capacity)) } }
            }
            div.tile { dt { "Hits" } dd { (number(hits)) } dd.note { (this_replica) ", " (since) } }
            div.tile { dt { "Over limit" } dd { (number(over)) @if admitted > 0 { (admitted_tag(admitted, by)) } } dd.note { (this_replica) ", " (since) } }
            @if let Some(leased) = &rule.lease {
                div.tile { dt { "Leased" } dd { (number(leased.hits.held())) } dd.note { "unused, of " (number(leased.hits.get(LeaseEvent::Taken))) " taken by " (this_replica) ", " (since) } }
            }
            div.tile { dt { "Source" } dd { code { (rule.origin) } } }
        }
        section aria-labelledby="hour" {
            h2 #hour { "Last hour" span.dim { " · " (this_replica) } }
            @match chart_of(&parts.history, rule) {
                Some(hour) => (chart(&hour, axis, "hits")),
                None => p.empty { "Hits are counted under names that depend on requests: see " a href="/metrics" { "/metrics" } "." },
            }
        }
        (top)
        div.columns {
            (key_form(&domain, &nodes))
            (options(rule))
        }
        section aria-labelledby="explain" {
            h2 #explain { "Explain" }
            pre { (explained(&rules, parts.modes, &domain, &nodes)) }
        }
    };
    Some((path.into_owned(), content))
}

fn find<'r>(rules: &'r RuleSet, domain: &str, path: &str) -> Option<Vec<&'r Node>> {
    let mut found = None;
    rules.domain(domain.as_bytes())?.visit(&mut |nodes| {
        let rule = nodes.last().and_then(|node| node.rule.as_ref());
        if found.is_none() && rule.is_some_and(|rule| &*rule.path == path) {
            found = Some(nodes.to_vec());
        }
    });
    found
}

/// Asks for the values that the rule does not name, and opens the view of that key.
fn key_form(domain: &str, nodes: &[&Node]) -> Markup {
    html! {
        section aria-labelledby="open" {
            h2 #open { "A key of this rule" }
            form.key action="/console/key" {
                input type="hidden" name="domain" value=(domain);
                @for node in nodes {
                    @if is_fixed(node) {
                        input type="hidden" name="k" value=(node.key);
                        input type="hidden" name="v" value=(node.value);
                    } @else {
                        input type="hidden" name="k" value=(node.key);
                        label {
                            span { (node.key) }
                            input type="text" name="v" value=(node.value) required autocomplete="off" spellcheck="false";
                        }
                    }
                }
                button type="submit" { "Show counter" }
            }
        }
    }
}

fn options(rule: &Rule) -> Markup {
    let on_limit = match &rule.on_limit {
        OnLimit::Reject { .. } => "reject",
        OnLimit::Queue => "queue",
        OnLimit::Degrade { .. } => "degrade",
    };
    let on_store_error = rule.on_store_error.map(OnStoreError::name);
    let flags =
        [(rule.shadow_mode, "shadow mode: nothing is rejected"), (rule.quota_mode, "quota mode")];
    html! {
        section aria-labelledby="options" {
            h2 #options { "Options" }
            dl.rows {
                @if !rule.name.is_empty() { div { dt { "Name" } dd { (rule.name) } } }
                @if let Some(limit) = rule.limit() { div { dt { "In full" } dd { (limit) } } }
                div { dt { "Over limit" } dd { (on_limit) } }
                div { dt { "On a store error" } dd { (on_store_error.unwrap_or("default of the process")) } }
                @for (_, text) in flags.iter().filter(|(is_set, _)| *is_set) {
                    div { dt { "Mode" } dd { (text) } }
                }
                @for option in &rule.options {
                    div { dt { (option.key) } dd { (option.value) span.dim { " by " (option.provenance.name()) ", " (option.origin) } } }
                }
            }
        }
    }
}

/// The explanation of a request that the rule limits.
fn explained(rules: &RuleSet, modes: Modes, domain: &str, nodes: &[&Node]) -> String {
    let values: Vec<String> = nodes.iter().map(|node| example_of(node)).collect();
    let entries = nodes.iter().zip(&values);
    let entries = entries.map(|(node, value)| Entry::new(&*node.key, value.as_str()));
    explain(rules, &Query::of(domain, Descriptor::new(entries)), modes).text
}

fn is_fixed(node: &Node) -> bool {
    !node.value.is_empty() && !node.value.contains('*')
}

fn example_of(node: &Node) -> String {
    if node.value.is_empty() { "any".to_owned() } else { node.value.replace('*', "any") }
}
