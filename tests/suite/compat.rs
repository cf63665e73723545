//! Responses to callers: those of envoyproxy/ratelimit, and Tollgate's where it differs.
//!
//! The cases are data: `cases/` has a file for each theme, and each case has a title, rules, and
//! steps with expected responses. Those of themes that envoyproxy/ratelimit has too were recorded
//! from it; `defects.yaml` has the differences with their reasons. Requests and responses pass the
//! gRPC service in this process as encoded messages. The clock is at [`START`] until a step changes
//! it, so that every reset is exact.
//!
//! ```yaml
//! theme: greetings                           # at the top: what all cases of the file share
//! domain: hello
//! settings: {QUOTA_MODE: 'true'}             # as the environment has them
//! rules: "domain: hello …"                   # the text of rules.yaml; or a map of files; or `rules_file`, one of this repository,
//!                                            # `but` with other texts in it
//! cases:
//!   - case: the third of two is rejected      # with domain, settings and rules of its own, if need be
//!     steps:
//!       - ask: ['user=ann,path=/']           # descriptors
//!         times: 3
//!         codes: 2 OK, 1 OVER_LIMIT
//!         answer: OVER_LIMIT                 # the last one
//!         statuses: [OVER_LIMIT 2/HOUR 0 left 2800s]
//! ```
//!
//! A descriptor with more than entries is a map with `entries` (text, or pairs), `limit` (`5/HOUR`),
//! `hits` and `give_back`. A call may have `hits` and a `domain`. Its response may also have
//! `headers`, `request_headers`, a `body` and `metadata`, and be `held` for a time, or be an `error`
//! with its `message`. `decided` is the part of the metadata that only Tollgate has.
//!
//! Other steps set the clock (`wait: 10s`, or `at:` a second since the epoch), load new `rules`
//! (which may be `rejected`), or read: `counts` are the counters of rules by name, `statsd` and
//! `metrics` every counter that is not 0, under its statsd name or as Prometheus scrapes it;
//! `counters` is the number of counters in the store; `rlconfig` the lines of that page.
//!
//! A case of invalid rules has `rejected`: every problem, with `text`, `line`, `column` and `hint`,
//! or its whole output as one text. A case of rules with `warnings` lists them the same way. A case
//! that differs from envoyproxy/ratelimit has the number of its `defect` and why the response here
//! is `better`. `metric_series_max` sets that bound.
//!
//! What a case does not mention must be absent, but for `decided`, which is absent if it is null.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use clap::{Args as _, Command, FromArgMatches as _};
use http::HeaderMap;
use prost::Message as _;
use prost_types::value::Kind;
use serde_json::{Map, Value, json};

use tollgate::api::call_metrics::RlsMetrics;
use tollgate::api::decode;
use tollgate::api::rls::Rls;
use tollgate::app::settings::Settings;
use tollgate::base::parse;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::base::time::{Clock, MICROS_PER_SECOND, ManualClock, Span, Time};
use tollgate::limiter::fallback::Fallback;
use tollgate::limiter::{self, Observers, Parts};
use tollgate::operator::observe::feed::OverLimitFeed;
use tollgate::operator::observe::redact::Values;
use tollgate::rules::config::error::Finding;
use tollgate::rules::config::{self, CompileOptions, Source, yaml};
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::rules::{KeyFormat, LiveRules};
use tollgate::store::Backend;
use tollgate::store::memory::Counters;
use tollgate::telemetry::metric::Metrics;
use tollgate::telemetry::traces::Traces;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/cases");
/// Far from every edge: 40 s of the minute are left, 2,800 s of the hour, 6,400 s of the day,
/// 92,800 s of the week, 352,000 s of the month and 2,944,000 s of the year.
const START: Time = Time::from_micros(1_700_000_000 * MICROS_PER_SECOND);
/// What steps look at, but for `ask`, which compares several things.
const LOOKS: [&str; 5] = ["counts", "statsd", "metrics", "counters", "rlconfig"];
/// How lines of the page begin that are about calls, about responses, which envoyproxy/ratelimit does
/// not count, and about the store.
const NOT_OF_RULES: [&str; 8] = [
    "#",
    "ratelimit_service_total_requests",
    "ratelimit_service_response_time",
    "tollgate_responses_",
    "tollgate_unmatched_",
    "tollgate_rule_admitted_",
    "tollgate_memory_",
    "tollgate_store_verdicts_total",
];
/// What a file may say, and what a case may say besides.
const SHARED_KEYS: [&str; 7] =
    ["theme", "cases", "domain", "settings", "rules", "rules_file", "but"];
const CASE_KEYS: [&str; 7] =
    ["case", "metric_series_max", "rejected", "warnings", "defect", "better", "steps"];

/// A test for each file.
macro_rules! themes {
    ($($theme:ident),* $(,)?) => {
        const THEMES: &[&str] = &[$(stringify!($theme)),*];
        $(#[test] fn $theme() { hold(stringify!($theme)); })*
    };
}

themes! {
    all_or_nothing, bucket, calendar_month, chain, concurrency, defaults, defects, depth, dimensions, dynamic_metadata, enforce_percent, errors, give_back, headers, hits, invalid_budgets, invalid_rules, leaky_bucket, leased, matching,
    merge, metric_names, near_limit, oddities, over_limit, override_limit, queue, quota, reload, replaces, rlconfig, shadow,
    sliding_log, sliding_window, standard_headers, tollgate_block, units, unlimited, wildcards,
}

/// What a file, a case or a step says, by key.
type Fields = Map<String, Value>;
/// Texts of rules by file.
type Rules = Map<String, Value>;

struct Case {
    title: String,
    /// Of requests that name none.
    domain: Option<Value>,
    settings: Fields,
    rules: Rules,
    fields: Fields,
}

/// A service without listeners.
struct World {
    rls: Rls,
    rules: Arc<LiveRules>,
    options: CompileOptions,
    counters: Arc<Counters>,
    metrics: Metrics,
    clock: ManualClock,
}

#[test]
fn every_file_of_cases_is_a_test() {
    let files = fs::read_dir(CASES).expect("the directory of cases exists");
    let name = |file: fs::DirEntry| file.file_name().to_string_lossy().replace(".yaml", "");
    let mut files: Vec<String> = files.map(|file| name(file.expect("it can be read"))).collect();
    files.sort();
    assert_eq!(files, THEMES);
}

#[test]
fn every_defect_says_why_ours_is_better() {
    for Case { title, fields, .. } in cases("defects") {
        assert!(fields.contains_key("defect") && fields.contains_key("better"), "{title}");
    }
}

/// Runs a file, and panics with everything that differs.
fn hold(theme: &str) {
    let cases = cases(theme);
    let failures: Vec<String> = cases.iter().filter_map(Case::failure).collect();
    let (failed, all, texts) = (failures.len(), cases.len(), failures.join("\n"));
    assert!(failures.is_empty(), "\n{texts}\n{failed} of {all} cases differ");
    println!("{theme}: {all} cases");
}

// Running.

impl Case {
    /// What differs, if anything.
    fn failure(&self) -> Option<String> {
        let described = |place: &str, lines: Vec<String>| {
            (!lines.is_empty())
                .then(|| format!("{}: {place}\n    {}", self.title, lines.join("\n    ")))
        };
        let max = self.fields.get("metric_series_max").map(number);
        let max = max.map_or(METRIC_SERIES_MAX, |max| usize::try_from(max).expect("few"));
        let world = World::new(&settings(&self.settings), max);
        let (expected, got) = match world.load(&self.rules) {
            Ok(warnings) => ("warnings", warnings),
            Err(problems) => ("rejected", problems),
        };
        let differing = ["warnings", "rejected"].into_iter().flat_map(|key| {
            let found = if key == expected { &got[..] } else { &[] };
            findings_differ(list(&self.fields, key), found)
        });
        if let Some(text) = described("rules", differing.collect()) {
            return Some(text);
        }
        // Its clock goes on by itself to whatever is waited for.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime needs nothing");
        let mut steps = list(&self.fields, "steps").iter().enumerate();
        steps.find_map(|(index, step)| {
            let step = step.as_object().expect("a step is a map");
            let (expected, got) = runtime.block_on(world.run(self.domain.as_ref(), step));
            let place = format!("step {}, {}", index + 1, json!(step));
            described(&place, differences("", &json!(expected), &json!(got)))
        })
    }
}

impl World {
    fn new(settings: &Settings, metric_series_max: usize) -> Self {
        let metrics = Metrics::new();
        let stats = StatsTable::new(metric_series_max, &metrics);
        let options = CompileOptions {
            key_format: KeyFormat::Safe,
            ..settings.rules.reading.options(stats.clone())
        };
        let rules = Arc::new(LiveRules::default());
        let counters =
            Arc::new(Counters::new(settings.store.memory.memory_bytes_max, "store", &metrics));
        let backend = Backend::Memory(counters.clone());
        let (now, clock) = Clock::manual(START);
        let fallback = Fallback::new(settings.limiter.on_store_error, &metrics);
        let feed = OverLimitFeed::new("a", Values::Clear, &metrics);
        let observers = Observers::new(stats, feed, &settings.limiter, &now, &metrics);
        let parts = Parts {
            rules: rules.clone(),
            backend,
            fallback,
            clock: now,
            settings: settings.limiter.clone(),
            observers: Some(Arc::new(observers)),
        };
        let limiter = Arc::new(limiter::Shared::new(parts, &metrics)).open();
        Self {
            rls: Rls::new(limiter, RlsMetrics::new(&metrics), Traces::default()),
            rules,
            options,
            counters,
            metrics,
            clock,
        }
    }

    /// Puts rules in force, and gives the warnings; or leaves those that are, and gives the
    /// problems.
    fn load(&self, rules: &Rules) -> Result<Vec<Finding>, Vec<Finding>> {
        let source = |(name, text): (&String, &Value)| Source {
            name: name.as_str().into(),
            path: name.as_str().into(),
            text: text.as_str().unwrap_or_default().into(),
        };
        let loaded = config::load(&rules.iter().map(source).collect::<Vec<_>>(), &self.options)?;
        self.rules.replace(loaded.rules);
        Ok(loaded.warnings)
    }

    /// Does a step. Returns what it expects and what there is.
    async fn run(&self, domain: Option<&Value>, step: &Fields) -> (Fields, Fields) {
        let mut expected = step.clone();
        let mut got = Fields::new();
        if let Some(descriptors) = expected.remove("ask") {
            let domain = expected.remove("domain").or(domain.cloned());
            let hits = expected.remove("hits").as_ref().map_or(0, number);
            let request = RateLimitRequest {
                domain: text(&domain.expect("a domain")).into(),
                descriptors: array(&descriptors).iter().map(descriptor).collect(),
                hits_addend: u32::try_from(hits).expect("it fits"),
            };
            let times = expected.remove("times");
            got = self.ask(&request, times.as_ref().map(number)).await;
            match expected.get("decided") {
                // envoyproxy/ratelimit has none.
                None => drop(got.remove("decided")),
                Some(Value::Null) => drop(expected.remove("decided")),
                Some(_) => {}
            }
        } else if let Some(span) = expected.remove("wait") {
            self.clock.advance(parse::duration(text(&span)).expect("a time"));
        } else if let Some(secs) = expected.remove("at") {
            self.clock.set(Time::from_micros(number(&secs) * MICROS_PER_SECOND));
        } else if let Some(rules) = rules(&mut expected) {
            if let Err(problems) = self.load(&rules) {
                let headlines = problems.iter().map(Finding::headline).collect();
                got.insert("rejected".to_owned(), headlines);
            }
        } else {
            let looks = LOOKS.into_iter().filter(|key| step.contains_key(*key));
            got.extend(looks.map(|key| (key.to_owned(), self.look(key))));
        }
        (expected, got)
    }

    async fn ask(&self, request: &RateLimitRequest, times: Option<u64>) -> Fields {
        let mut codes: Vec<(String, u64)> = Vec::new();
        let mut last = Map::new();
        for _ in 0..times.unwrap_or(1) {
            let message = request.encode_to_vec();
            let (mut query, _) = decode::query(&message).expect("it was encoded here");
            let began = tokio::time::Instant::now();
            last = match self.rls.decide(&HeaderMap::new(), &mut query).await {
                Ok(response) => {
                    let response = response.encode_to_vec();
                    answer(&RateLimitResponse::decode(&*response).expect("it was encoded here"))
                }
                Err(status) => Map::from_iter([
                    ("error".to_owned(), json!(code_name(status.code()))),
                    ("message".to_owned(), json!(status.message())),
                ]),
            };
            let held = Span::from(began.elapsed());
            if held > Span::ZERO {
                last.insert("held".to_owned(), json!(held.to_string()));
            }
            let code = last.get("answer").or(last.get("error")).map_or("", text);
            match codes.last_mut() {
                Some((kept, count)) if kept == code => *count += 1,
                _ => codes.push((code.to_owned(), 1)),
            }
        }
        if times.is_some() {
            let codes: Vec<String> =
                codes.into_iter().map(|(code, count)| format!("{count} {code}")).collect();
            last.insert("codes".to_owned(), json!(codes.join(", ")));
        }
        last
    }

    fn look(&self, at: &str) -> Value {
        match at {
            "counts" => {
                let mut counts = Map::new();
                for (name, value) in self.statsd() {
                    let path = name.strip_prefix("ratelimit.service.rate_limit.");
                    if let Some((rule, count)) = path.and_then(|path| path.rsplit_once('.')) {
                        counts.entry(rule).or_insert_with(|| json!({}))[count] = value;
                    }
                }
                Value::Object(counts)
            }
            "statsd" => Value::Object(self.statsd()),
            "metrics" => Value::Object(self.prometheus()),
            "counters" => json!(self.counters.len()),
            _ => {
                let dump = self.rules.load().as_ref().map(|rules| rules.dump());
                dump.unwrap_or_default().lines().collect()
            }
        }
    }

    fn statsd(&self) -> Map<String, Value> {
        let text = self.metrics.lines();
        // The number of calls is as many as the case makes, and would only be in the way.
        let lines = text.lines().filter_map(|line| line.rsplit_once(": "));
        counters(lines.filter(|(name, _)| !name.starts_with("ratelimit_server.")))
    }

    fn prometheus(&self) -> Map<String, Value> {
        let text = self.metrics.page();
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        counters(
            lines.filter(|(name, _)| !NOT_OF_RULES.iter().any(|start| name.starts_with(start))),
        )
    }
}

/// Those that are not zero, by name.
fn counters<'l>(lines: impl Iterator<Item = (&'l str, &'l str)>) -> Map<String, Value> {
    let parsed = lines.map(|(name, value)| {
        (name.to_owned(), value.parse::<f64>().expect("a counter is a number"))
    });
    parsed.filter(|(_, value)| *value > 0.0).map(|(name, value)| (name, json!(value))).collect()
}

/// Parses settings by the names of their environment variables.
fn settings(wanted: &Fields) -> Settings {
    // The environment of the test run is no part of a case.
    let command = Settings::augment_args(Command::new("case"));
    let mut arguments = vec!["case".to_owned()];
    for (name, value) in wanted {
        let flag = command
            .get_arguments()
            .find(|argument| argument.get_env() == Some(OsStr::new(name)))
            .and_then(clap::Arg::get_long)
            .unwrap_or_else(|| panic!("no setting is named {name}"));
        arguments.push(format!("--{flag}={}", text(value)));
    }
    let command = command.mut_args(|argument| argument.env(None::<&'static str>));
    let matches = command.get_matches_from(arguments);
    Settings::from_arg_matches(&matches).expect("they are valid")
}

// What is compared, as text that can be read and written.

fn answer(response: &RateLimitResponse) -> Map<String, Value> {
    let mut answer = Map::new();
    answer.insert("answer".to_owned(), json!(response.overall_code().as_str_name()));
    answer.insert("statuses".to_owned(), response.statuses.iter().map(status_text).collect());
    for (name, headers) in [
        ("headers", &response.response_headers_to_add),
        ("request_headers", &response.request_headers_to_add),
    ] {
        let texts = headers.iter().map(|header| format!("{}: {}", header.key, header.value));
        if !headers.is_empty() {
            answer.insert(name.to_owned(), texts.collect());
        }
    }
    if !response.raw_body.is_empty() {
        answer.insert("body".to_owned(), json!(String::from_utf8_lossy(&response.raw_body)));
    }
    if let Some(metadata) = &response.dynamic_metadata {
        let mut metadata = object(metadata);
        let decided = metadata.as_object_mut().and_then(|fields| fields.remove("tollgate"));
        answer.extend(decided.map(|decided| ("decided".to_owned(), decided)));
        answer.insert("metadata".to_owned(), metadata);
    }
    if response.quota.is_some() {
        answer.insert("message".to_owned(), json!(format!("{response:?}")));
    }
    answer
}

/// `OK`, `OK unlimited`, or `OVER_LIMIT 3/HOUR 0 left 2800s named vip`.
fn status_text(status: &DescriptorStatus) -> String {
    let mut text = status.code().as_str_name().to_owned();
    match &status.current_limit {
        Some(limit) => {
            let (requests, unit) = (limit.requests_per_unit, limit.unit().as_str_name());
            let _ = write!(text, " {requests}/{unit} {} left", status.limit_remaining);
        }
        None if status.limit_remaining == u32::MAX => text += " unlimited",
        None if status.limit_remaining > 0 => text += &format!(" {} left", status.limit_remaining),
        None => {}
    }
    if let Some(duration) = &status.duration_until_reset {
        assert_eq!(duration.nanos, 0, "whole seconds only");
        let _ = write!(text, " {}s", duration.seconds);
    }
    if let Some(limit) = status.current_limit.as_ref().filter(|limit| !limit.name.is_empty()) {
        let _ = write!(text, " named {}", limit.name);
    }
    assert_eq!(status.quota, None, "it is not used");
    assert!(Code::try_from(status.code).is_ok(), "codes have names");
    text
}

fn object(structure: &prost_types::Struct) -> Value {
    structure.fields.iter().map(|(name, inner)| (name.clone(), value(inner))).collect()
}

fn value(wire: &prost_types::Value) -> Value {
    match &wire.kind {
        None => json!("a value without a kind, which JSON cannot say"),
        Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => json!(flag),
        Some(Kind::NumberValue(number)) if number.is_finite() => json!(number),
        Some(Kind::NumberValue(number)) => {
            json!(format!("the number {number}, which JSON cannot say"))
        }
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
        Some(Kind::StructValue(inner)) => object(inner),
    }
}

fn code_name(code: tonic::Code) -> String {
    match code {
        tonic::Code::Unknown => "UNKNOWN".to_owned(),
        tonic::Code::InvalidArgument => "INVALID_ARGUMENT".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Findings against what is expected of each: a map of what to look at, or the whole of what an
/// operator sees.
fn findings_differ(expected: &[Value], found: &[Finding]) -> Vec<String> {
    let described = |(index, finding): (usize, &Finding)| {
        if let Some(Value::String(_)) = expected.get(index) {
            return json!(format!("{finding}\n"));
        }
        let (line, column) = finding.location.map(|at| (at.line, at.column)).unzip();
        let mut described = json!({"text": finding.headline(), "line": line, "column": column});
        if let Some(hint) = &finding.hint {
            described["hint"] = json!(hint);
        }
        described
    };
    let described: Value = found.iter().enumerate().map(described).collect();
    differences("", &Value::Array(expected.to_vec()), &described)
}

/// A line for every leaf that differs. Numbers are equal if their values are.
fn differences(place: &str, expected: &Value, got: &Value) -> Vec<String> {
    let described =
        |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let below = |place: String, expected: Option<&Value>, got: Option<&Value>| match (expected, got)
    {
        (Some(expected), Some(got)) => differences(&place, expected, got),
        _ => vec![format!("{place}: expected {}, got {}", described(expected), described(got))],
    };
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            let names =
                expected.keys().chain(got.keys().filter(|name| !expected.contains_key(*name)));
            let place = |name: &String| {
                if place.is_empty() { name.clone() } else { format!("{place}.{name}") }
            };
            names.flat_map(|name| below(place(name), expected.get(name), got.get(name))).collect()
        }
        (Value::Array(expected), Value::Array(got)) => {
            let indexes = 0..expected.len().max(got.len());
            indexes
                .flat_map(|index| {
                    below(format!("{place}[{index}]"), expected.get(index), got.get(index))
                })
                .collect()
        }
        (Value::Number(expected), Value::Number(got)) if expected.as_f64() == got.as_f64() => {
            Vec::new()
        }
        _ if expected == got => Vec::new(),
        _ => vec![
            format!("{place}: expected {expected}, got {got}").trim_start_matches(": ").to_owned(),
        ],
    }
}

// Reading.

fn cases(theme: &str) -> Vec<Case> {
    let path = format!("{CASES}/{theme}.yaml");
    let document = fs::read_to_string(&path).expect("the file exists");
    let document = yaml::read(&document).unwrap_or_else(|error| panic!("{path}: {error}"));
    // A repeated key would hide a step or a case.
    if let Some(note) = document.warnings.first() {
        panic!("{path}:{}: {}", note.location.line, note.text);
    }
    let Some(yaml::Kind::Map(pairs)) = document.root.map(|root| root.kind) else {
        panic!("{path}: no map")
    };
    let mut shared = config::metadata::to_json(pairs.iter());
    assert_keys(&path, &shared, &[&SHARED_KEYS]);
    let shared_rules = rules(&mut shared);
    let case = |case: &Value| {
        let mut fields = case.as_object().expect("a case is a map").clone();
        assert_keys(&path, &fields, &[&SHARED_KEYS, &CASE_KEYS]);
        let mut settings = shared.get("settings").map_or(Fields::new(), map);
        settings.extend(fields.get("settings").map_or(Fields::new(), map));
        Case {
            title: format!("{theme}: {}", text(&fields["case"])),
            domain: fields.get("domain").or(shared.get("domain")).cloned(),
            settings,
            rules: rules(&mut fields).or(shared_rules.clone()).expect("rules"),
            fields,
        }
    };
    let cases: Vec<Case> = list(&shared, "cases").iter().map(case).collect();
    assert!(!cases.is_empty(), "{path}: no cases");
    for case in &cases {
        let does_nothing =
            ["steps", "rejected"].iter().all(|key| list(&case.fields, key).is_empty());
        assert!(!does_nothing, "{}: no steps", case.title);
    }
    cases
}

/// Takes `rules`: one text, or several by name; or `rules_file`, one of this repository, `but` with
/// other texts in it.
fn rules(fields: &mut Fields) -> Option<Rules> {
    if let Some(path) = fields.remove("rules_file") {
        let path = text(&path);
        let mut rules = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        for (there, instead) in fields.remove("but").as_ref().map_or(Fields::new(), map) {
            assert!(rules.contains(&there), "`{there}` is not in {path}");
            rules = rules.replace(&there, text(&instead));
        }
        return Some(Rules::from_iter([(path.to_owned(), json!(rules))]));
    }
    Some(match fields.remove("rules")? {
        Value::Object(files) => files,
        rules => Rules::from_iter([("rules.yaml".to_owned(), rules)]),
    })
}

fn descriptor(wanted: &Value) -> RateLimitDescriptor {
    if let Value::String(text) = wanted {
        return RateLimitDescriptor { entries: entries(text), ..RateLimitDescriptor::default() };
    }
    let fields = map(wanted);
    assert_keys("a descriptor", &fields, &[&["entries", "limit", "hits", "give_back"]]);
    let entries = match &fields["entries"] {
        Value::String(text) => entries(text),
        // For keys and values that have a comma or a sign of equality in them.
        pairs => array(pairs).iter().map(|pair| entry(text(&pair[0]), text(&pair[1]))).collect(),
    };
    RateLimitDescriptor {
        entries,
        limit: fields.get("limit").map(|limit| override_of(text(limit))),
        hits_addend: fields.get("hits").map(number),
        is_negative_hits: fields.get("give_back").is_some_and(|flag| *flag == true),
    }
}

/// `key=value,key=value`; nothing is no entries.
fn entries(text: &str) -> Vec<Entry> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(key, value)| entry(key, value)).collect()
}

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

/// `5/HOUR`, or with the number of a unit, `5/99`.
fn override_of(text: &str) -> RateLimitOverride {
    let (requests, unit) = text.split_once('/').expect("requests/unit");
    // The type of the field has no week, but its number is that of the answer's.
    let named = || Unit::from_str_name(unit).map(i32::from).expect("a unit");
    RateLimitOverride {
        requests_per_unit: requests.parse().expect("a number of requests"),
        unit: unit.parse().unwrap_or_else(|_| named()),
    }
}

/// Any other key is a typo. A step's would differ from what there is.
fn assert_keys(place: &str, fields: &Fields, known: &[&[&str]]) {
    for key in fields.keys() {
        assert!(known.concat().contains(&&**key), "{place}: unknown key `{key}`");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a whole number, not {value}"))
}

fn map(value: &Value) -> Fields {
    value.as_object().unwrap_or_else(|| panic!("a map, not {value}")).clone()
}

/// Empty if it is not there.
fn list<'f>(fields: &'f Fields, key: &str) -> &'f [Value] {
    fields.get(key).map_or(&[], |list| array(list))
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list, not {value}"))
}
