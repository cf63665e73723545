//! The JSON Schemas of `docs/schema`, which editors use: what the compiler accepts is valid, and what it rejects is
//! invalid, except for what a schema cannot express.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use tollgate::rules::config::{self, CompileOptions, Source, metadata, yaml};
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::telemetry::metric::Metrics;

use crate::support::{sample, tollgate_with_stdin};
use crate::{overlay, rule_tests};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SAMPLE_FOLDERS: &[&str] = &["config", "deploy/envoy/rules", "tests/rules"];
/// Blocks of a rule without a number of requests, which the compiler judges.
const BLOCKS: &str = r#"algorithm: concurrency, lease_by: k, lease: 1s, over_limit_hits: drop
algorithm: concurrency, lease_by: k, lease: 1s, over_limit_hits: count
algorithm: token_bucket, burst: 0x10
algorithm: token_bucket, burst: 4294967296
algorithm: token_bucket, burst: "16"
algorithm: sliding_window, buckets: 100
algorithm: sliding_window, buckets: 101
algorithm: token_bucket, consistency: leased, lease: 1s
algorithm: leaky_bucket, consistency: leased
algorithm: token_bucket, on_limit: queue, max_wait: 1s, consistency: leased
consistency: leased, over_limit_hits: drop, on_limit: degrade
consistency: leased, over_limit_hits: count
consistency: fast
consistency: leased, warn_at: 80%
calendar: {time_zone: UTC, first_day: 29}
algorithm: token_bucket, calendar: UTC
limits: [{requests: 9007199254740990, unit: week}], warn_at: [100%, 1%]
limits: [{requests: 9, unit: week, on_limit: degrade}]
limits: [{requests: 9}]
limits: null
algorithm: Token_bucket
algorithm: null
unit_multiplier: 0
on_limit: degrade, request_headers: {x-a: 1.5, X_b: yes}
on_limit: degrade, request_headers: {x-a: null}
on_limit: degrade, request_headers: {x-a: "\u00fc"}
response_body: 404
response_body: {a: b}
enforce_percent: 100
enforce_percent: 5.5
all_or_nothing: true"#;
/// What a random place of valid rules is replaced by, a value of JSON a word.
const VALUES: &str = r#"null true 0 1 101 4294967296 -1 1.5 "" "x" "*" "1" "30s" "0s" "second" "YEAR"
    "token_bucket" "queue" "drop" [] [{}] {} {"name":"x"} {"unlimited":true} {"tollgate":{}}
    {"tollgate":{"algorithm":"sliding_log"}}"#;
const MUTANTS: usize = 2_000;
/// Checks the schemas of the first argument, and prints for each list of files of the second one whether all are valid.
const VALIDATE: &str = r#"
import json, sys
from jsonschema import Draft202012Validator as Validator
schemas, instances = (json.load(open(path)) for path in sys.argv[1:])
for schema in schemas.values():
    assert schema["$schema"] == Validator.META_SCHEMA["$id"]
    Validator.check_schema(schema)
validators = {kind: Validator(schema) for kind, schema in schemas.items()}
print(json.dumps([all(map(validators[kind].is_valid, files)) for kind, files in instances]))
"#;

/// Files with keys or values that the compiler ignores, most of them with a warning. A schema rejects them.
const IGNORED: &[&str] = &[
    "oddities: keys at the wrong level are passed over",
    "oddities: shadow_mode inside rate_limit does nothing",
    "unlimited",
];

/// Invalid files that a schema accepts: why, and their names.
const UNSEEN: &[(&str, &[&str])] = &[
    (
        "items of a list, or files, are compared",
        &[
            "invalid_rules: a key twice",
            "invalid_rules: a key and value twice",
            "invalid_rules: a key and value twice, below",
            "invalid_rules: a pattern twice",
            "invalid_budgets: two limits of one name",
            "invalid_budgets: a limit with the name of the rule",
            "invalid_budgets: two limits with one default name",
            "invalid_budgets: two limits of one period",
            "invalid_budgets: a limit with the period of the rule",
            "[{domain: '*', rules: [{path: own, tollgate: {limits: [{requests: 9, unit: day}, {requests: 8, unit: day}]}}]}]",
            "merge: the same descriptor in two files is refused",
            "merge: below the root nothing is merged",
            "2:73 2 statuses for 1 descriptor: a response has one for each",
            "1:109 the test of line 1 has this name",
            "1:131 time goes back: the step before is at 2026-01-01T00:00:02Z",
        ],
    ),
    (
        "two values are compared",
        &[
            "invalid_rules: a rule that replaces itself",
            "tollgate_block: a lease_by that is another key",
            "tollgate_block: a default lease_by that is not a rule's key",
            "tollgate_block: concurrency of one value",
            "tollgate_block: concurrency of a pattern",
            "tollgate_block: concurrency of a key with a star",
            "invalid_budgets: a calendar of seconds",
            "invalid_budgets: a calendar of minutes",
            "invalid_budgets: a calendar of hours",
            "invalid_budgets: two days of a calendar",
            "invalid_budgets: five months of a calendar",
            "invalid_budgets: a limit with a calendar of hours",
        ],
    ),
    (
        "keys are compared in any case, and by YAML",
        &[
            "tollgate_block: a header twice, but for its case",
            "2:51 the key `user` is on line 2 already: only this one counts",
        ],
    ),
    (
        "an option is missing or does not fit: another block may have what it needs",
        &[
            "tollgate_block: a queue without a max_wait",
            "tollgate_block: a max_wait without a queue",
            "tollgate_block: request_headers without degrade",
            "tollgate_block: concurrency without lease_by",
            "tollgate_block: concurrency without a lease",
            "tollgate_block: concurrency without anything",
            "tollgate_block: all that a rule mixes up is reported at once",
            "tollgate_block: a burst without a bucket",
            "tollgate_block: a block of an unlimited rule",
            "leased: a lease without leased or concurrency",
            "invalid_budgets: a limit of holders",
            "invalid_budgets: a limit with a burst and no bucket",
            "[{domain: '*', rules: [{path: own, tollgate: {limits: [{requests: 9, unit: day, burst: 3}]}}]}]",
            "invalid_budgets: options of the limit that an unlimited rule lacks",
            "leased: a lease beside exact",
            "leased: leased with over-limit hits that count by the domain",
            "[{domain: '*', tollgate: {defaults: {algorithm: token_bucket, on_limit: queue}}}]",
        ],
    ),
    (
        "a bound depends on several numbers, or is that of a duration or of a time",
        &[
            "leased: leased with sub-windows below a second",
            "leased: a lease of hits below 20 ms",
            "leased: a lease of hits of more than half of the window",
            "leased: a lease of hits of more than half of the time in which the bucket refills",
            "tollgate_block: a lease that no number holds",
            "tollgate_block: a lease beyond a hundred years",
            "tollgate_block: a max_wait beyond an hour",
            "tollgate_block: a sliding_window that cannot be counted exactly",
            "tollgate_block: a burst that cannot be counted exactly",
            "tollgate_block: a period beyond a hundred years",
            "tollgate_block: more holders than are remembered",
            "invalid_budgets: an amount that is too large for a bucket",
            "invalid_budgets: more limits in one step than there may be",
            "2:58 the step is after the year 2255, up to which times are exact",
            "2:82 `reset` is in whole seconds, as in responses",
        ],
    ),
    (
        "names of time zones are those of a database",
        &[
            "invalid_budgets: an unknown time zone",
            "invalid_budgets: a city for a time zone",
            "invalid_budgets: a time zone in another case",
            "invalid_budgets: a time zone like no other",
            "[{domain: '*', tollgate: {defaults: {calendar: Europe/Berln}}}]",
        ],
    ),
    (
        "rules above are looked at",
        &[
            "invalid_budgets: parents without a limit above",
            "invalid_budgets: parents at the top",
            "invalid_budgets: concurrency above the end",
            "invalid_budgets: quota_mode on one level",
            "invalid_budgets: leased above the end",
        ],
    ),
    ("editors round a number beyond 64 bits", &["invalid_rules: a value beyond 64 bits"]),
    ("a unit in a request may also be a number of the protocol", &["2:76 `EON` is no unit"]),
];

/// A file, or several that are read together, and whether the compiler accepts them.
struct Sample {
    kind: &'static str,
    name: String,
    texts: Vec<String>,
    is_valid: bool,
}

impl Sample {
    fn new(kind: &'static str, name: &str, texts: &[&str], is_valid: bool) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
            is_valid,
        }
    }
}

/// The files of folders, in order.
fn files(folders: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(Path::new(ROOT).join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            found.extend(path.extension().is_some_and(|end| end == "yaml").then_some(path));
        }
    }
    found.sort();
    found
}

/// A text as a value, with scalars as Tollgate reads them; `None` if it is no YAML.
pub(crate) fn parsed(text: &str) -> Option<Value> {
    let root = yaml::read(text).ok()?.root;
    Some(match root.map(|root| root.kind) {
        None | Some(yaml::Kind::Scalar(_)) => Value::Null,
        Some(yaml::Kind::List(_)) => json!([]),
        Some(yaml::Kind::Map(pairs)) => Value::Object(metadata::to_json(pairs.iter())),
    })
}

/// The rules of the cases of `compat.rs`, anywhere in a file.
fn add_cases(place: &str, value: &Value, samples: &mut Vec<Sample>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| add_cases(place, item, samples)),
        Value::Object(fields) => {
            let title = fields.get("case").and_then(Value::as_str);
            let place = title.map_or_else(|| place.to_owned(), |title| format!("{place}: {title}"));
            let texts: Vec<&str> = match fields.get("rules") {
                Some(Value::Object(files)) => files.values().filter_map(Value::as_str).collect(),
                rules => rules.and_then(Value::as_str).into_iter().collect(),
            };
            if !texts.is_empty() {
                let is_valid = !fields.contains_key("rejected");
                samples.push(Sample::new("rules", &place, &texts, is_valid));
            }
            fields.values().for_each(|field| add_cases(&place, field, samples));
        }
        _ => {}
    }
}

fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for path in files(SAMPLE_FOLDERS) {
        let name = path.display().to_string();
        let kind = if name.ends_with(".test.yaml") { "tests" } else { "rules" };
        let text = fs::read_to_string(&path).expect("a text");
        samples.push(Sample::new(kind, &name, &[&text], true));
    }
    for path in files(&["deploy/istio", "deploy/envoy-gateway"]) {
        let text = fs::read_to_string(&path).expect("a text");
        for manifest in text.split("\n---\n") {
            let manifest = parsed(manifest).expect("YAML");
            let data = manifest["data"].as_object().into_iter().flatten();
            for (name, text) in data.filter_map(|(name, text)| Some((name, text.as_str()?))) {
                let kind = match parsed(text) {
                    Some(value) if value.get("overlays").is_some() => "overlay",
                    Some(value) if value.get("domain").is_some() => "rules",
                    _ => continue,
                };
                samples.push(Sample::new(kind, name, &[text], true));
            }
        }
    }
    for block in BLOCKS.lines() {
        let text = format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: HOUR}}, metadata: {{tollgate: {{{block}}}}}}}]"
        );
        let ran = tollgate_with_stdin(&["check", "-"], &text);
        samples.push(Sample::new("rules", block, &[&text], ran.code == Some(0)));
    }
    for path in files(&["tests/suite/cases"]) {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let cases = parsed(&fs::read_to_string(&path).expect("a text")).expect("YAML");
        add_cases(&name, &cases, &mut samples);
    }
    for text in rule_tests::valid_files() {
        samples.push(Sample::new("tests", &text, &[&text], true));
    }
    for (text, problem) in rule_tests::invalid_files() {
        samples.push(Sample::new("tests", problem, &[&text], false));
    }
    for line in overlay::FINDINGS.trim().lines() {
        let (overlays, expected) = line.split_once(" => ").expect("overlays => a text");
        let text = format!("overlays: {overlays}");
        samples.push(Sample::new("overlay", overlays, &[&text], expected.starts_with("warning")));
    }
    samples
}

/// How editors with yaml-language-server find the schema.
#[test]
fn samples_name_their_schema() {
    for path in files(SAMPLE_FOLDERS) {
        let text = fs::read_to_string(&path).expect("a text");
        let first = text.lines().next().unwrap_or_default();
        let named = first.strip_prefix("# yaml-language-server: $schema=");
        let named = named.unwrap_or_else(|| panic!("{}: {first}", path.display()));
        let named = path.with_file_name(named).canonicalize().expect("a file");
        let kind = if text.contains("\ntests:\n") { "tests" } else { "rules" };
        assert!(named.ends_with(format!("docs/schema/{kind}.json")), "{}", path.display());
    }
}

#[test]
fn schemas_accept_valid_files_and_reject_invalid_ones() {
    let mut samples = samples();
    // An editor reports what is no YAML without a schema.
    let values = |sample: &Sample| {
        let values = sample.texts.iter().map(|text| parsed(text));
        values.collect::<Option<Vec<Value>>>()
    };
    samples.retain(|sample| values(sample).is_some());
    let instances = samples.iter().map(|sample| json!([sample.kind, values(sample)])).collect();
    let verdicts = validated(&instances);
    let unseen = UNSEEN.iter().flat_map(|(_, names)| *names);
    let mut differing: BTreeSet<&str> = IGNORED.iter().chain(unseen).copied().collect();
    let mut wrong = Vec::new();
    for (sample, accepts) in samples.iter().zip(verdicts) {
        let is_listed = differing.remove(&*sample.name);
        if (accepts != sample.is_valid) != is_listed {
            let verb = if accepts { "accepts" } else { "rejects" };
            wrong.push(format!("{} {verb}: {}", sample.kind, sample.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(differing.is_empty(), "no such files: {differing:?}");
}

/// Whether each instance is valid.
fn validated(instances: &Value) -> Vec<bool> {
    let schemas = ["rules", "tests", "overlay"].map(|kind| {
        let path = format!("{ROOT}/docs/schema/{kind}.json");
        let schema = fs::read_to_string(path).expect("a schema");
        (kind.to_owned(), serde_json::from_str(&schema).expect("it is JSON"))
    });
    let folder = TempDir::new().expect("a temporary directory");
    let written =
        [("schemas", &Value::Object(schemas.into_iter().collect())), ("instances", instances)];
    let paths = written.map(|(name, value)| {
        let path = folder.path().join(name);
        fs::write(&path, value.to_string()).expect("a file can be written");
        path
    });
    let ran = Command::new(Path::new(ROOT).join(".tools/json-schema/bin/python3"))
        .args(["-c", VALIDATE])
        .args(paths)
        .output()
        .expect("python3 is in .tools; install it with `make tools`");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).expect("a list of verdicts")
}

/// Whether the compiler accepts rules, and uses all of them.
fn is_valid(rules: &Value) -> bool {
    let source =
        Source { name: "rules".into(), path: "rules".into(), text: rules.to_string().into() };
    let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
    config::load(&[source], &CompileOptions::new(stats)).is_ok_and(|loaded| {
        let mut warnings = loaded.warnings.iter();
        !warnings.any(|warning| warning.text.contains("has no meaning here"))
    })
}

/// Replaces, removes or adds something at a random place.
fn mutate(value: &mut Value, keys: &[String], random: &mut fastrand::Rng) {
    let words: Vec<&str> = VALUES.split_whitespace().collect();
    let other = serde_json::from_str(words[random.usize(..words.len())]).expect("JSON");
    match value {
        Value::Object(fields) if !fields.is_empty() && random.u8(..8) > 0 => {
            let index = random.usize(..fields.len());
            let key = fields.keys().nth(index).expect("a key").clone();
            match random.u8(..8) {
                0 => drop(fields.remove(&key)),
                1 => drop(fields.insert(keys[random.usize(..keys.len())].clone(), other)),
                _ => mutate(&mut fields[&key], keys, random),
            }
        }
        Value::Array(items) if !items.is_empty() && random.u8(..8) > 0 => {
            let index = random.usize(..items.len());
            mutate(&mut items[index], keys, random);
        }
        _ => *value = other,
    }
}

/// The reader and the declarations of keys could disagree about a type or a bound.
#[test]
fn the_schema_rejects_no_rules_that_the_compiler_uses() {
    let samples = samples();
    let seeds = samples.iter().filter(|sample| {
        sample.kind == "rules" && sample.is_valid && !IGNORED.contains(&&*sample.name)
    });
    let seeds: Vec<Value> = seeds.filter_map(|sample| parsed(&sample.texts[0])).collect();
    let schema = fs::read_to_string(sample("docs/schema/rules.json")).expect("a schema");
    let schema: Value = serde_json::from_str(&schema).expect("it is JSON");
    let maps = schema["$defs"].as_object().into_iter().flatten();
    let keys = maps.flat_map(|(_, map)| map["properties"].as_object().into_iter().flatten());
    let keys: Vec<String> = keys.map(|(key, _)| key.clone()).collect();
    let mut random = fastrand::Rng::with_seed(1);
    let mut mutants = Vec::new();
    while mutants.len() < MUTANTS {
        let mut mutant = seeds[random.usize(..seeds.len())].clone();
        mutate(&mut mutant, &keys, &mut random);
        if is_valid(&mutant) {
            mutants.push(mutant);
        }
    }
    let instances = mutants.iter().map(|mutant| json!(["rules", [mutant]]));
    let verdicts = validated(&instances.collect());
    let rejected = mutants.iter().zip(verdicts).filter(|(_, accepts)| !accepts);
    // A unit of an unlimited rule is ignored if it is none.
    let rejected = rejected.map(|(mutant, _)| mutant.to_string());
    let rejected = rejected.filter(|mutant| !mutant.contains(r#""unlimited":true"#));
    let rejected: Vec<String> = rejected.collect();
    assert!(rejected.is_empty(), "{}", rejected.join("\n"));
}
