//! What a look-up costs among ten rules and among 100,000, and how long 100,000 take to load.
//!
//! Both trees are asked in turn, in one run: the figures of two runs on a busy machine cannot be
//! compared.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tollgate::base::time::Time;
use tollgate::rules::config::{self, CompileOptions, Source};
use tollgate::rules::plan::{Modes, plan};
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::rules::{Query, RuleSet};
use tollgate::telemetry::metric::Metrics;

const ROUNDS: usize = 31;
const ASKS_PER_ROUND: usize = 20_000;
const MANY: usize = 100_000;

fn main() {
    let (few, _) = load(10);
    let (many, took) = load(MANY);
    println!("loading {MANY} rules: {:.2} s", took.as_secs_f64());

    let mut nanos = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        nanos[0].push(round(&few, 10));
        nanos[1].push(round(&many, MANY));
    }
    let [few, many] = nanos.map(median);
    println!(
        "a plan of one descriptor among 10 rules: {few:.0} ns, among {MANY}: {many:.0} ns, ratio {:.2}",
        many / few
    );
}

/// Rules of three kinds: an exact value, a pattern of a key of its own, and a rule two levels deep.
fn load(count: usize) -> (RuleSet, Duration) {
    let mut text = "domain: bench\ndescriptors:\n".to_owned();
    for number in 0..count {
        text += &match number % 10 {
            0 => format!(
                "- {{key: wild{number}, value: 'a*z', rate_limit: {{unit: hour, requests_per_unit: 5}}}}\n"
            ),
            1 => format!(
                "- {{key: outer, value: v{number}, descriptors: [{{key: inner, rate_limit: {{unit: day, requests_per_unit: 5}}}}]}}\n"
            ),
            _ => format!(
                "- {{key: user, value: v{number}, rate_limit: {{unit: minute, requests_per_unit: 5}}}}\n"
            ),
        };
    }
    let source = Source { name: "bench.yaml".into(), path: "bench.yaml".into(), text: text.into() };
    let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
    let options = CompileOptions::new(stats);
    let begun = now();
    let loaded = config::load(&[source], &options).expect("the bench's rules are right");
    (loaded.rules, begun.elapsed())
}

/// Nanoseconds per plan, asking for rules all over the tree.
#[expect(clippy::cast_precision_loss, reason = "a figure to print")]
fn round(rules: &RuleSet, count: usize) -> f64 {
    // The same number of distinct descriptors for both trees, so that what differs is the tree and
    // not the text in the cache.
    let descriptors: Vec<String> = (0..10)
        .map(|kind| {
            let number = (count - 10 + kind) / 10 * 10 + kind;
            match kind {
                0 => format!("wild{}=abcz", number.min(count - 10)),
                1 => format!("outer=v{number},inner=x"),
                _ => format!("user=v{number}"),
            }
        })
        .collect();
    let queries: Vec<_> = descriptors
        .iter()
        .map(|text| Query::of_entries("bench", text.split(',')).expect("a descriptor"))
        .collect();
    let begun = now();
    for index in 0..ASKS_PER_ROUND {
        let planned =
            plan(rules, &queries[index % queries.len()], Modes::default(), Time::default())
                .expect("no override");
        assert_eq!(planned.request.checks.len(), 1);
        black_box(planned);
    }
    begun.elapsed().as_nanos() as f64 / ASKS_PER_ROUND as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[expect(clippy::disallowed_methods, reason = "a benchmark times")]
fn now() -> Instant {
    Instant::now()
}
