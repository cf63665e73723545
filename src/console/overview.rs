//! The first view: rates, health, and which rules limit most.

use std::cmp::Reverse;

use maud::{Markup, html};

use crate::admin::api::top::Scope;
use crate::admin::query_string::Pairs;
use crate::base::text::{counted, prefix};
use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::console::frame::Tab;
use crate::console::parts::{Parts, StoreStatus};
use crate::console::rules::href_of;
use crate::console::runbook;
use crate::console::scope::{self, View};
use crate::console::widgets::{
    MINUTE, SECOND, TimeAxis, chart, duration, percent, seconds, table, tile,
};
use crate::report::status::ReplicaStatus;
use crate::rules::stats::counts::HitCounts;
use crate::store::Backend;
use crate::telemetry::metric::Snapshot;

/// Rules in the list of those that limit most.
// bound overview_rules_max: left out; -
const RULES_MAX: usize = 10;
/// Replicas in the list of the overview.
// bound overview_replicas_max: left out; -
const REPLICAS_MAX: usize = 50;
/// Bytes of a text of another replica.
// bound replica_text_bytes_max: truncated; -
const TEXT_BYTES_MAX: usize = 256;
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

pub(crate) async fn content(parts: &Parts, query: &str) -> Markup {
    let scope = scope::scope_of(&Pairs::new(query));
    let view = View::read(parts, scope).await;
    let nodes = parts.nodes().await;
    let now = parts.clock.now();
    let snapshot = parts.metrics.snapshot();
    html! {
        div.heading {
            h1 { "Overview" }
            (scope::switch(Tab::Overview, scope, &[]))
        }
        dl.tiles {
            (traffic(&view))
            (health(parts, &view, parts.store_status(&nodes)))
        }
        (rejection(parts))
        (charts(&view, now))
        div.columns {
            section aria-labelledby="most" {
                h2 #most { "Most over limit" span.dim { " · " (view.covers("last hour")) } }
                @if parts.rules_in_force().is_some() {
                    (most_limited(&view))
                } @else {
                    p.empty { "No rules are loaded." }
                }
            }
            section aria-labelledby="totals" {
                h2 #totals { "Totals" span.dim { " · this replica, " (parts.since_start(&snapshot)) } }
                (totals(parts, &snapshot))
            }
        }
        (replicas(&view))
        nav.endpoints aria-label="Endpoints" {
            span { "Endpoints" }
            @for path in ["/metrics", "/rlconfig", "/stats", "/ready"] {
                a href=(path) { (path) }
            }
        }
    }
}

fn traffic(view: &View) -> Markup {
    let rate = html! { (format!("{:.1}", view.hits_per_second())) span.unit { " hits/s" } };
    let HitCounts { hits, over_limit } = view.last_minute();
    let with_latency = view
        .statuses()
        .filter_map(|status| Some((status, status.latency?)));
    // Percentiles of replicas cannot be added up.
    let slowest = with_latency.max_by(|(_, one), (_, other)| one.p99.total_cmp(&other.p99));
    html! {
        (tile("Rate", &rate, &html! { (view.covers("last 10 s")) }))
        (tile("Over limit", &html! { (percent(over_limit, hits)) }, &html! {
            (over_limit) " of " (hits) " hits; " (view.covers("last minute"))
        }))
        (tile("Latency, 99 %", &html! { (slowest.map_or("–".to_owned(), |(_, latency)| seconds(latency.p99))) }, &html! {
            @match slowest {
                None => "no gRPC calls; ",
                Some((status, latency)) => {
                    "half within " (seconds(latency.p50)) "; "
                    @if view.scope == Scope::Fleet { (view.pod_of(&status.replica)) ", the slowest; " }
                },
            }
            (view.covers("last minute"))
        }))
    }
}

/// The hour, and the minute beside it.
fn charts(view: &View, now: Time) -> Markup {
    let hour = TimeAxis {
        last: now,
        bar: MINUTE,
    };
    let minute = TimeAxis {
        // It has ended.
        last: Time::from_micros(now.as_micros().saturating_sub(SECOND.as_micros())),
        bar: SECOND,
    };
    html! {
        div.columns {
            section aria-labelledby="hour" {
                h2 #hour { "Last hour" span.dim { " · " (view.covers("by minute")) } }
                (chart(&view.chart(|status| &status.minutes), hour))
            }
            section aria-labelledby="minute" {
                h2 #minute { "Last minute" span.dim { " · " (view.covers("by second")) } }
                (chart(&view.chart(|status| &status.seconds), minute))
            }
        }
    }
}

fn health(parts: &Parts, view: &View, store: StoreStatus) -> Markup {
    let peers = view.peers.len().max(1);
    let state = parts.lifecycle.state();
    let of_own = html! {
        a href="/console/store" { span.state.(store.status().class()) { (store.text()) } }
    };
    let faulty = view.statuses().filter(|status| status.store_faults > 0);
    let faulty: Vec<_> = faulty.map(|status| view.pod_of(&status.replica)).collect();
    let mut versions: Vec<_> = view.statuses().map(|status| status.rules_hash).collect();
    versions.sort_unstable();
    versions.dedup();
    html! {
        (tile("Store", &of_own, &html! {
            (parts.backend) "; this replica"
            @if view.scope == Scope::Fleet && !faulty.is_empty() {
                "; faults on " (counted(faulty.len(), "replica"))
            }
        }))
        (tile("Replicas", &html! { (peers) }, &html! {
            @match &parts.backend {
                Backend::Memory(_) => "each counts for itself",
                Backend::Redis(_) if state.serving() => "share the limits; this one serves",
                Backend::Redis(_) => "share the limits; this one is not ready",
            }
        }))
        (tile("Rules", &html! { (view.own.rules) }, &html! {
            @match &*versions {
                [version] => { "version " code { (version) } "; " (view.covers("now")) },
                versions => { span.state.warning { (versions.len()) " versions" } "; " (view.covers("now")) },
            }
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

fn most_limited(view: &View) -> Markup {
    let mut most: Vec<_> = view.last_hour().into_iter().collect();
    most.retain(|(_, counts)| counts.over_limit > 0);
    most.sort_by_key(|(rule, counts)| (Reverse(counts.over_limit), *rule));
    if most.is_empty() {
        return html! { p.empty { "No hit was over limit." } };
    }
    html! {
        (table(&["Rule"], &["Over limit", "Hits", "Share"], &html! {
            @for ((domain, path), HitCounts { hits, over_limit }) in most.iter().take(RULES_MAX) {
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

/// Who shares the limits, by heartbeats. Nothing in memory, and before the first heartbeats.
fn replicas(view: &View) -> Markup {
    let peers = &view.peers;
    let counts: &[&str] = match view.scope {
        Scope::Replica => &[],
        Scope::Fleet => &["Hits/s", "Over limit", "Latency, 99 %", "Rules version"],
    };
    html! {
        @if !peers.is_empty() {
            section aria-labelledby="replicas" {
                h2 #replicas { "Replicas" }
                (table(&["Name", "Admin port", "Store"][..if counts.is_empty() { 2 } else { 3 }], counts, &html! {
                    @for peer in peers.iter().take(REPLICAS_MAX) {
                        @let pod = prefix(view.pod_of(&peer.name), TEXT_BYTES_MAX);
                        tr {
                            th scope="row" {
                                @match peer.admin {
                                    Some(address) if peer.may_be_asked && peer.name != view.own.replica => a href={ "http://" (address) "/" } title=(peer.name) { (pod) },
                                    _ => span title=(peer.name) { (pod) },
                                }
                                @if peer.name == view.own.replica { span.tag { "this one" } }
                            }
                            td {
                                @match peer.admin {
                                    Some(address) => code { (address) },
                                    None => span.dim { "unknown without POD_IP" },
                                }
                            }
                            @if view.scope == Scope::Fleet {
                                (status_cells(view.status_of(&peer.name)))
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

fn status_cells(status: Option<&ReplicaStatus>) -> Markup {
    let Some(status) = status else {
        return html! { td colspan="5" { span.state.bad { "did not answer" } } };
    };
    let store = match status.store_faults {
        0 => ("good", "no fault"),
        _ => ("bad", prefix(&status.store, TEXT_BYTES_MAX)),
    };
    let HitCounts { hits, over_limit } = status.last_minute;
    html! {
        td { span.state.(store.0) { (store.1) } }
        td.number { (format!("{:.1}", status.hits_per_second)) }
        td.number { (percent(over_limit, hits)) }
        td.number { (status.latency.map_or("–".to_owned(), |latency| seconds(latency.p99))) }
        td.number { (status.rules_hash) }
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
