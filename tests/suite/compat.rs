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
//! with its `message`.
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
//! What a case does not mention must be absent.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use clap::{Args as _, Command, FromArgMatches as _};
use prost::Message as _;
use prost_types::value::Kind;
use serde_json::{Map, Value, json};
use tonic::Request;

use tollgate::api::call_metrics::CallMetrics;
use tollgate::api::rls::Rls;
use tollgate::config::error::Finding;
use tollgate::config::{self, CompileOptions, Source, yaml};
use tollgate::limiter::fallback::Fallback;
use tollgate::limiter::{self, Parts};
use tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use tollgate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::rules::{KeyFormat, LiveRules};
use tollgate::settings::Settings;
use tollgate::settings::parse;
use tollgate::store::Backend;
use tollgate::store::memory::Counters;
use tollgate::telemetry::metric::Metrics;
use tollgate::telemetry::traces::Traces;
use tollgate::text::Text;
use tollgate::time::{Clock, MICROS_PER_SECOND, ManualClock, Span, Time};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/cases");
/// Far from every edge: 40 s of the minute are left, 2,800 s of the hour, 6,400 s of the day,
/// 92,800 s of the week, 352,000 s of the month and 2,944,000 s of the year.
const START: Time = Time::from_micros(1_700_000_000 * MICROS_PER_SECOND);
/// What steps look at, but for `ask`, which compares several things.
const LOOKS: [&str; 5] = ["counts", "statsd", "metrics", "counters", "rlconfig"];
const ANSWER_KEYS: [&str; 10] = [
    "codes",
    "answer",
    "statuses",
    "headers",
    "request_headers",
    "body",
    "metadata",
    "held",
    "error",
    "message",
];

/// A test for each file.
macro_rules! themes {
    ($($theme:ident),* $(,)?) => {
        const THEMES: &[&str] = &[$(stringify!($theme)),*];
        $(#[test] fn $theme() { hold(stringify!($theme)); })*
    };
}

themes! {
    all_or_nothing, bucket, calendar_month, concurrency, defaults, defects, depth, dimensions, dynamic_metadata, errors, give_back, headers, hits, invalid_rules, leaky_bucket, matching,
    merge, metric_names, near_limit, oddities, over_limit, override_limit, queue, quota, reload, replaces, rlconfig, shadow,
    sliding_log, sliding_window, standard_headers, tollgate_block, units, unlimited, wildcards,
}

/// A file.
struct Theme {
    name: String,
    cases: Vec<Case>,
}

/// A promise.
struct Case {
    title: String,
    settings: Map<String, Value>,
    /// How many names of metrics may come from clients; no setting, so not one of them.
    metric_series_max: usize,
    rules: Rules,
    /// Why the rules are rejected, if they are.
    rejected: Vec<Value>,
    /// What is odd about them, if they are not.
    warnings: Vec<Value>,
    steps: Vec<Step>,
    /// The number of the reference's defect, and a sentence why ours is better.
    defect: Option<(String, String)>,
}

/// Files by name.
type Rules = Map<String, Value>;

struct Step {
    does: Does,
    expected: Value,
}

enum Does {
    Ask {
        request: RateLimitRequest,
        times: Option<u64>,
    },
    Wait(Span),
    SetClock(Time),
    Load(Rules),
    Look(String),
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

/// A map of a case file, emptied key by key: keys that remain are typos.
struct Fields {
    place: String,
    map: Map<String, Value>,
}

#[test]
fn every_file_of_cases_is_a_test() {
    let mut files: Vec<String> = fs::read_dir(CASES)
        .expect("the directory of cases exists")
        .map(|entry| {
            entry
                .expect("it can be read")
                .file_name()
                .to_string_lossy()
                .replace(".yaml", "")
        })
        .collect();
    files.sort();
    assert_eq!(files, THEMES);
}

#[test]
fn every_defect_says_why_ours_is_better() {
    let theme = read_theme(&text_of("defects")).expect("it was read by its own test");
    let bare: Vec<_> = theme
        .cases
        .iter()
        .filter(|case| case.defect.is_none())
        .map(|case| &case.title)
        .collect();
    assert!(
        bare.is_empty(),
        "cases without `defect` and `better`: {bare:?}"
    );
}

/// Runs a file, and panics with everything that differs.
fn hold(theme: &str) {
    let theme =
        read_theme(&text_of(theme)).unwrap_or_else(|error| panic!("{CASES}/{theme}.yaml: {error}"));
    let failures = failures(&theme);
    assert!(
        failures.is_empty(),
        "\n{}\n{} of {} cases differ",
        failures.join("\n"),
        failures.len(),
        theme.cases.len()
    );
    println!("{}: {} cases", theme.name, theme.cases.len());
}

fn text_of(theme: &str) -> String {
    fs::read_to_string(format!("{CASES}/{theme}.yaml")).expect("the file exists")
}

fn failures(theme: &Theme) -> Vec<String> {
    let described = |case: &Case| {
        case.failure()
            .map(|failure| format!("{}: {}\n{failure}", theme.name, case.title))
    };
    theme.cases.iter().filter_map(described).collect()
}

// Running.

impl Case {
    /// What differs, if anything.
    fn failure(&self) -> Option<String> {
        let described = |lines: Vec<String>| {
            (!lines.is_empty()).then(|| {
                lines
                    .iter()
                    .map(|line| format!("    {line}"))
                    .collect::<Vec<_>>()
                    .join("\n")
            })
        };
        let settings = match settings(&self.settings) {
            Ok(settings) => settings,
            Err(error) => return Some(format!("  settings: {error}")),
        };
        let world = World::new(&settings, self.metric_series_max);
        let differing = match world.load(&self.rules) {
            Err(problems) if self.rejected.is_empty() => {
                return Some(format!("  rules: {}", shown(&problems)));
            }
            Err(problems) => findings_differ(&self.rejected, &problems),
            Ok(_) if !self.rejected.is_empty() => vec!["they load".to_owned()],
            Ok(warnings) => findings_differ(&self.warnings, &warnings),
        };
        if let Some(lines) = described(differing) {
            return Some(format!("  rules\n{lines}"));
        }
        // Its clock goes on by itself to whatever is waited for.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime needs nothing");
        self.steps.iter().enumerate().find_map(|(index, step)| {
            let got = runtime.block_on(world.run(&step.does));
            described(differences("", &step.expected, &got))
                .map(|lines| format!("  step {}, {}\n{lines}", index + 1, step.does))
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
        let counters = Arc::new(Counters::new(
            settings.store.memory_bytes_max,
            "store",
            &metrics,
        ));
        let backend = Backend::Memory(counters.clone());
        let (now, clock) = Clock::manual(START);
        let fallback = Fallback::new(settings.limiter.on_store_error, &metrics);
        let parts = Parts {
            rules: rules.clone(),
            backend,
            fallback,
            clock: now,
            stats,
            settings: settings.limiter.clone(),
        };
        let limiter = Arc::new(limiter::Shared::new(parts, &metrics)).open();
        Self {
            rls: Rls::new(
                limiter,
                CallMetrics::new("ShouldRateLimit", &metrics),
                Traces::default(),
            ),
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

    /// Does a step, and gives what there is to be compared.
    async fn run(&self, does: &Does) -> Value {
        match does {
            Does::Ask { request, times } => return self.ask(request, *times).await,
            Does::Wait(span) => self.clock.advance(*span),
            Does::SetClock(time) => self.clock.set(*time),
            Does::Load(rules) => {
                if let Err(problems) = self.load(rules) {
                    return problems.iter().map(Finding::headline).collect();
                }
            }
            Does::Look(at) => return self.look(at),
        }
        Value::Null
    }

    async fn ask(&self, request: &RateLimitRequest, times: Option<u64>) -> Value {
        let mut codes: Vec<(String, u64)> = Vec::new();
        let mut last = Map::new();
        for _ in 0..times.unwrap_or(1) {
            let request =
                RateLimitRequest::decode(&*request.encode_to_vec()).expect("it was encoded here");
            let began = tokio::time::Instant::now();
            last = match self.rls.should_rate_limit(Request::new(request)).await {
                Ok(response) => {
                    let response = response.into_inner().encode_to_vec();
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
            let code = last
                .get("answer")
                .or(last.get("error"))
                .and_then(Value::as_str)
                .unwrap_or_default();
            match codes.last_mut() {
                Some((kept, count)) if kept == code => *count += 1,
                _ => codes.push((code.to_owned(), 1)),
            }
        }
        if times.is_some() {
            let codes: Vec<String> = codes
                .into_iter()
                .map(|(code, count)| format!("{count} {code}"))
                .collect();
            last.insert("codes".to_owned(), json!(codes.join(", ")));
        }
        Value::Object(last)
    }

    fn look(&self, at: &str) -> Value {
        match at {
            "counts" => {
                let mut counts = Map::new();
                for (name, value) in self.statsd() {
                    let path = name
                        .strip_prefix("ratelimit.service.rate_limit.")
                        .and_then(|path| path.rsplit_once('.'));
                    if let Some((rule, count)) = path {
                        counts.entry(rule).or_insert_with(|| json!({}))[count] = value;
                    }
                }
                Value::Object(counts)
            }
            "statsd" => Value::Object(self.statsd()),
            "metrics" => Value::Object(self.prometheus()),
            "counters" => json!(self.counters.len()),
            _ => self
                .rules
                .load()
                .as_ref()
                .map(|rules| rules.dump().lines().collect())
                .unwrap_or_default(),
        }
    }

    fn statsd(&self) -> Map<String, Value> {
        let text = self.metrics.lines();
        // The number of calls is as many as the case makes, and would only be in the way.
        counters(
            text.lines()
                .filter_map(|line| line.rsplit_once(": "))
                .filter(|(name, _)| !name.starts_with("ratelimit_server.")),
        )
    }

    fn prometheus(&self) -> Map<String, Value> {
        let text = self.metrics.page();
        let is_about_calls = |name: &str| {
            [
                "#",
                "ratelimit_service_total_requests",
                "ratelimit_service_response_time",
            ]
            .iter()
            .any(|start| name.starts_with(start))
        };
        let is_about_the_store = |name: &str| name.starts_with("tollgate_memory_");
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        counters(lines.filter(|(name, _)| !is_about_calls(name) && !is_about_the_store(name)))
    }
}

/// Those that are not zero, by name.
fn counters<'l>(lines: impl Iterator<Item = (&'l str, &'l str)>) -> Map<String, Value> {
    let parsed = lines.map(|(name, value)| {
        (
            name.to_owned(),
            value.parse::<f64>().expect("a counter is a number"),
        )
    });
    parsed
        .filter(|(_, value)| *value > 0.0)
        .map(|(name, value)| (name, json!(value)))
        .collect()
}

/// Parses settings by the names of their environment variables.
fn settings(wanted: &Map<String, Value>) -> Result<Settings, String> {
    // The environment of the test run is no part of a case.
    let command = Settings::augment_args(Command::new("case"));
    let mut arguments = vec!["case".to_owned()];
    for (name, value) in wanted {
        let argument = command
            .get_arguments()
            .find(|argument| argument.get_env() == Some(OsStr::new(name)));
        let flag = argument
            .and_then(clap::Arg::get_long)
            .ok_or_else(|| format!("no setting is named {name}"))?;
        arguments.push(format!(
            "--{flag}={}",
            value
                .as_str()
                .ok_or_else(|| format!("{name}: write the value as text"))?
        ));
    }
    let command = command.mut_args(|argument| argument.env(None::<&'static str>));
    let matches = command
        .try_get_matches_from(arguments)
        .map_err(|error| error.to_string())?;
    Settings::from_arg_matches(&matches).map_err(|error| error.to_string())
}

// What is compared, as text that can be read and written.

fn answer(response: &RateLimitResponse) -> Map<String, Value> {
    let mut answer = Map::new();
    answer.insert(
        "answer".to_owned(),
        json!(response.overall_code().as_str_name()),
    );
    answer.insert(
        "statuses".to_owned(),
        response.statuses.iter().map(status_text).collect(),
    );
    for (name, headers) in [
        ("headers", &response.response_headers_to_add),
        ("request_headers", &response.request_headers_to_add),
    ] {
        if !headers.is_empty() {
            answer.insert(
                name.to_owned(),
                headers
                    .iter()
                    .map(|header| format!("{}: {}", header.key, header.value))
                    .collect(),
            );
        }
    }
    if !response.raw_body.is_empty() {
        answer.insert(
            "body".to_owned(),
            json!(String::from_utf8_lossy(&response.raw_body)),
        );
    }
    if let Some(metadata) = &response.dynamic_metadata {
        answer.insert("metadata".to_owned(), object(metadata));
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
            let _ = write!(
                text,
                " {}/{} {} left",
                limit.requests_per_unit,
                limit.unit().as_str_name(),
                status.limit_remaining
            );
        }
        None if status.limit_remaining == u32::MAX => text += " unlimited",
        None if status.limit_remaining > 0 => text += &format!(" {} left", status.limit_remaining),
        None => {}
    }
    if let Some(duration) = &status.duration_until_reset {
        assert_eq!(duration.nanos, 0, "whole seconds only");
        let _ = write!(text, " {}s", duration.seconds);
    }
    if let Some(limit) = status
        .current_limit
        .as_ref()
        .filter(|limit| !limit.name.is_empty())
    {
        let _ = write!(text, " named {}", limit.name);
    }
    assert_eq!(
        (status.quota.as_ref(), Code::try_from(status.code).is_ok()),
        (None, true),
        "quota is not used, and codes have names"
    );
    text
}

fn object(structure: &prost_types::Struct) -> Value {
    structure
        .fields
        .iter()
        .map(|(name, inner)| (name.clone(), value(inner)))
        .collect()
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
        let mut described = Map::new();
        described.insert("text".to_owned(), json!(finding.headline()));
        described.insert(
            "line".to_owned(),
            json!(finding.location.map(|location| location.line)),
        );
        described.insert(
            "column".to_owned(),
            json!(finding.location.map(|location| location.column)),
        );
        if let Some(hint) = &finding.hint {
            described.insert("hint".to_owned(), json!(hint));
        }
        Value::Object(described)
    };
    let described: Value = found.iter().enumerate().map(described).collect();
    differences("", &Value::Array(expected.to_vec()), &described)
}

fn shown(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// A line for every leaf that differs. Numbers are equal if their values are.
fn differences(place: &str, expected: &Value, got: &Value) -> Vec<String> {
    let described =
        |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let below = |place: String, expected: Option<&Value>, got: Option<&Value>| match (expected, got)
    {
        (Some(expected), Some(got)) => differences(&place, expected, got),
        _ => vec![format!(
            "{place}: expected {}, got {}",
            described(expected),
            described(got)
        )],
    };
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            let names = expected
                .keys()
                .chain(got.keys().filter(|name| !expected.contains_key(*name)));
            let place = |name: &String| {
                if place.is_empty() {
                    name.clone()
                } else {
                    format!("{place}.{name}")
                }
            };
            names
                .flat_map(|name| below(place(name), expected.get(name), got.get(name)))
                .collect()
        }
        (Value::Array(expected), Value::Array(got)) => {
            let indexes = 0..expected.len().max(got.len());
            indexes
                .flat_map(|index| {
                    below(
                        format!("{place}[{index}]"),
                        expected.get(index),
                        got.get(index),
                    )
                })
                .collect()
        }
        (Value::Number(expected), Value::Number(got)) if expected.as_f64() == got.as_f64() => {
            Vec::new()
        }
        _ if expected == got => Vec::new(),
        _ => vec![
            format!("{place}: expected {expected}, got {got}")
                .trim_start_matches(": ")
                .to_owned(),
        ],
    }
}

impl std::fmt::Display for Does {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ask { request, .. } => {
                write!(formatter, "ask {}", Text(&request.domain))?;
                for descriptor in &request.descriptors {
                    let entries: Vec<String> = descriptor
                        .entries
                        .iter()
                        .map(|entry| format!("{}={}", Text(&entry.key), Text(&entry.value)))
                        .collect();
                    write!(formatter, " {}", entries.join(","))?;
                }
                Ok(())
            }
            Self::Wait(span) => write!(formatter, "wait {span}"),
            Self::SetClock(time) => {
                write!(formatter, "at {}", time.as_micros() / MICROS_PER_SECOND)
            }
            Self::Load(_) => formatter.write_str("rules"),
            Self::Look(at) => formatter.write_str(at),
        }
    }
}

// Reading.

fn read_theme(text: &str) -> Result<Theme, String> {
    let document = yaml::read(text).map_err(|error| error.to_string())?;
    // A repeated key would hide a step or a case.
    if let Some(note) = document.warnings.first() {
        return Err(format!("line {}: {}", note.location.line, note.text));
    }
    let Some(yaml::Kind::Map(pairs)) = document.root.map(|root| root.kind) else {
        return Err("no map".to_owned());
    };
    let mut fields = Fields {
        place: String::new(),
        map: config::metadata::to_json(&pairs),
    };
    let name = fields.text("theme")?.ok_or("no theme")?;
    let shared = Shared {
        domain: fields.text("domain")?,
        settings: fields.map("settings")?,
        rules: rules(&mut fields)?,
    };
    let cases = fields.list("cases")?.unwrap_or_default();
    if cases.is_empty() {
        return Err("no cases".to_owned());
    }
    let cases = cases
        .into_iter()
        .map(|case| shared.case(case))
        .collect::<Result<_, _>>()?;
    fields.finish()?;
    Ok(Theme { name, cases })
}

/// What the cases of a file share.
struct Shared {
    domain: Option<String>,
    settings: Map<String, Value>,
    rules: Option<Rules>,
}

impl Shared {
    fn case(&self, case: Value) -> Result<Case, String> {
        let mut fields = Fields::new("a case", case)?;
        let title = fields.text("case")?.ok_or("a case without a title")?;
        fields.place.clone_from(&title);
        let domain = fields.text("domain")?.or_else(|| self.domain.clone());
        let mut settings = self.settings.clone();
        settings.extend(fields.map("settings")?);
        let rules = rules(&mut fields)?
            .or_else(|| self.rules.clone())
            .ok_or_else(|| fields.error("no rules"))?;
        let metric_series_max = fields
            .number("metric_series_max")?
            .and_then(|max| usize::try_from(max).ok())
            .unwrap_or(METRIC_SERIES_MAX);
        let rejected = fields.list("rejected")?.unwrap_or_default();
        let warnings = fields.list("warnings")?.unwrap_or_default();
        let defect = fields.text("defect")?.zip(fields.text("better")?);
        let steps = fields.list("steps")?.unwrap_or_default();
        fields.finish()?;
        if rejected.is_empty() && steps.is_empty() {
            return Err(format!("{title}: no steps"));
        }
        let step = |(index, step)| {
            Step::read(
                Fields::new(&format!("{title}: step {}", index + 1), step)?,
                domain.as_ref(),
            )
        };
        let steps = steps
            .into_iter()
            .enumerate()
            .map(step)
            .collect::<Result<_, _>>()?;
        Ok(Case {
            title,
            settings,
            metric_series_max,
            rules,
            rejected,
            warnings,
            steps,
            defect,
        })
    }
}

impl Step {
    fn read(mut fields: Fields, domain: Option<&String>) -> Result<Self, String> {
        let (does, expected) = if let Some(descriptors) = fields.list("ask")? {
            let domain = fields
                .text("domain")?
                .or_else(|| domain.cloned())
                .ok_or_else(|| fields.error("no domain"))?;
            let hits_addend = u32::try_from(fields.number("hits")?.unwrap_or(0))
                .map_err(|error| error.to_string())?;
            let descriptors = descriptors
                .into_iter()
                .map(|wanted| descriptor(&fields.place, wanted))
                .collect::<Result<_, _>>()?;
            let times = fields.number("times")?;
            let kept = ANSWER_KEYS
                .into_iter()
                .filter_map(|key| Some((key.to_owned(), fields.map.remove(key)?)));
            let expected = Value::Object(kept.collect());
            (
                Does::Ask {
                    request: RateLimitRequest {
                        domain: domain.into(),
                        descriptors,
                        hits_addend,
                    },
                    times,
                },
                expected,
            )
        } else if let Some(text) = fields.text("wait")? {
            (Does::Wait(parse::duration(&text)?), Value::Null)
        } else if let Some(secs) = fields.number("at")? {
            (
                Does::SetClock(Time::from_micros(secs * MICROS_PER_SECOND)),
                Value::Null,
            )
        } else if let Some(rules) = rules(&mut fields)? {
            (
                Does::Load(rules),
                fields.map.remove("rejected").unwrap_or_default(),
            )
        } else {
            let look = LOOKS
                .into_iter()
                .find_map(|key| Some((key, fields.map.remove(key)?)));
            let (at, expected) = look.ok_or_else(|| fields.error("it does nothing"))?;
            (Does::Look(at.to_owned()), expected)
        };
        fields.finish()?;
        Ok(Self { does, expected })
    }
}

/// `rules`: one text, or several by name; or `rules_file`, one of this repository, `but` with other
/// texts in it.
fn rules(fields: &mut Fields) -> Result<Option<Rules>, String> {
    if let Some(path) = fields.text("rules_file")? {
        let mut text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path))
            .map_err(|error| format!("{path}: {error}"))?;
        for (there, instead) in fields.map("but")? {
            if !text.contains(&there) {
                return Err(fields.error(&format!("`{there}` is not in {path}")));
            }
            text = text.replace(&there, instead.as_str().unwrap_or_default());
        }
        return Ok(Some(Map::from_iter([(path, Value::String(text))])));
    }
    Ok(match fields.map.remove("rules") {
        None => None,
        Some(Value::String(text)) => Some(Map::from_iter([(
            "rules.yaml".to_owned(),
            Value::String(text),
        )])),
        Some(Value::Object(files)) if files.values().all(Value::is_string) => Some(files),
        Some(_) => return Err(fields.error("`rules` is a text, or texts by file")),
    })
}

fn descriptor(place: &str, wanted: Value) -> Result<RateLimitDescriptor, String> {
    if let Value::String(text) = wanted {
        return Ok(RateLimitDescriptor {
            entries: entries(&text),
            ..RateLimitDescriptor::default()
        });
    }
    let mut fields = Fields::new(place, wanted)?;
    let entries = match fields.map.remove("entries") {
        Some(Value::String(text)) => entries(&text),
        // For keys and values that have a comma or a sign of equality in them.
        Some(Value::Array(pairs)) => {
            let text = |pair: &Value, index| {
                pair.get(index)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .into()
            };
            pairs
                .iter()
                .map(|pair| Entry {
                    key: text(pair, 0),
                    value: text(pair, 1),
                })
                .collect()
        }
        _ => return Err(fields.error("no entries")),
    };
    let limit = fields
        .text("limit")?
        .map(|text| override_of(&text).ok_or_else(|| format!("{place}: {text} is no limit")))
        .transpose()?;
    let hits_addend = fields.number("hits")?;
    let is_negative_hits = match fields.map.remove("give_back") {
        None => false,
        Some(Value::Bool(flag)) => flag,
        Some(other) => {
            return Err(fields.error(&format!(
                "`give_back` is {other}, and must be true or false"
            )));
        }
    };
    fields.finish()?;
    Ok(RateLimitDescriptor {
        entries,
        limit,
        hits_addend,
        is_negative_hits,
    })
}

/// `key=value,key=value`; nothing is no entries.
fn entries(text: &str) -> Vec<Entry> {
    let pairs = text
        .split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(key, value)| Entry {
            key: key.into(),
            value: value.into(),
        })
        .collect()
}

/// `5/HOUR`, or with the number of a unit, `5/99`.
fn override_of(text: &str) -> Option<RateLimitOverride> {
    let (requests, unit) = text.split_once('/')?;
    // The type of the field has no week, but its number is that of the answer's.
    let unit = unit
        .parse()
        .ok()
        .or_else(|| Some(Unit::from_str_name(unit)?.into()))?;
    Some(RateLimitOverride {
        requests_per_unit: requests.parse().ok()?,
        unit,
    })
}

impl Fields {
    fn new(place: &str, value: Value) -> Result<Self, String> {
        let Value::Object(map) = value else {
            return Err(format!("{place}: {value} is no map"));
        };
        Ok(Self {
            place: place.to_owned(),
            map,
        })
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(&format!("`{key}` is {other}, and must be a text"))),
        }
    }

    fn number(&mut self, key: &str) -> Result<Option<u64>, String> {
        let number = |value: Value| {
            value.as_u64().ok_or_else(|| {
                self.error(&format!("`{key}` is {value}, and must be a whole number"))
            })
        };
        let value = self.map.get(key).cloned().map(number).transpose()?;
        self.map.remove(key);
        Ok(value)
    }

    fn list(&mut self, key: &str) -> Result<Option<Vec<Value>>, String> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.error(&format!("`{key}` is {other}, and must be a list"))),
        }
    }

    fn map(&mut self, key: &str) -> Result<Map<String, Value>, String> {
        match self.map.remove(key) {
            None => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(other) => Err(self.error(&format!("`{key}` is {other}, and must be a map"))),
        }
    }

    fn finish(self) -> Result<(), String> {
        self.map.keys().next().map_or(Ok(()), |key| {
            Err(self.error(&format!("unknown key `{key}`")))
        })
    }

    fn error(&self, text: &str) -> String {
        if self.place.is_empty() {
            text.to_owned()
        } else {
            format!("{}: {text}", self.place)
        }
    }
}
