//! The first view: rates, health, and which rules limit most.

use std::sync::Arc;

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::base::time::MICROS_PER_SECOND;
use crate::console::history::Recent;
use crate::console::parts::{Parts, StoreStatus};
use crate::console::rules::{href_of, last_hour};
use crate::console::runbook;
use crate::console::widgets::{chart, duration, percent, seconds, table, tile};
use crate::rules::RuleSet;
use crate::store::Backend;
use crate::telemetry::metric::Snapshot;

/// Rules in the list of those that limit most.
// bound overview_rules_max: left out; -
const RULES_MAX: usize = 10;
/// Replicas in the list of the overview.
// bound overview_replicas_max: left out; -
const REPLICAS_MAX: usize = 50;
/// Totals, by their names on /metrics.
const TOTALS: [(&str, &str); 7] = [
    ("gRPC calls", "ratelimit_service_total_requests"),
    (
        "Checks that the store did not decide",
        "tollgate_store_fallbacks_total",
    ),
    (
        "Calls with such a check, or without rules",
        "ratelimit_service_should_rate_limit_error",
    ),
    ("Invalid requests", "tollgate_invalid_requests_total"),
    ("Calls rejected by a bound", "tollgate_calls_rejected_total"),
    ("Open connections", "tollgate_connections"),
    (
        "Hits of rules under other names",
        "tollgate_metric_series_overflow_total",
    ),
];

/// A rule, with its hits and hits over limit in the last hour.
struct Limited {
    domain: String,
    path: Arc<str>,
    hits: [u64; 2],
}

pub(crate) async fn content(parts: &Parts) -> Markup {
    let nodes = parts.nodes().await;
    let snapshot = parts.metrics.snapshot();
    let sample = parts.history.sample(&snapshot);
    let recent = parts.history.recent(&sample);
    let most = match parts.rules_in_force() {
        Some(rules) => Some(most_limited(parts, rules).await),
        None => None,
    };
    html! {
        h1 { "Overview" }
        dl.tiles {
            (traffic(&recent, sample.hits))
            (health(parts, parts.store_status(&nodes), &snapshot))
        }
        (rejection(parts))
        section aria-labelledby="hour" {
            h2 #hour { "Last hour" }
            (chart(&parts.history.chart()))
        }
        div.columns {
            section aria-labelledby="most" {
                h2 #most { "Most over limit in the last hour" }
                @match &most {
                    Some(most) => (limited(most)),
                    None => p.empty { "No rules are loaded." },
                }
            }
            section aria-labelledby="totals" {
                h2 #totals { "Since this process started" }
                (totals(parts, &snapshot, sample.hits))
            }
        }
        (replicas(parts))
        nav.endpoints aria-label="Endpoints" {
            span { "Endpoints" }
            @for path in ["/metrics", "/rlconfig", "/stats", "/ready", "/api/v1/openapi.json"] {
                a href=(path) { (path) }
            }
        }
    }
}

fn traffic(recent: &Recent, [hits, over]: [u64; 2]) -> Markup {
    let [recent_hits, recent_over] = recent.hits;
    let rate = html! { (format!("{:.1}", recent.hits_per_second)) span.unit { " hits/s" } };
    let latency = match recent.latency {
        Some([_, late]) => html! { (seconds(late)) },
        None => html! { "–" },
    };
    let median = recent.latency.map(|[median, _]| seconds(median));
    let share = percent(recent_over, recent_hits);
    html! {
        (tile("Rate", &rate, &html! { (hits) " hits in total" }))
        (tile("Over limit", &html! { (share) }, &html! { (over) " hits in total" }))
        (tile("Latency, 99 %", &latency, &html! {
            @match median {
                Some(median) => { "half within " (median) },
                None => "no gRPC calls in the last minute",
            }
        }))
    }
}

fn health(parts: &Parts, store: StoreStatus, snapshot: &Snapshot) -> Markup {
    let peers = match snapshot.count("tollgate_replicas") {
        0 => 1,
        replicas => replicas,
    };
    let state = parts.lifecycle.state();
    let hash = snapshot.count("tollgate_rules_hash");
    let store = html! {
        a href="/console/store" { span.state.(store.status().class()) { (store.text()) } }
    };
    html! {
        (tile("Store", &store, &html! { (parts.backend) }))
        (tile("Replicas", &html! { (peers) }, &html! {
            @match &parts.backend {
                Backend::Memory(_) => "each counts for itself",
                Backend::Redis(_) if state.serving() => "share the limits; this one serves",
                Backend::Redis(_) => "share the limits; this one is not ready",
            }
        }))
        (tile("Rules", &html! { (snapshot.count("tollgate_rules")) }, &html! {
            "version " code { (hash) }
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

/// The rules with the most hits over limit, on another thread: rules may be many, and this one
/// answers liveness probes.
async fn most_limited(parts: &Parts, rules: Arc<RuleSet>) -> Vec<Limited> {
    let history = parts.history.clone();
    let find = move || {
        let mut most = Vec::new();
        for domain in rules.domains() {
            domain.visit(&mut |nodes| {
                let rule = nodes.last().and_then(|node| node.rule.as_deref());
                let counted = rule.filter(|rule| rule.stats.hits()[1] > 0);
                most.extend(counted.map(|rule| Limited {
                    domain: domain.name.to_string(),
                    path: rule.path.clone(),
                    hits: last_hour(&history.chart_of(&rule.path, rule.stats.hits())),
                }));
            });
        }
        most.retain(|rule| rule.hits[1] > 0);
        most.sort_by_key(|rule| std::cmp::Reverse(rule.hits[1]));
        most.truncate(RULES_MAX);
        most
    };
    spawn_blocking(find).await.unwrap_or_default()
}

fn limited(most: &[Limited]) -> Markup {
    if most.is_empty() {
        return html! { p.empty { "No hit was over limit." } };
    }
    html! {
        (table(&["Rule"], &["Over limit", "Hits", "Share"], &html! {
            @for Limited { domain, path, hits: [hits, over] } in most {
                tr {
                    th scope="row" { a href=(href_of(domain, path)) { (path) } }
                    td.number.over { (over) }
                    td.number { (hits) }
                    td.number { (percent(*over, *hits)) }
                }
            }
        }))
    }
}

/// Who shares the limits, by heartbeats. Nothing in memory, and before the first heartbeats.
fn replicas(parts: &Parts) -> Markup {
    let peers = parts.backend.peers();
    html! {
        @if !peers.is_empty() {
            section aria-labelledby="replicas" {
                h2 #replicas { "Replicas" }
                (table(&["Name", "Admin port"], &[], &html! {
                    @for peer in peers.iter().take(REPLICAS_MAX) {
                        tr {
                            th scope="row" {
                                code { (peer.name) }
                                @if *peer.name == *parts.api.replica { span.tag { "this one" } }
                            }
                            td {
                                @match peer.admin {
                                    Some(address) => code { (address) },
                                    None => span.dim { "unknown without POD_IP" },
                                }
                            }
                        }
                    }
                }))
                @if peers.len() > REPLICAS_MAX {
                    p.dim { "The first " (REPLICAS_MAX) " of " (peers.len()) "." }
                }
            }
        }
    }
}

fn totals(parts: &Parts, snapshot: &Snapshot, [hits, over]: [u64; 2]) -> Markup {
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
