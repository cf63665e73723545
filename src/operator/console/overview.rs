//! The first view: rates, health, and which rules limit most.

use std::cmp::Reverse;

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::operator::console::parts::{Parts, StoreStatus};
use crate::operator::console::rules::href_of;
use crate::operator::console::runbook;
use crate::operator::console::widgets::{
    MINUTE, SECOND, TimeAxis, chart, duration, percent, seconds, table, tile,
};
use crate::operator::observe::history::Recent;
use crate::rules::stats::counts::HitCounts;
use crate::store::Backend;
use crate::telemetry::metric::Snapshot;

/// Rules in the list of those that limit most.
const RULES_MAX: usize = 10;
/// Totals, by their names on /metrics.
const TOTALS: [(&str, &str); 7] = [
    ("gRPC calls", "ratelimit_service_total_requests"),
    ("Checks that the store did not decide", "tollgate_store_fallbacks_total"),
    ("Calls with such a check, or without rules", "ratelimit_service_should_rate_limit_error"),
    ("Invalid requests", "tollgate_invalid_requests_total"),
    ("Calls rejected by a bound", "tollgate_calls_rejected_total"),
    ("Open connections", "tollgate_connections"),
    ("Hits of rules under other names", "tollgate_metric_series_overflow_total"),
];

/// A rule that limited in the last hour.
struct Limiting {
    domain: String,
    path: String,
    counts: HitCounts,
}

pub(crate) async fn content(parts: &Parts) -> Markup {
    let most = most_limiting(parts).await;
    let nodes = parts.nodes().await;
    let now = parts.clock.now();
    let snapshot = parts.metrics.snapshot();
    let this_replica = parts.this_replica();
    html! {
        h1 { "Overview" }
        dl.tiles {
            (traffic(&parts.history.recent(&snapshot), &this_replica))
            (health(parts, &snapshot, parts.store_status(&nodes)))
        }
        (rejection(parts))
        (charts(parts, now, &this_replica))
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
    let rate = html! { (format!("{:.1}", recent.hits_per_second)) span.unit { " hits/s" } };
    let HitCounts { hits, over_limit } = recent.hits;
    let slowest = recent.latency.map_or("–".to_owned(), |[_, p99]| seconds(p99));
    html! {
        (tile("Rate", &rate, &html! { (this_replica) ", last 10 s" }))
        (tile("Over limit", &html! { (percent(over_limit, hits)) }, &html! {
            (over_limit) " of " (hits) " hits; " (this_replica) ", last minute"
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
                (chart(&parts.history.chart(), hour))
            }
            section aria-labelledby="minute" {
                h2 #minute { "Last minute" span.dim { " · " (this_replica) ", by second" } }
                (chart(&parts.history.seconds(), minute))
            }
        }
    }
}

fn health(parts: &Parts, snapshot: &Snapshot, store: StoreStatus) -> Markup {
    let state = parts.lifecycle.state();
    let reachable = html! {
        a href="/console/store" { span.state.(store.status().class()) { (store.text()) } }
    };
    html! {
        (tile("Store", &reachable, &html! { (parts.backend) }))
        (tile("Replicas", &html! { (parts.backend.replicas()) }, &html! {
            @match &parts.backend {
                Backend::Memory(_) => "each counts for itself",
                Backend::Redis(_) if state.serving() => "share the limits; this one serves",
                Backend::Redis(_) => "share the limits; this one is not ready",
            }
        }))
        (tile("Rules", &html! { (snapshot.count("tollgate_rules")) }, &html! {
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

/// The rules with the most hits over limit in the last hour.
async fn most_limiting(parts: &Parts) -> Vec<Limiting> {
    let rules = parts.rules_in_force();
    let history = parts.history.clone();
    let find = move || {
        let mut most = Vec::new();
        for domain in rules.iter().flat_map(|rules| rules.domains()) {
            domain.visit(&mut |nodes| {
                let rule = nodes.last().and_then(|node| node.rule.as_deref());
                let counted = rule.map(|rule| (rule, history.last_hour(rule)));
                let limiting = counted.filter(|(_, counts)| counts.over_limit > 0);
                most.extend(limiting.map(|(rule, counts)| Limiting {
                    domain: domain.name.to_string(),
                    path: rule.path.to_string(),
                    counts,
                }));
            });
        }
        most.sort_by_key(|limiting| Reverse(limiting.counts.over_limit));
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
    html! {
        (table(&["Rule"], &["Over limit", "Hits", "Share"], &html! {
            @for Limiting { domain, path, counts: HitCounts { hits, over_limit } } in most {
                tr {
                    th scope="row" { a href=(href_of(domain, path)) { (path) } }
                    td.number.over { (over_limit) }
                    td.number { (hits) }
                    td.number { (percent(*over_limit, *hits)) }
                }
            }
        }))
    }
}

fn totals(parts: &Parts, snapshot: &Snapshot) -> Markup {
    let [hits, over] = parts.history.totals();
    let started = snapshot.count("process_start_time_seconds");
    let now = parts.clock.now().as_micros() / MICROS_PER_SECOND;
    let bytes = snapshot.count("process_resident_memory_bytes");
    html! {
        dl.rows {
            div { dt { "Running for" } dd { (duration(now.saturating_sub(started))) } }
            div { dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) } }
            div { dt { "Memory" } dd { (bytes >> 20) " MiB" } }
            div { dt { "Hits of all rules" } dd { (hits) } }
            div { dt { "Hits over limit" } dd { (over) } }
            @for (name, metric) in TOTALS {
                div { dt title=(metric) { (name) } dd { (snapshot.count(metric)) } }
            }
        }
    }
}
