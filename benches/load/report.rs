//! Prints what a run came to: a table to read, or one JSON object for scripts.

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::load::args::{Args, Pick};
use crate::load::run::{Outcome, ProcessCost};
use crate::load::tally::{Second, Tally};

/// The quantiles that are shown, by the name each has in JSON.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// More of them are no news, and make a long line.
const LATE_SHOWN_MAX: usize = 100;

/// Prints the outcome in the form that was asked for.
pub fn print(args: &Args, outcome: &Outcome) -> anyhow::Result<()> {
    if args.json {
        println!(
            "{}",
            serde_json::to_string(&in_json(args, outcome)).context("write JSON")?
        );
    } else {
        print_table(args, outcome);
    }
    Ok(())
}

fn print_table(args: &Args, outcome: &Outcome) {
    let Outcome {
        warmup,
        measured,
        connections,
        ..
    } = outcome;
    let looped = match args.rate {
        Some(rate) => format!(
            "open loop, {rate} due per second, at most {} in flight",
            args.in_flight()
        ),
        None => format!("closed loop, {} in flight", args.in_flight()),
    };
    let picked = match args.pick {
        Pick::Uniform => format!("{} values, uniform", args.keys),
        Pick::Zipf => format!("{} values, zipf {}", args.keys, args.zipf_exponent),
        Pick::One => "one value".to_owned(),
    };
    let span_s = outcome.span.as_secs_f64();
    println!(
        "{:<12}{} on {} connections: {looped}",
        "target", args.target, args.connections
    );
    println!(
        "{:<12}domain {}, key {}, {picked}, {} per request",
        "asked for",
        args.domain,
        args.key.join(" and "),
        counted(args.descriptors, "descriptor")
    );
    println!(
        "{:<12}{span_s:.1} s after {:.1} s of warm-up",
        "measured",
        args.warmup.as_secs_f64()
    );
    print_account("requests", measured);
    if !warmup.is_clean() && warmup.sent + warmup.unsent > 0 {
        print_account("  warm-up", warmup);
    }
    println!("{:<12}{:.0}", "per second", outcome.per_second());
    println!("{:<12}{}", "latency ms", in_words(&measured.latency));
    if args.rate.is_some() {
        println!("{:<12}{}", "late ms", in_words(&measured.lateness));
    }
    println!(
        "{:<12}{} opened, {} ended by GOAWAY, {} lost, {} attempts failed",
        "connections",
        connections.opened.get(),
        connections.goaways.get(),
        connections.lost.get(),
        connections.failed.get()
    );
    print_cost(outcome);
    if let Some(check) = &outcome.limit_check {
        println!(
            "{:<12}{} values asked for: {} let through too often, {} refused too early",
            "limit check", check.values_asked, check.over_granted, check.under_granted
        );
    }
}

fn print_account(title: &str, tally: &Tally) {
    println!(
        "{title:<12}{} sent = {} OK + {} OVER_LIMIT + {} errors + {} unanswered",
        tally.sent,
        tally.ok,
        tally.over_limit,
        tally.error_count(),
        tally.unanswered_count()
    );
    for (error, count) in &tally.errors {
        println!("{:<12}{count} {error}", "");
    }
    for (loss, count) in &tally.unanswered {
        println!("{:<12}{count} unanswered: {loss}", "");
    }
    if tally.unsent > 0 {
        println!(
            "{:<12}{} more were due, but not sent in time",
            "", tally.unsent
        );
    }
    if !tally.overdue.is_empty() {
        println!(
            "{:<12}{} of the answers came after the deadline",
            "",
            tally.overdue.len()
        );
    }
    if tally.resent > 0 {
        println!(
            "{:<12}{} attempts were refused unprocessed, and repeated",
            "", tally.resent
        );
    }
}

fn print_cost(outcome: &Outcome) {
    for process in &outcome.processes {
        let cpu = match process.cpu_us {
            Some(us) => format!("{:.2} µs per request", outcome.per_request(us)),
            None => "ended".to_owned(),
        };
        let memory = process.memory.as_ref().map_or(String::new(), |memory| {
            format!(
                ", {:.1} MiB resident, {:.1} at most",
                in_mib(memory.resident_kib),
                in_mib(memory.peak_kib)
            )
        });
        println!(
            "{:<12}{cpu} by {} ({}){memory}",
            "cpu", process.name, process.pid
        );
    }
    if let Some(sum) = outcome.cpu_sum_us()
        && outcome.processes.len() > 1
    {
        println!(
            "{:<12}{:.2} µs per request in all",
            "cpu",
            outcome.per_request(sum)
        );
    }
    println!(
        "{:<12}{:.2} µs per request by this generator",
        "cpu",
        outcome.per_request(outcome.own_cpu_us)
    );
}

fn in_json(args: &Args, outcome: &Outcome) -> Value {
    let connections = &outcome.connections;
    let per_request = |us: Option<u64>| us.map(|us| outcome.per_request(us));
    let process = |process: &ProcessCost| {
        json!({
            "pid": process.pid,
            "name": process.name,
            "cpu_us_per_request": per_request(process.cpu_us),
            "resident_kib": process.memory.as_ref().map(|memory| memory.resident_kib),
            "resident_peak_kib": process.memory.as_ref().map(|memory| memory.peak_kib),
        })
    };
    json!({
        "target": args.target,
        "connections": args.connections,
        "in_flight": args.in_flight(),
        "rate": args.rate,
        "seconds": outcome.span.as_secs_f64(),
        "requests": account(&outcome.measured),
        "warmup": account(&outcome.warmup),
        "per_second": outcome.per_second(),
        "latency_ms": quantiles(&outcome.measured.latency),
        "sent_late_ms": args.rate.map(|_| quantiles(&outcome.measured.lateness)),
        "connections_opened": connections.opened.get(),
        "connections_ended_by_goaway": connections.goaways.get(),
        "connections_lost": connections.lost.get(),
        "connection_attempts_failed": connections.failed.get(),
        "processes": outcome.processes.iter().map(process).collect::<Vec<_>>(),
        "cpu_us_per_request": per_request(outcome.cpu_sum_us()),
        "generator_cpu_us_per_request": outcome.per_request(outcome.own_cpu_us),
        "limit_check": outcome.limit_check.as_ref().map(|check| json!({
            "values_asked": check.values_asked,
            "over_granted": check.over_granted,
            "under_granted": check.under_granted,
        })),
        "timeline": outcome.timeline.as_ref().map(|timeline| timeline.seconds().iter().map(second).collect::<Vec<_>>()),
        "late": args.deadline.map(|_| late(outcome)),
        "clean": outcome.is_clean(),
    })
}

fn second(second: &Second) -> Value {
    json!({
        "answered": second.answered,
        "failed": second.failed,
        "p50_ms": in_ms(second.p50),
        "p99_ms": in_ms(second.p99),
        "max_ms": in_ms(second.max),
        "sent_late_max_ms": in_ms(second.late_max),
    })
}

/// Answers of the measured part that came after the deadline: how many, and when the first of them
/// came.
fn late(outcome: &Outcome) -> Value {
    let overdue = &outcome.measured.overdue;
    let shown = overdue.iter().take(LATE_SHOWN_MAX).map(|under_way| {
        json!({
            "at_s": (under_way.end - outcome.origin).as_secs_f64(),
            "took_ms": (under_way.end - under_way.start).as_secs_f64() * 1e3,
        })
    });
    json!({ "count": overdue.len(), "shown": shown.collect::<Vec<_>>() })
}

fn account(tally: &Tally) -> Value {
    let errors: Map<String, Value> = tally
        .errors
        .iter()
        .map(|(error, &count)| (error.to_string(), count.into()))
        .collect();
    let unanswered: Map<String, Value> = tally
        .unanswered
        .iter()
        .map(|(loss, &count)| (loss.to_string(), count.into()))
        .collect();
    json!({
        "sent": tally.sent,
        "ok": tally.ok,
        "over_limit": tally.over_limit,
        "errors": errors,
        "unanswered": unanswered,
        "unsent": tally.unsent,
        "overdue": tally.overdue.len(),
        "resent": tally.resent,
    })
}

impl Outcome {
    fn per_second(&self) -> f64 {
        self.answered as f64 / self.span.as_secs_f64()
    }

    fn per_request(&self, us: u64) -> f64 {
        us as f64 / self.answered.max(1) as f64
    }

    /// CPU time of all processes that were asked about; nothing if none were, or one of them ended.
    fn cpu_sum_us(&self) -> Option<u64> {
        let sum = self
            .processes
            .iter()
            .map(|process| process.cpu_us)
            .sum::<Option<u64>>();
        sum.filter(|_| !self.processes.is_empty())
    }
}

fn quantiles(histogram: &Histogram<u64>) -> Value {
    let mut named: Map<String, Value> = QUANTILES
        .iter()
        .map(|&(name, quantile)| {
            (
                name.to_owned(),
                in_ms(histogram.value_at_quantile(quantile)).into(),
            )
        })
        .collect();
    named.insert("max".to_owned(), in_ms(histogram.max()).into());
    named.into()
}

fn in_words(histogram: &Histogram<u64>) -> String {
    let mut words = String::new();
    for (name, quantile) in QUANTILES {
        words += &format!(
            "{name} {:.3}  ",
            in_ms(histogram.value_at_quantile(quantile))
        );
    }
    words + &format!("max {:.3}", in_ms(histogram.max()))
}

fn in_ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn in_mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {noun}s")
    }
}
