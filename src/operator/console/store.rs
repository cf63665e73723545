//! The store: its servers, the latency of its calls, and who decided while it did not.

use std::time::Duration;

use maud::{Markup, html};

use crate::base::time::{Span, Time};
use crate::limits::check::StoreError;
use crate::operator::console::parts::Parts;
use crate::operator::console::runbook;
use crate::operator::console::widgets::{Column, Frame, number, scale, seconds, tile};
use crate::store::memory::ADMITS_MORE;
use crate::store::watch::Minute;
use crate::store::watch::diagnosis::SLOW;
use crate::store::{Backend, NodeStatus};
use crate::telemetry::metric::Snapshot;

pub(crate) async fn content(parts: &Parts) -> Markup {
    let nodes = parts.nodes().await;
    let snapshot = parts.metrics.snapshot();
    let problem = parts.lifecycle.state().store_problem;
    html! {
        h1 { "Store" }
        dl.tiles {
            (tile("State", &parts.store_state(&nodes), &html! {
                (parts.backend)
                @if let (_, Some(anchor)) = parts.store_status(&nodes) { ". " (runbook::link(anchor)) }
            }))
            @match &parts.backend {
                Backend::Memory(_) => (memory(&snapshot)),
                Backend::Redis(_) => (redis(&snapshot, parts.watch.latency())),
            }
        }
        @match (&problem, &parts.backend) {
            (Some(problem), _) => ul.messages { li.(if problem.is_undecided { "error" } else { "warning" }) { (problem) ". " (runbook::link(problem.runbook)) } },
            (None, Backend::Memory(_)) => p.dim { "As BACKEND_TYPE says: " (ADMITS_MORE) "." },
            (None, Backend::Redis(_)) => {},
        }
        @if let Backend::Redis(_) = &parts.backend {
            section aria-labelledby="hour" {
                h2 #hour { "Last hour" }
                (hour(&parts.watch.hour()))
            }
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

/// Two charts: how long calls took, and checks that the store did not decide.
fn hour(minutes: &[Minute]) -> Markup {
    let micros = |seconds: f64| Span::from(Duration::from_secs_f64(seconds)).as_micros();
    let latency = minutes.iter().map(|minute| match minute.latency {
        None => ("no calls".to_owned(), Vec::new()),
        Some([median, late]) => {
            let class = if late > SLOW { "near" } else { "hits" };
            let text = format!("99 % within {}, half within {}", seconds(late), seconds(median));
            (text, vec![(micros(late), class), (micros(median), "median")])
        }
    });
    let undecided = minutes.iter().map(|minute| {
        let all = minute.undecided.iter().sum();
        let causes = StoreError::ALL.into_iter().zip(minute.undecided);
        let causes = causes.filter(|(_, count)| *count > 0);
        let causes = causes.map(|(cause, count)| format!("{} {}", number(count), cause.name()));
        match all {
            0 => ("the store decided every check".to_owned(), Vec::new()),
            _ => (causes.collect::<Vec<_>>().join(", "), vec![(all, "near")]),
        }
    });
    let late = minutes.iter().filter_map(|minute| minute.latency);
    let most = late.map(|[_, late]| late).reduce(f64::max);
    let at_most = most.map_or("no calls".to_owned(), |most| format!("at most {}", seconds(most)));
    let latency_scale = most
        .map_or_else(Default::default, |most| [seconds(most), seconds(most / 2.0), "0".to_owned()]);
    let of_minutes = minutes.iter().map(|minute| minute.undecided.iter().sum());
    let undecided_scale = scale(of_minutes.max().unwrap_or(0));
    let total = number(minutes.iter().flat_map(|minute| minute.undecided).sum());
    let latency_label =
        format!("Latency of calls, 99 % and half: {at_most}; amber above {}", seconds(SLOW));
    let undecided_label =
        format!("Checks that the store did not decide, by cause: {total} in this hour");
    html! {
        (chart(latency_label, latency_scale, minutes, latency))
        (chart(undecided_label, undecided_scale, minutes, undecided))
    }
}

/// A chart with a text and parts for each minute.
fn chart(
    label: String,
    scale: [String; 3],
    minutes: &[Minute],
    bars: impl Iterator<Item = (String, Vec<(u64, &'static str)>)>,
) -> Markup {
    let at = |minute: &Minute| Time::from_micros(minute.number * 60_000_000).to_minute_of_day();
    let bars = minutes.iter().zip(bars);
    let bars = bars.map(|(minute, (text, parts))| {
        let text = format!("{}: {text}", at(minute));
        Column { text, parts }
    });
    let times = [minutes.first(), minutes.get(minutes.len() / 2), minutes.last()];
    let times = times.map(|minute| minute.map(at).unwrap_or_default());
    let caption = html! { span { (label) } };
    Frame { bars: bars.collect(), scale, times, label }.shown(&caption)
}

fn memory(snapshot: &Snapshot) -> Markup {
    let of_store = |metric| of_use(snapshot, metric, "store");
    html! {
        (tile("Counters", &html! { (number(of_store("tollgate_memory_keys"))) }, &html! { "in memory" }))
        (tile("Expired", &html! { (number(of_store("tollgate_memory_expired_total"))) }, &html! { "removed, nothing left of them" }))
        (tile("Evicted", &html! { (number(of_store("tollgate_memory_evicted_total"))) }, &html! { "removed early, at memory_bytes_max" }))
    }
}

fn redis(snapshot: &Snapshot, latency: Option<[f64; 2]>) -> Markup {
    let open = snapshot.count("tollgate_store_breaker_open");
    html! {
        (tile("Latency, 99 %", &html! {
            @match latency {
                Some([_, late]) if late > SLOW => span.state.warning { (seconds(late)) },
                Some([_, late]) => (seconds(late)),
                None => "–",
            }
        }, &html! {
            @match latency {
                Some([median, _]) => { "half within " (seconds(median)) },
                None => "no calls in the last minute",
            }
        }))
        (tile("In flight", &html! { (number(snapshot.count("tollgate_store_calls_in_flight"))) }, &html! { "calls without a reply so far" }))
        (tile("Breakers open", &html! { (number(open)) }, &html! { "servers that are not asked" }))
        (tile("Connections", &html! { (number(snapshot.count("ratelimit_redis_pool_cx_active"))) }, &html! { "open" }))
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
    html! {
        dl.rows.inline {
            div { dt { "Counters in this process" } dd { (number(of_use(snapshot, "tollgate_memory_keys", "fallback"))) } }
            div { dt { "Hits written back to Redis" } dd { (number(snapshot.count("tollgate_write_back_hits_total"))) } }
            div { dt { "Checks not written back, at the bound" } dd { (number(snapshot.count("tollgate_write_back_full_total"))) } }
        }
    }
}

fn of_use(snapshot: &Snapshot, metric: &str, wanted: &str) -> u64 {
    let mut counts = snapshot.counts(metric, ["use"]);
    counts.find(|([of], _)| *of == wanted).map_or(0, |(_, count)| count)
}
