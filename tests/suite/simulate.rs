//! What `tollgate simulate` prints, and that each picture of the docs is in a page.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{sample, tollgate, write};

/// Patterns, faster and slower than the limit, on edges of windows and off them.
const TRAFFICS: &str = "steady,double,bursty,3,7.5,11,23.75,100,999.999";

fn simulate(arguments: &str) -> String {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let ran = tollgate(&[&["simulate"], &words[..]].concat());
    assert_eq!(ran.code, Some(0), "{arguments}: {ran:?}");
    ran.stdout
}

fn scenes(arguments: &str) -> Vec<Value> {
    let output = simulate(&format!("{arguments} --format json"));
    let output: Value = serde_json::from_str(&output).expect("it is JSON");
    output["scenes"].as_array().expect("there are scenes").clone()
}

/// The runs of all scenes, each with the traffic that it had.
fn runs(arguments: &str) -> Vec<(String, Value)> {
    let of_scene = |scene: Value| {
        let traffic = scene["traffic"].as_str().expect("traffic has a name").to_owned();
        let runs = scene["runs"].as_array().expect("there are runs").clone();
        runs.into_iter().map(move |run| (traffic.clone(), run))
    };
    scenes(arguments).into_iter().flat_map(of_scene).collect()
}

fn number(run: &Value, name: &str) -> u64 {
    run[name].as_u64().unwrap_or_else(|| panic!("{name} is a number in {run}"))
}

#[test]
fn twice_the_rate_of_a_bucket_is_half_admitted_after_the_burst() {
    let output = simulate(
        "--requests 10 --unit second --algorithm token_bucket --traffic double --calls 10000",
    );
    let row = output.lines().find(|line| line.starts_with("token_bucket")).expect("it has a row");
    let numbers: Vec<&str> = row.split_whitespace().collect();
    let expected = ["token_bucket,", "burst", "10", "5009", "4991", "19", "19"];
    assert_eq!(numbers, expected, "{output}");
}

/// Options, and the labels of the limits that they make.
const LABELS: [(&str, &[&str]); 2] = [
    (
        "--algorithm all --hold 1s",
        &[
            "fixed_window",
            "sliding_window",
            "sliding_window, 10 buckets",
            "sliding_log",
            "token_bucket, burst 10",
            "leaky_bucket, burst 1",
            "concurrency, lease 30 s",
        ],
    ),
    (
        "--algorithm leaky_bucket --max-wait 450ms --over-limit-hits count",
        &["leaky_bucket, burst 1, queue 450 ms, count"],
    ),
];

#[test]
fn labels_distinguish_limits_and_every_call_is_admitted_or_over_limit() {
    for (options, labels) in LABELS {
        let runs = runs(&format!("--requests 10 --calls 1000 --traffic double {options}"));
        let shown: Vec<&Value> = runs.iter().map(|(_, run)| &run["label"]).collect();
        assert_eq!(shown, labels);
        for (_, run) in &runs {
            assert_eq!(number(run, "admitted") + number(run, "over_limit"), 1_000, "{run}");
        }
    }
}

#[test]
fn runs_last_several_periods_and_note_limits_never_exceeded() {
    const PERIOD_US: u64 = 3_600_000_000;
    let scene = |arguments: &str| scenes(arguments)[0].clone();
    // 10,000 calls are over before the first burst is.
    let long = scene("--requests 20000 --unit hour --algorithm sliding_log");
    assert!(
        number(&long, "lasted_us") > 4 * PERIOD_US && number(&long["runs"][0], "over_limit") > 0,
        "{long}"
    );
    assert_eq!(long["note"], Value::Null);
    let short = "--requests 20000 --unit hour --calls 10000 --algorithm sliding_log";
    let note = "no call was over limit; all requests are within one period (1 h): increase --calls, or use a faster --traffic";
    assert_eq!(scene(short)["note"], note);
    assert!(simulate(short).contains(&format!("\nnote: {note}\n")), "{}", simulate(short));
    // More calls than a run may have would be needed.
    assert_eq!(
        number(&scene("--requests 4294967295 --algorithm fixed_window --traffic steady"), "calls"),
        1_000_000
    );
    let some =
        scene("--requests 10 --traffic steady --algorithm token_bucket,leaky_bucket,sliding_log");
    assert_eq!(some["note"], "no call was over limit");
    let some = scene(
        "--requests 20000 --unit hour --calls 10000 --algorithm fixed_window,leaky_bucket,sliding_log",
    );
    assert!(
        some["note"].as_str().is_some_and(|note| note
            .starts_with("no call was over limit of: fixed_window; sliding_log; all requests are")),
        "{some}"
    );
}

#[test]
fn queues_release_within_max_wait() {
    for (traffic, run) in runs(&format!(
        "--requests 10 --algorithm leaky_bucket --max-wait 300ms --traffic {TRAFFICS}"
    )) {
        assert!(number(&run, "wait_max_us") <= 300_000, "{traffic}: {run}");
        assert_eq!(number(&run, "queued") > 0, number(&run, "wait_max_us") > 0, "{traffic}");
    }
}

#[test]
fn concurrency_bounds_requests_at_once_and_releases_slots() {
    let output =
        runs(&format!("--requests 10 --algorithm concurrency --hold 800ms --traffic {TRAFFICS}"));
    for (traffic, run) in &output {
        assert!(number(run, "most_at_once") <= 10, "{traffic}: {run}");
    }
    // 8 are under way at 10 a second, and 16 would be at 20.
    let of = |scene: usize, name| number(&output[scene].1, name);
    assert_eq!((of(0, "admitted"), of(0, "most_at_once")), (10_000, 8));
    assert_eq!(of(1, "most_at_once"), 10);
    assert!(of(1, "over_limit") > 0);
    // A lease that is shorter than calls forgets holders that are still at work.
    let forgotten =
        runs("--requests 10 --algorithm concurrency --hold 800ms --lease 100ms --traffic double");
    let run = &forgotten[0].1;
    assert_eq!((number(run, "over_limit"), number(run, "most_at_once")), (0, 16));
}

#[test]
fn limits_of_rules_can_be_compared_with_others() {
    let directory = TempDir::new().expect("a temporary directory");
    let rules = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 30}
    metadata: {tollgate: {algorithm: token_bucket, burst: 5, unit_multiplier: 2}}
  - key: partner
    rate_limit: {unlimited: true}
  - key: report
    rate_limit: {unit: second, requests_per_unit: 2}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 500ms}}
  - key: backend
    descriptors:
      - key: request_id
        rate_limit: {unit: second, requests_per_unit: 3}
        metadata: {tollgate: {algorithm: concurrency, lease_by: request_id, lease: 10s}}
";
    write(&directory.path().join("rules.yaml"), rules);
    let path = directory.path().display();
    let met = format!("{path} shop user=ann");
    let output = simulate(&met);
    assert!(
        output.starts_with(&format!(
            "shop.user at {path}/rules.yaml:3: 30 per 2 min, token_bucket, burst 5,"
        )),
        "{output}"
    );
    assert!(output.contains("most in any 2 min"), "{output}");

    let labels: Vec<Value> = runs(&format!("{met} --algorithm fixed_window,token_bucket"))
        .into_iter()
        .map(|(_, run)| run["label"].clone())
        .collect();
    let expected = ["token_bucket, burst 5", "fixed_window", "token_bucket, burst 30"];
    assert_eq!(labels, expected);

    let queued = runs(&format!("{path} shop report=x --traffic double --calls 10"));
    assert!(
        number(&queued[0].1, "queued") > 0 && number(&queued[0].1, "wait_max_us") <= 500_000,
        "{queued:?}"
    );
    let held = runs(&format!("{path} shop backend=x request_id=1 --traffic double --hold 1s"));
    assert_eq!(
        (&held[0].1["label"], number(&held[0].1, "most_at_once")),
        (&"concurrency, lease 10 s".into(), 3)
    );

    let wrong = [
        ("backend=x request_id=1", "concurrency needs --hold"),
        ("backend=x request_id=1 --hold 1s --algorithm all", "leave --algorithm out"),
        ("user=ann --burst 3", "the limit is the rule's"),
        ("partner=bob", "its rule is unlimited"),
        ("nobody=eve", "it matches no rule with a limit"),
        ("=", "the entry `=` has no key"),
    ];
    for (descriptor, expected) in wrong {
        let arguments = format!("simulate {path} shop {descriptor}");
        let ran = tollgate(&arguments.split_whitespace().collect::<Vec<_>>());
        ran.assert_failed(64, &[expected]);
    }
}

/// Arguments, and what the message must contain.
const WRONG: &str = "
 => --requests <NUMBER>
config => `config` is not [RULES] DOMAIN KEY=VALUE...
config shop => `config shop` is not
--requests ten => ten
--requests 10 --traffic fast => write steady, double, bursty, or calls a second
--requests 10 --calls 1000001 => write a number from 1 to 1000000 (calls_max)
--requests 10 --calls 0 => write a number from 1 to 1000000 (calls_max)
--requests 10 --hits 0 => not in 1..=4294967296
--requests 10 --unit fortnight => second, minute, hour
--requests 10 --unit-multiplier 0 => unit_multiplier must be at least 1
--requests 10 --algorithm gcra => fixed_window, sliding_window
--requests 10 --algorithm fixed_window --burst 3 => burst is only for buckets
--requests 10 --algorithm sliding_log,token_bucket --burst 0 => a burst of 0
--requests 10 --algorithm concurrency => concurrency needs --hold
--requests 10 --algorithm leaky_bucket --max-wait 2d => max_wait must be from 1ms to 1h
--requests 10 --format svg => text, json
--requests 10 --show 0s => increase --show
--requests 0 => write a number of requests per second, such as 10
--requests 1 --unit year --calls 1000000 => the year 2255
config shop user=ann --requests 10 => cannot be used with
";

#[test]
fn what_makes_no_sense_ends_with_64_and_says_what_to_write() {
    for line in WRONG.lines().skip(1) {
        let (arguments, expected) = line.split_once(" => ").expect("arguments => an error");
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let ran = tollgate(&[&["simulate"], &words[..]].concat());
        assert_eq!(ran.stdout, "", "{line}: {ran:?}");
        ran.assert_failed(64, &[expected]);
    }
}

#[test]
fn extreme_arguments_end_with_output() {
    let extremes = [
        "--requests 4294967295 --unit second --calls 100 --traffic steady,double,bursty,1000000",
        "--requests 1 --unit year --unit-multiplier 100 --calls 2 --traffic bursty --algorithm fixed_window",
        "--requests 0 --traffic 5 --calls 1000",
        "--requests 1 --calls 1 --hits 4294967296",
        "--requests 3 --show 1us --traffic steady --calls 1000",
        "--requests 3 --show 1000000h --traffic steady --calls 1000",
        "--requests 3 --hold 0s --algorithm concurrency --calls 1000",
    ];
    for arguments in extremes {
        for format in ["text", "json"] {
            assert!(!simulate(&format!("{arguments} --format {format}")).is_empty());
        }
    }
}

#[test]
fn every_picture_in_the_docs_is_used() {
    let files = |folder: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(sample(folder)).expect("a folder of the docs");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.is_file()).collect()
    };
    let pages = [files("docs"), vec![sample("benches/README.md").into()]].concat();
    let pages = pages.iter().map(|page| fs::read_to_string(page).expect("a page can be read"));
    let pages: String = pages.collect();
    let pictures = files("docs/images");
    assert!(!pictures.is_empty());
    for path in pictures {
        let name = path.file_name().expect("a file has a name").to_string_lossy();
        let links = ["", "../docs/"].map(|from| format!("]({from}images/{name})"));
        assert!(links.iter().any(|link| pages.contains(link)), "{name} is in no page");
    }
}
