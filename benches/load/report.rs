//! Prints what a run came to: a table to read, or one JSON object for scripts.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::load::args::{Args, Pick};
use crate::load::run::Outcome;
use crate::load::tally::{Second, Tally};

/// The quantiles that are shown, by the name each has in JSON.
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// More of them are no news, and make a long line.
const LATE_SHOWN_MAX: usize = 100;

/// Prints the outcome in the form that was asked for.
pub fn print(args: &Args, outcome: &Outcome) {
    if args.json {
        println!("{}", in_json(args, outcome));
    } else {
        print_table(args, outcome);
    }
}

fn print_table(args: &Args, outcome: &Outcome) {
    let line = |title: &str, text: String| println!("{title:<12}{text}");
    let connections = &outcome.connections;
    let places = args.in_flight();
    let looped = args.rate.map_or_else(
        || format!("closed loop, {places} in flight"),
        |rate| format!("open loop, {rate} due per second, at most {places} in flight"),
    );
    let picked = match args.pick {
        Pick::Uniform => format!("{} values, uniform", args.keys),
        Pick::Zipf => format!("{} values, zipf {}", args.keys, args.zipf_exponent),
        Pick::One => "one value".to_owned(),
        Pick::New => "each value once".to_owned(),
    };
    let plural = if args.descriptors == 1 { "" } else { "s" };
    line("target", format!("{} on {} connections: {looped}", args.target, args.connections));
    line(
        "asked for",
        format!(
            "domain {}, key {}, {picked}, {} descriptor{plural} per request",
            args.domain,
            args.key.join(" and "),
            args.descriptors
        ),
    );
    let [duration, warmup] = [args.duration, args.warmup].map(|span| span.as_secs_f64());
    line("measured", format!("{duration:.1} s after {warmup:.1} s of warm-up"));
    print_account("requests", &outcome.measured);
    if !outcome.warmup.is_clean() && outcome.warmup.sent + outcome.warmup.unsent > 0 {
        print_account("  warm-up", &outcome.warmup);
    }
    line("per second", format!("{:.0}", outcome.per_second(args)));
    line("latency ms", in_words(&outcome.measured.latency));
    if args.rate.is_some() {
        line("late ms", in_words(&outcome.measured.lateness));
    }
    line(
        "connections",
        format!(
            "{} opened, {} ended by GOAWAY, {} lost, {} attempts failed",
            connections.opened.get(),
            connections.goaways.get(),
            connections.lost.get(),
            connections.failed.get()
        ),
    );
    for (pid, process) in &outcome.processes {
        let cost = process.as_ref().map_or_else(
            || format!("ended ({pid})"),
            |process| {
                let mib = |kib: u64| kib as f64 / 1024.0;
                format!(
                    "{:.2} µs per request by {} ({pid}), {:.1} MiB resident, {:.1} at most",
                    outcome.per_request(process.cpu_us),
                    process.name,
                    mib(process.resident_kib),
                    mib(process.resident_peak_kib)
                )
            },
        );
        line("cpu", cost);
    }
    if let Some(sum) = outcome.cpu_sum_us()
        && outcome.processes.len() > 1
    {
        let cost = outcome.per_request(sum);
        line("cpu", format!("{cost:.2} µs per request in all"));
    }
    let own = outcome.per_request(outcome.own_cpu_us);
    line("cpu", format!("{own:.2} µs per request by this generator"));
    if let Some([asked, over, under]) = outcome.limit_check {
        line(
            "limit check",
            format!(
                "{asked} values asked for: {over} let through too often, {under} refused too early"
            ),
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
    for (why, count) in &tally.unanswered {
        println!("{:<12}{count} unanswered: {why}", "");
    }
    for (count, what) in [
        (tally.unsent, "more were due, but not sent in time"),
        (tally.overdue.len() as u64, "of the answers came after the deadline"),
        (tally.resent, "attempts were refused unprocessed, and repeated"),
    ] {
        if count > 0 {
            println!("{:<12}{count} {what}", "");
        }
    }
}

fn in_json(args: &Args, outcome: &Outcome) -> Value {
    let connections = &outcome.connections;
    let processes = outcome.processes.iter().map(|(pid, process)| {
        let process = process.as_ref();
        json!({
            "pid": pid,
            "name": process.map(|process| &process.name),
            "cpu_us_per_request": process.map(|process| outcome.per_request(process.cpu_us)),
            "resident_kib": process.map(|process| process.resident_kib),
            "resident_peak_kib": process.map(|process| process.resident_peak_kib),
        })
    });
    json!({
        "target": args.target,
        "connections": args.connections,
        "in_flight": args.in_flight(),
        "rate": args.rate,
        "seconds": args.duration.as_secs_f64(),
        "requests": account(&outcome.measured),
        "warmup": account(&outcome.warmup),
        "per_second": outcome.per_second(args),
        "latency_ms": quantiles(&outcome.measured.latency),
        "sent_late_ms": args.rate.map(|_| quantiles(&outcome.measured.lateness)),
        "connections_opened": connections.opened.get(),
        "connections_ended_by_goaway": connections.goaways.get(),
        "connections_lost": connections.lost.get(),
        "connection_attempts_failed": connections.failed.get(),
        "processes": processes.collect::<Vec<_>>(),
        "cpu_us_per_request": outcome.cpu_sum_us().map(|us| outcome.per_request(us)),
        "generator_cpu_us_per_request": outcome.per_request(outcome.own_cpu_us),
        "limit_check": outcome.limit_check.map(|[asked, over, under]| json!({
            "values_asked": asked,
            "over_granted": over,
            "under_granted": under,
        })),
        "timeline": outcome.timeline.as_ref().map(|timeline| timeline.over.iter().map(second).collect::<Vec<_>>()),
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
    let counts = |counts: &BTreeMap<String, u64>| -> Map<String, Value> {
        counts.iter().map(|(name, &count)| (name.clone(), count.into())).collect()
    };
    json!({
        "sent": tally.sent,
        "ok": tally.ok,
        "over_limit": tally.over_limit,
        "errors": counts(&tally.errors),
        "unanswered": counts(&tally.unanswered),
        "unsent": tally.unsent,
        "overdue": tally.overdue.len(),
        "resent": tally.resent,
    })
}

impl Outcome {
    fn per_second(&self, args: &Args) -> f64 {
        self.answered as f64 / args.duration.as_secs_f64()
    }

    fn per_request(&self, us: u64) -> f64 {
        us as f64 / self.answered.max(1) as f64
    }

    /// CPU time of all processes that were asked about; nothing if none were, or one of them ended.
    fn cpu_sum_us(&self) -> Option<u64> {
        let sum = self
            .processes
            .iter()
            .map(|(_, process)| Some(process.as_ref()?.cpu_us))
            .sum::<Option<u64>>();
        sum.filter(|_| !self.processes.is_empty())
    }
}

fn quantiles(histogram: &Histogram<u64>) -> Value {
    let quantile = |(name, quantile): (&str, f64)| {
        let ms = in_ms(histogram.value_at_quantile(quantile));
        (name.to_owned(), ms.into())
    };
    Value::Object(QUANTILES.map(quantile).into_iter().collect())
}

fn in_words(histogram: &Histogram<u64>) -> String {
    QUANTILES
        .map(|(name, quantile)| {
            format!("{name} {:.3}", in_ms(histogram.value_at_quantile(quantile)))
        })
        .join("  ")
}

fn in_ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
