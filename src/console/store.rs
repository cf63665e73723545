//! The store: its servers, the latency of its calls, and who decided while it did not.

use maud::{Markup, html};

use crate::console::history::Recent;
use crate::console::parts::Parts;
use crate::console::widgets::{seconds, table, tile};
use crate::store::{Backend, NodeStatus};
use crate::telemetry::metric::Snapshot;

pub(crate) async fn content(parts: &Parts) -> Markup {
    let nodes = parts.nodes().await;
    let snapshot = parts.metrics.snapshot();
    let recent = parts.history.recent(&parts.history.sample(&snapshot));
    let store = parts.store_status(&nodes);
    html! {
        h1 { "Store" }
        dl.tiles {
            (tile("State", &html! { span.state.(store.status().class()) { (store.text()) } }, &html! { (parts.backend) }))
            @match &parts.backend {
                Backend::Memory(_) => (memory(&snapshot)),
                Backend::Redis(_) => (redis(&snapshot, &recent)),
            }
        }
        @if let Backend::Redis(_) = &parts.backend {
            section aria-labelledby="servers" {
                h2 #servers { "Servers" }
                (servers(&nodes))
            }
            section aria-labelledby="fallback" {
                h2 #fallback { "Fallback" }
                (fallback(&snapshot))
            }
        }
    }
}

fn memory(snapshot: &Snapshot) -> Markup {
    let of_store = |metric| of_use(snapshot, metric, "store");
    html! {
        (tile("Counters", &html! { (of_store("tollgate_memory_keys")) }, &html! { "in memory" }))
        (tile("Expired", &html! { (of_store("tollgate_memory_expired_total")) }, &html! { "removed, nothing left of them" }))
        (tile("Evicted", &html! { (of_store("tollgate_memory_evicted_total")) }, &html! { "removed early, at memory_bytes_max" }))
    }
}

fn redis(snapshot: &Snapshot, recent: &Recent) -> Markup {
    let latency = recent.store_latency;
    let open = snapshot.count("tollgate_store_breaker_open");
    html! {
        (tile("Latency, 99 %", &html! {
            @match latency {
                Some([_, late]) => (seconds(late)),
                None => "–",
            }
        }, &html! {
            @match latency {
                Some([median, _]) => { "half within " (seconds(median)) },
                None => "no calls in the last minute",
            }
        }))
        (tile("In flight", &html! { (snapshot.count("tollgate_store_calls_in_flight")) }, &html! { "calls without a reply so far" }))
        (tile("Breakers open", &html! { (open) }, &html! { (snapshot.count("tollgate_store_breaker_opened_total")) " times opened" }))
        (tile("Connections", &html! { (snapshot.count("ratelimit_redis_pool_cx_active")) }, &html! { (snapshot.count("ratelimit_redis_pool_cx_total")) " made" }))
    }
}

fn servers(nodes: &[NodeStatus]) -> Markup {
    if nodes.is_empty() {
        return html! { p.empty { "No server was found yet: see " a href="/ready" { "/ready" } "." } };
    }
    html! {
        div.scroll tabindex="0" {
            table {
                thead { tr {
                    th scope="col" { "Server" }
                    th scope="col" { "State" }
                    th.number scope="col" { "Ping" }
                    th scope="col" { "Breaker" }
                    th scope="col" { "Faults" }
                } }
                tbody {
                    @for node in nodes {
                        tr {
                            th scope="row" {
                                code { (node.address) }
                                @if node.is_per_second { span.dim { " limits per second" } }
                            }
                            @match &node.ping {
                                Ok(span) => {
                                    td { span.state.good { "reachable" } }
                                    td.number { (seconds(span.as_secs_f64())) }
                                },
                                Err(_) => {
                                    td { span.state.bad { "unreachable" } }
                                    td.number { "–" }
                                },
                            }
                            td { @if node.is_breaker_open { span.state.bad { "open" } } @else { "closed" } }
                            td.text {
                                @for fault in &node.faults { p { (fault) } }
                                @if let (Err(cause), true) = (&node.ping, node.faults.is_empty()) {
                                    p { (cause) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn fallback(snapshot: &Snapshot) -> Markup {
    let fallbacks = snapshot.counts("tollgate_store_fallbacks_total", ["policy", "cause"]);
    let fallbacks: Vec<_> = fallbacks.filter(|(_, count)| *count > 0).collect();
    html! {
        dl.rows.inline {
            div { dt { "Counters in this process" } dd { (of_use(snapshot, "tollgate_memory_keys", "fallback")) } }
            div { dt { "Hits written back to Redis" } dd { (snapshot.count("tollgate_write_back_hits_total")) } }
            div { dt { "Checks not written back, at the bound" } dd { (snapshot.count("tollgate_write_back_full_total")) } }
        }
        @if fallbacks.is_empty() {
            p.empty { "The store decided every check since this process started." }
        } @else {
            (table(&["Decided by on_store_error", "Cause"], &["Checks"], &html! {
                @for ([policy, cause], count) in &fallbacks {
                    tr { th scope="row" { (policy) } td { (cause) } td.number { (count) } }
                }
            }))
        }
    }
}

fn of_use(snapshot: &Snapshot, metric: &str, wanted: &str) -> u64 {
    let mut counts = snapshot.counts(metric, ["use"]);
    counts
        .find(|([of], _)| *of == wanted)
        .map_or(0, |(_, count)| count)
}
