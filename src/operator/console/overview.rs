//! The first view: rates, health, and which rules limit most.

use std::cmp::Reverse;

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::operator::console::parts::Parts;
use crate::operator::console::rules::{admitted_by, href_of};
use crate::operator::console::runbook;
use crate::operator::console::widgets::{
    ADMITTED, MINUTE, SECOND, TimeAxis, chart, clamped, duration, number, over_limit, percent,
    seconds, table, tile,
};
use crate::operator::observe::history::{Bar, Recent};
use crate::operator::observe::responses::{Admitted, CallCounts};
use crate::operator::observe::unmatched::UnmatchedKeys;
use crate::store::{Backend, NodeStatus};
use crate::telemetry::metric::Snapshot;

/// Rules in the list of those that limit most.
const RULES_MAX: usize = 10;
/// Combinations of a domain and keys without a rule; those with the most descriptors.
const UNMATCHED_MAX: usize = 10;
/// Totals, by their names on /metrics, and what they are.
const TOTALS: [(&str, &str, &str); 6] = [
    (
        "Limits decided without Redis",
        "tollgate_store_fallbacks_total",
        "It did not answer in time: on_store_error decided.",
    ),
    (
        "Calls in part without Redis",
        "ratelimit_service_should_rate_limit_error",
        "At least one limit was decided by on_store_error, or no rules were loaded.",
    ),
    (
        "Invalid calls",
        "tollgate_invalid_requests_total",
        "Too many descriptors, entries or checks, or a limit that cannot be counted. They got an error.",
    ),
    (
        "Calls above the capacity",
        "tollgate_calls_rejected_total",
        "Too many were in flight: they got an error before they were read.",
    ),
    ("Open connections", "tollgate_connections", "gRPC and HTTP."),
    (
        "Calls counted as __other__",
        "tollgate_metric_series_overflow_total",
        "Metrics have a bounded number of names that clients choose. Limits are not affected.",
    ),
];

/// A rule that limited in the last hour.
struct Limiting {
    domain: String,
    path: String,
    counts: Bar,
    by: &'static str,
}

pub(crate) async fn content(parts: &Parts) -> Markup {
    let most = most_limiting(parts).await;
    let nodes = parts.nodes().await;
    let now = parts.clock.now();
    let unmatched = unmatched(parts, now).await;
    let snapshot = parts.metrics.snapshot();
    let this_replica = parts.this_replica();
    html! {
        h1 { "Overview" }
        dl.tiles {
            (traffic(&parts.history.recent(&snapshot), &this_replica))
            (health(parts, &snapshot, &nodes))
        }
        @if parts.trial.is_some() {
            p.dim { "During a trial, responses are counted as decided here. " a href="/console/trial" { "The service in use answers callers" } ", except for the enforced share." }
        }
        (rejection(parts))
        (charts(parts, now, &this_replica))
        (unmatched)
        div.columns {
            section aria-labelledby="most" {
                h2 #most { "Most over limit" span.dim { " · " (this_replica) ", last hour" } }
                @if parts.rules_in_force().is_some() {
                    (list(&most))
                } @else {
                    p.empty { "No rules are loaded." }
                }
            }
            section aria-labelledby="totals" {
                h2 #totals { "Totals" span.dim { " · " (this_replica) ", " (parts.since_start(&snapshot)) } }
                (totals(parts, &snapshot))
            }
        }
        nav.endpoints aria-label="Endpoints" {
            span { "Endpoints" }
            @for path in ["/metrics", "/rlconfig", "/stats", "/ready"] {
                a href=(path) { (path) }
            }
        }
    }
}

fn traffic(recent: &Recent, this_replica: &str) -> Markup {
    let rate = html! { (format!("{:.1}", recent.calls_per_second)) span.unit { " calls/s" } };
    let CallCounts { calls, over_limit, .. } = recent.calls;
    let slowest = recent.latency.map_or("–".to_owned(), |[_, p99]| seconds(p99));
    html! {
        (tile("Rate", &rate, &html! { (this_replica) ", last 10 s" }))
        (tile("Over limit", &html! { (percent(over_limit, calls)) }, &html! {
            (number(over_limit)) " of " (number(calls)) " calls; " (this_replica) ", last minute"
            (admitted(&recent.calls))
        }))
        (tile("Latency, 99 %", &html! { (slowest) }, &html! {
            @match recent.latency {
                None => "no gRPC calls; ",
                Some([p50, _]) => { "half within " (seconds(p50)) "; " },
            }
            (this_replica) ", last minute"
        }))
    }
}

/// Calls over a limit that did not reject them, by the reason.
fn admitted(calls: &CallCounts) -> Markup {
    let counts = Admitted::ALL.into_iter().zip(calls.admitted);
    let mut counts = counts.filter(|(_, count)| *count > 0).peekable();
    html! {
        @if counts.peek().is_some() {
            "; " (ADMITTED) ": "
            @for (by, count) in counts { span.tag { (by.name()) " " (number(count)) } }
        }
    }
}

/// The hour, and the minute beside it.
fn charts(parts: &Parts, now: Time, this_replica: &str) -> Markup {
    let hour = TimeAxis { last: now, bar: MINUTE };
    let minute = TimeAxis {
        // It has ended.
        last: Time::from_micros(now.as_micros().saturating_sub(SECOND.as_micros())),
        bar: SECOND,
    };
    html! {
        div.columns {
            section aria-labelledby="hour" {
                h2 #hour { "Last hour" span.dim { " · " (this_replica) ", by minute" } }
                (chart(&parts.history.chart(), hour, "calls"))
            }
            section aria-labelledby="minute" {
                h2 #minute { "Last minute" span.dim { " · " (this_replica) ", by second" } }
                (chart(&parts.history.seconds(), minute, "calls"))
            }
        }
    }
}

/// Descriptors that no rule matches: a misspelled domain or key, or what is meant to pass.
async fn unmatched(parts: &Parts, now: Time) -> Markup {
    let rules = parts.rules_in_force();
    let seen = parts.unmatched.clone();
    let read = move || rules.map(|rules| seen.read(&rules, now, UNMATCHED_MAX));
    let rows = spawn_blocking(read).await.ok().flatten().unwrap_or_default();
    let row = |row: &UnmatchedKeys| {
        html! {
            tr {
                th scope="row" { (clamped(&row.domain)) }
                td { (clamped(&row.keys)) }
                td { (row.reason) }
                td.number { (number(row.descriptors)) }
            }
        }
    };
    html! {
        @if !rows.is_empty() {
            section aria-labelledby="unmatched" {
                h2 #unmatched { "Calls without a matching rule" span.dim { " · " (parts.this_replica()) ", not limited. " (runbook::link("tollgatenorulematches")) } }
                (table(&["Domain", "Keys", "Reason"], &["Descriptors"], &html! { @for one in &rows { (row(one)) } }))
            }
        }
    }
}

fn health(parts: &Parts, snapshot: &Snapshot, nodes: &[NodeStatus]) -> Markup {
    let state = parts.lifecycle.state();
    let reachable = html! { a href="/console/store" { (parts.store_state(nodes)) } };
    html! {
        (tile("Store", &reachable, &html! { (parts.backend) }))
        (tile("Replicas", &html! { (parts.backend.replicas()) }, &html! {
            @match &parts.backend {
                Backend::Memory(_) => "each counts for itself",
                Backend::Redis(_) if state.serving() => "share the limits; this one serves",
                Backend::Redis(_) => "share the limits; this one is not ready",
            }
        }))
        (tile("Rules", &html! { (number(snapshot.count("tollgate_rules"))) }, &html! {
            "version " code { (snapshot.count("tollgate_rules_hash")) }
        }))
    }
}

/// Why the newest rules are not in force.
fn rejection(parts: &Parts) -> Markup {
    html! {
        @if let Some(fault) = parts.rules_fault() {
            section.rejection role="alert" {
                h2 { (fault.text) ". " (runbook::link(fault.anchor)) }
                @let note = parts.lifecycle.state().rules_note;
                pre { (parts.rules.last_error().unwrap_or(note)) }
                p { a href="/console/files" { "Files" } " leads to the line of each error." }
            }
        }
    }
}

/// The rules that rejected most in the last hour, then those that would have.
async fn most_limiting(parts: &Parts) -> Vec<Limiting> {
    let rules = parts.rules_in_force();
    let history = parts.history.clone();
    let find = move || {
        let mut most = Vec::new();
        for domain in rules.iter().flat_map(|rules| rules.domains()) {
            for rule in domain.rules() {
                let counts = history.last_hour(rule);
                if counts.over_limit + counts.admitted > 0 {
                    most.push(Limiting {
                        domain: domain.name.to_string(),
                        path: rule.path.to_string(),
                        counts,
                        by: admitted_by(rule).name(),
                    });
                }
            }
        }
        let counts = |limiting: &Limiting| (limiting.counts.over_limit, limiting.counts.admitted);
        most.sort_by_key(|limiting| Reverse(counts(limiting)));
        most.truncate(RULES_MAX);
        most
    };
    // Rules may be many, and this thread answers liveness probes.
    spawn_blocking(find).await.unwrap_or_default()
}

fn list(most: &[Limiting]) -> Markup {
    if most.is_empty() {
        return html! { p.empty { "No hit was over limit." } };
    }
    let rows = html! {
        @for Limiting { domain, path, counts, by } in most {
            tr {
                th scope="row" { a href=(href_of(domain, path)) { (path) } }
                (over_limit(counts.over_limit, counts.admitted, by))
                td.number { (number(counts.all)) }
                td.number { (percent(counts.over_limit, counts.all)) }
            }
        }
    };
    table(&["Rule"], &["Over limit", "Hits", "Share"], &rows)
}

fn totals(parts: &Parts, snapshot: &Snapshot) -> Markup {
    let calls = parts.history.totals();
    let started = snapshot.count("process_start_time_seconds");
    let now = parts.clock.now().as_micros() / MICROS_PER_SECOND;
    let bytes = parts.metrics.process().count("process_resident_memory_bytes");
    html! {
        dl.rows {
            div { dt { "Running for" } dd { (duration(now.saturating_sub(started))) } }
            div { dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) } }
            div { dt title="process_resident_memory_bytes" { "Memory" } dd { (number(bytes >> 20)) " MiB" } }
            div { dt title="tollgate_responses_total" { "Calls" } dd { (number(calls.calls)) } }
            div { dt title="tollgate_responses_total, code OVER_LIMIT" { "Calls over limit" } dd { (number(calls.over_limit)) (admitted(&calls)) } }
            @for (name, metric, about) in TOTALS {
                div { dt title={ (about) " " (metric) } { (name) } dd { (number(snapshot.count(metric))) } }
            }
        }
    }
}
