//! The rules in force, with what was counted of each; searched and sorted by the URL.

use std::cmp::Reverse;

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::base::named_enum::named_enum;
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::parts::{Parts, Usages};
use crate::operator::console::widgets::{bar, encoded, number, over_limit};
use crate::operator::observe::history::{Bar, Chart, History};
use crate::operator::observe::responses::Admitted;
use crate::rules::{Naming, Rule, RuleSet};

/// Rows of the list of rules; the rest is found by searching.
const ROWS_MAX: usize = 200;

/// The parameters of the URL.
#[derive(Debug, Clone)]
struct Filter {
    search: String,
    order: Order,
}

named_enum! {
    /// The column that rows are sorted by.
    pub enum Order {
        /// The path of the rule.
        Path = "path",
        /// All hits.
        Hits = "hits",
        /// Those that were over limit.
        OverLimit = "over_limit",
    }
}

struct Row<'r> {
    domain: &'r str,
    rule: &'r Rule,
    /// Of the last hour; `None` if they are counted under names that depend on requests.
    hits: Option<Bar>,
}

pub(crate) async fn content(parts: &Parts, pairs: &Pairs) -> Markup {
    let filter = Filter {
        search: pairs.text("q").into_owned(),
        order: pairs.text("sort").parse().unwrap_or(Order::Path),
    };
    let Some(rules) = parts.rules_in_force() else {
        return html! { h1 { "Rules" } p.empty { "No rules are loaded." } };
    };
    let usages = parts.usages().await;
    let history = parts.history.clone();
    let replica = parts.this_replica();
    // Rules may be many, and this thread answers liveness probes.
    let rendering = spawn_blocking(move || {
        let rows = rows(&rules, &history, &filter);
        view(&rules, rows, &usages, &filter, &replica)
    });
    rendering.await.unwrap_or_default()
}

/// The URL of a rule's view.
pub(crate) fn href_of(domain: &str, path: &str) -> String {
    format!("/console/rule?domain={}&rule={}", encoded(domain), encoded(path))
}

/// The chart of a rule whose counters have one name.
pub(crate) fn chart_of(history: &History, rule: &Rule) -> Option<Chart> {
    let is_fixed = rule.naming == Naming::Fixed;
    is_fixed.then(|| history.chart_of(&rule.path, rule.stats.hits()))
}

/// The limit without its algorithm, such as `100 per minute`.
pub(crate) fn amount(rule: &Rule) -> String {
    match rule.limit() {
        None => "unlimited".to_owned(),
        Some(limit) => {
            let text = limit.to_string();
            text.split(", ").next().unwrap_or_default().to_owned()
        }
    }
}

/// Why hits over the limit of a rule are admitted, if they are.
pub(crate) fn admitted_by(rule: &Rule) -> Admitted {
    match rule {
        _ if rule.shadow_mode => Admitted::Shadow,
        _ if rule.degrades() => Admitted::Degrade,
        _ if rule.quota_mode => Admitted::Quota,
        // SHADOW_MODE, or enforce_percent.
        _ => Admitted::Shadow,
    }
}

pub(crate) fn algorithm(rule: &Rule) -> &'static str {
    rule.limit().map_or("–", |limit| limit.algorithm.name())
}

fn view(
    rules: &RuleSet,
    mut rows: Vec<Row<'_>>,
    usages: &Usages,
    filter: &Filter,
    replica: &str,
) -> Markup {
    let found = rows.len();
    rows.truncate(ROWS_MAX);
    html! {
        div.heading {
            h1 { "Rules" }
            form.search role="search" action="/console/rules" data-live {
                input type="search" name="q" value=(filter.search) aria-label="Search rules"
                    placeholder="Path, file, limit or algorithm" autocomplete="off" spellcheck="false";
                input type="hidden" name="sort" value=(filter.order.name());
            }
            p.dim #found role="status" {
                (number(found as u64)) " of " (number(rules.rule_count() as u64)) " rules"
                @if found > ROWS_MAX { ", the first " (ROWS_MAX) " shown" }
            }
        }
        p.lead { "Hits: " (replica) ", last hour." }
        @if rows.is_empty() {
            p.empty { "No rule matches." }
        } @else {
            (table(&rows, usages, filter))
        }
        @if found > ROWS_MAX {
            p.empty { (found - ROWS_MAX) " more rules are left out: search for them." }
        }
    }
}

/// The rules that are searched for, in order.
fn rows<'r>(rules: &'r RuleSet, history: &History, filter: &Filter) -> Vec<Row<'r>> {
    let words: Vec<String> = filter.search.split_whitespace().map(str::to_lowercase).collect();
    let mut rows = Vec::new();
    for domain in rules.domains() {
        let matching = domain.rules().into_iter().filter(|rule| {
            words.is_empty() || {
                let text = searched(&domain.name, rule);
                words.iter().all(|word| text.contains(word))
            }
        });
        rows.extend(matching.map(|rule| Row {
            domain: &domain.name,
            rule,
            hits: (rule.naming == Naming::Fixed).then(|| history.last_hour(rule)),
        }));
    }
    let over = |row: &Row<'_>| row.hits.map_or(0, |counts| counts.over_limit);
    let hits = |row: &Row<'_>| row.hits.map_or(0, |counts| counts.all);
    match filter.order {
        Order::Path => rows.sort_by(|a, b| a.rule.path.cmp(&b.rule.path)),
        Order::Hits => rows.sort_by_key(|row| Reverse(hits(row))),
        Order::OverLimit => rows.sort_by_key(|row| Reverse(over(row))),
    }
    rows
}

/// The text that a search looks at, in lower case.
fn searched(domain: &str, rule: &Rule) -> String {
    let Rule { path, name, origin, .. } = rule;
    let amount = amount(rule);
    let algorithm = algorithm(rule);
    format!("{domain} {path} {name} {amount} {algorithm} {origin}").to_lowercase()
}

fn table(rows: &[Row<'_>], usages: &Usages, filter: &Filter) -> Markup {
    let header = |order: Order, title: &str| {
        let is_current = order == filter.order;
        let direction = match order {
            Order::Path => "ascending",
            Order::Hits | Order::OverLimit => "descending",
        };
        let search = encoded(&filter.search);
        let href = format!("/console/rules?q={search}&sort={}", order.name());
        let class = if order == Order::Path { "" } else { "number" };
        html! {
            th.(class) scope="col" aria-sort=[is_current.then_some(direction)] { a href=(href) { (title) } }
        }
    };
    html! {
        div.scroll tabindex="0" {
            table.rules {
                thead { tr {
                    (header(Order::Path, "Rule"))
                    th scope="col" { "Limit" }
                    th scope="col" { "Utilization" }
                    (header(Order::Hits, "Hits"))
                    (header(Order::OverLimit, "Over limit"))
                    th scope="col" { "Algorithm" }
                    th scope="col" { "Source" }
                } }
                tbody { @for row in rows { (line(row, usages)) } }
            }
        }
    }
}

fn line(row: &Row<'_>, usages: &Usages) -> Markup {
    let Row { domain, rule, hits } = row;
    html! {
        tr id={ "rule:" (domain) ":" (rule.path) } {
            th scope="row" {
                a href=(href_of(domain, &rule.path)) { (rule.path) }
                @if rule.shadow_mode { span.tag { "shadow" } }
                @if rule.quota_mode { span.tag { "quota" } }
            }
            td { (amount(rule)) }
            td {
                @match usages.get(&rule.path) {
                    Some(usage) => (bar(usage.used, usage.capacity)),
                    None if rule.limit().is_some() => span.dim { "per key" },
                    None => span.dim { "–" },
                }
            }
            @match hits {
                Some(counts) => {
                    td.number { (number(counts.all)) }
                    (over_limit(counts.over_limit, counts.admitted, admitted_by(rule).name()))
                },
                None => { td.number.dim { "per name" } td.number.dim { "per name" } },
            }
            td { (algorithm(rule)) }
            td.source { (rule.origin) }
        }
    }
}
