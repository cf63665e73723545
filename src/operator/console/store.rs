//! The store: its servers, the latency of its calls, and who decided while it did not.

use std::time::Duration;

use maud::{Markup, html};

use crate::base::shutdown::StoreProblem;
use crate::base::time::{Span, Time};
use crate::limits::check::StoreError;
use crate::operator::console::frame::Status;
use crate::operator::console::parts::{Parts, problem_status};
use crate::operator::console::runbook;
use crate::operator::console::widgets::{seconds, tile};
use crate::store::memory::{ADMITS_MORE, COUNTS_ALONE};
use crate::store::watch::Minute;
use crate::store::watch::diagnosis::SLOW;
use crate::store::{Backend, NodeStatus};
use crate::telemetry::metric::Snapshot;

const WIDTH: usize = 8;
const HEIGHT: u64 = 80;

/// A minute of a chart.
struct Bar {
    /// Of the bar, and of the part of it that is drawn over it.
    heights: [u64; 2],
    is_marked: bool,
    text: String,
    /// Since the epoch.
    minute: u64,
}

impl Bar {
    const fn class(&self) -> &'static str {
        if self.is_marked { "near" } else { "hits" }
    }
}

pub(crate) async fn content(parts: &Parts) -> Markup {
    let nodes = parts.nodes().await;
    let snapshot = parts.metrics.snapshot();
    let problem = parts.lifecycle.state().store_problem;
    html! {
        h1 { "Store" }
        dl.tiles {
            (tile("State", &state(parts, &nodes, problem.as_ref()), &html! {
                (parts.backend)
                @if let Some(anchor) = parts.store_status(&nodes).anchor() { ". " (runbook::link(anchor)) }
            }))
            @match &parts.backend {
                Backend::Memory(_) => (memory(&snapshot)),
                Backend::Redis(_) => (redis(&snapshot, parts.watch.latency())),
            }
        }
        @match (&problem, &parts.backend) {
            (Some(problem), _) => ul.messages { li.(if problem.is_undecided { "error" } else { "warning" }) { (problem) ". " (runbook::link(problem.runbook)) } },
            (None, Backend::Memory(_)) => ul.messages { li.warning { (COUNTS_ALONE) ": " (ADMITS_MORE) } },
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

fn state(parts: &Parts, nodes: &[NodeStatus], problem: Option<&StoreProblem>) -> Markup {
    let store = parts.store_status(nodes);
    let (status, text) = match problem {
        _ if store.status() == Status::Bad => (Status::Bad, store.text()),
        Some(problem) => (problem_status(problem), problem.summary.clone()),
        None if matches!(parts.backend, Backend::Memory(_)) => (Status::Warning, store.text()),
        None => (store.status(), store.text()),
    };
    let since = parts.watch.undecided_since().map(Time::to_minute_of_day);
    html! {
        span.state.(status.class()) { (text) @if let Some(since) = since { " since " (since) } }
    }
}

/// Two charts: how long calls took, and checks that the store did not decide.
fn hour(minutes: &[Minute]) -> Markup {
    let micros = |seconds: f64| Span::from(Duration::from_secs_f64(seconds)).as_micros();
    let latency = minutes.iter().map(|minute| {
        let [median, late] = minute.latency.unwrap_or_default();
        Bar {
            heights: [micros(late), micros(median)],
            is_marked: late > SLOW,
            text: match minute.latency {
                Some(_) => {
                    format!("99 % within {}, half within {}", seconds(late), seconds(median))
                }
                None => "no calls".to_owned(),
            },
            minute: minute.number,
        }
    });
    let undecided = minutes.iter().map(|minute| {
        let all = minute.undecided.iter().sum();
        let causes = StoreError::ALL.into_iter().zip(minute.undecided);
        let causes = causes.filter(|(_, count)| *count > 0);
        let causes = causes.map(|(cause, count)| format!("{count} {}", cause.name()));
        Bar {
            heights: [all, 0],
            is_marked: all > 0,
            text: match all {
                0 => "the store decided every check".to_owned(),
                _ => causes.collect::<Vec<_>>().join(", "),
            },
            minute: minute.number,
        }
    });
    let latency_max = minutes.iter().filter_map(|minute| minute.latency);
    let latency_max = latency_max.map(|[_, late]| late).fold(0.0, f64::max);
    let total: u64 = minutes.iter().flat_map(|minute| minute.undecided).sum();
    html! {
        (chart(&format!("Latency of calls, 99 % and half: at most {}; amber above 10 ms", seconds(latency_max)), &latency.collect::<Vec<_>>()))
        (chart(&format!("Checks that the store did not decide, by cause: {total} in this hour"), &undecided.collect::<Vec<_>>()))
    }
}

fn chart(label: &str, bars: &[Bar]) -> Markup {
    let most = bars.iter().map(|bar| bar.heights[0]).max().unwrap_or(0).max(1);
    let height = |value: u64| (value.saturating_mul(HEIGHT)).div_ceil(most).min(HEIGHT);
    let at = |number: u64| Time::from_micros(number * 60_000_000).to_minute_of_day();
    let ends = [bars.first(), bars.last()].map(|bar| bar.map(|bar| at(bar.minute)));
    html! {
        figure.chart {
            p { (label) }
            svg role="img" aria-label=(label) viewBox={ "0 0 " (bars.len() * WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
                @for (index, bar) in bars.iter().enumerate() {
                    @let (x, width) = (index * WIDTH + 1, WIDTH - 2);
                    g {
                        title { (at(bar.minute)) ": " (bar.text) }
                        rect.slot x=(index * WIDTH) y="0" width=(WIDTH) height=(HEIGHT) {}
                        @for (value, class) in bar.heights.into_iter().zip([bar.class(), "median"]) {
                            @let (high, y) = (height(value), HEIGHT - height(value));
                            rect class=(class) x=(x) y=(y) width=(width) height=(high) {}
                        }
                    }
                }
            }
            figcaption { @for end in ends.iter().flatten() { span { (end) } } }
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
        (tile("In flight", &html! { (snapshot.count("tollgate_store_calls_in_flight")) }, &html! { "calls without a reply so far" }))
        (tile("Breakers open", &html! { (open) }, &html! { "servers that are not asked" }))
        (tile("Connections", &html! { (snapshot.count("ratelimit_redis_pool_cx_active")) }, &html! { "open" }))
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
            div { dt { "Counters in this process" } dd { (of_use(snapshot, "tollgate_memory_keys", "fallback")) } }
            div { dt { "Hits written back to Redis" } dd { (snapshot.count("tollgate_write_back_hits_total")) } }
            div { dt { "Checks not written back, at the bound" } dd { (snapshot.count("tollgate_write_back_full_total")) } }
        }
    }
}

fn of_use(snapshot: &Snapshot, metric: &str, wanted: &str) -> u64 {
    let mut counts = snapshot.counts(metric, ["use"]);
    counts.find(|([of], _)| *of == wanted).map_or(0, |(_, count)| count)
}
