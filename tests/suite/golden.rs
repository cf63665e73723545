//! What operators read, on fixed inputs: pages of the admin port, the output of commands, and the
//! OpenAPI document. The records are in `golden/`; REWRITE=1 rewrites them.
//!
//! JSON is compared as a value, and any other text by its lines. What differs from run to run is
//! replaced by [`stable_text`] and [`stable_json`].

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Map, Value, json};
use tollgate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::proto::envoy::r#type::v3::RateLimitUnit;

use crate::support::http::{Connection, Reply};
use crate::support::{
    Builder, Ran, TestServer, look_until, request, sample, tollgate_with_env, write,
};
use crate::top;

mod openapi;

const INPUT: &str = "tests/suite/golden/input";
const TOKEN: &str = "s3cret-of-admins";
/// Requests of `traffic.jsonl` that are decided.
const DECIDED: u64 = 31;

/// A change that is undone by a command.
const CHANGE: &str = "PUT /api/v1/rules/shop.yaml | if-match: * | @changed/shop.yaml";

/// Records by what was asked.
#[derive(Default)]
struct Records(Map<String, Value>);

impl Records {
    /// Adds a record; of a repeated name the next ones are numbered.
    fn add(&mut self, name: &str, record: Value) {
        let names = (1..).map(|time| match time {
            1 => name.to_owned(),
            time => format!("{name} ({time})"),
        });
        let mut names = names.skip_while(|name| self.0.contains_key(name));
        self.0.insert(names.next().expect("it has no end"), record);
    }

    /// Asks for pages of the admin port. A line has a method and a path, a header and a body;
    /// `@file` is an input. The token is sent, unless the header is another one.
    fn add_pages(&mut self, server: &TestServer, lines: &str) {
        for line in lines.trim().lines() {
            let mut cells = line.split('|');
            let mut cell = || cells.next().unwrap_or_default().trim().replace('\'', "\"");
            let (asked, header, body) = (cell(), cell(), cell());
            let body = body.strip_prefix('@').map_or(body.clone(), input);
            let (method, path) = asked.split_once(' ').expect("a method and a path");
            let mut headers: Vec<String> = Some(header).into_iter().collect();
            headers.retain(|header| !header.is_empty());
            if !headers
                .iter()
                .any(|header| header.starts_with("authorization"))
            {
                headers.push(format!("authorization: Bearer {TOKEN}"));
            }
            let reply = Connection::open(server.admin).send_with(&headers, method, path, &body);
            self.add(line, page(server, &reply.expect("there is a response")));
        }
    }

    /// Runs commands, one a line.
    fn add_commands(&mut self, server: Option<&TestServer>, lines: &str) {
        let url = server.map_or(String::new(), |server| format!("http://{}", server.admin));
        for line in lines.trim().lines() {
            let words = line.replace("$IN", &sample(INPUT)).replace("$URL", &url);
            let words: Vec<&str> = words.split(' ').collect();
            let ran = tollgate_with_env(&words, &[("ADMIN_TOKEN", TOKEN)]);
            let Ran {
                code,
                stdout,
                stderr,
            } = ran;
            let [stdout, stderr] = [stdout, stderr].map(|text| value(server, &text));
            self.add(
                line,
                json!({"code": code, "stdout": stdout, "stderr": stderr}),
            );
        }
    }

    /// Compares them with those of the file.
    fn assert_recorded(self, name: &str) {
        let file = sample(&format!("tests/suite/golden/{name}.json"));
        let found = Value::Object(self.0);
        if std::env::var_os("REWRITE").is_some() {
            write(Path::new(&file), &format!("{found:#}\n"));
        }
        let recorded = fs::read_to_string(&file).unwrap_or_default();
        let recorded: Value = serde_json::from_str(&recorded).unwrap_or_default();
        let mut differences = Vec::new();
        compare("", &recorded, &found, &mut differences);
        assert!(
            differences.is_empty(),
            "{file}; REWRITE=1 rewrites it:\n{}",
            differences.join("\n")
        );
    }
}

fn input(name: &str) -> String {
    fs::read_to_string(sample(&format!("{INPUT}/{name}"))).expect("the input exists")
}

/// Adds where two values differ.
fn compare(at: &str, recorded: &Value, found: &Value, differences: &mut Vec<String>) {
    match (recorded, found) {
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for name in names {
                let sides = [left, right].map(|side| side.get(name));
                match sides {
                    [Some(left), Some(right)] => {
                        compare(&format!("{at}/{name}"), left, right, differences);
                    }
                    [Some(left), None] => differences.push(format!("{at}/{name}: lost {left}")),
                    [_, right] => differences.push(format!("{at}/{name}: new {right:?}")),
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{at}/{index}"), left, right, differences);
            }
        }
        (left, right) if left != right => {
            differences.push(format!("{at}: recorded {left}\n  found {right}"));
        }
        _ => {}
    }
}

/// A response.
fn page(server: &TestServer, reply: &Reply) -> Value {
    let kept = [
        "content-type",
        "etag",
        "idempotency-replayed",
        "retry-after",
        "www-authenticate",
    ];
    let headers = reply.headers.iter();
    let headers = headers.filter(|line| kept.iter().any(|name| line.starts_with(name)));
    let headers: Vec<&String> = headers.collect();
    json!({"status": reply.status, "headers": headers, "body": value(Some(server), &reply.body)})
}

/// A text without what differs from run to run: JSON as it is, or lines.
fn value(server: Option<&TestServer>, text: &str) -> Value {
    let text = stable_text(server, text);
    match serde_json::from_str(&text) {
        Ok(json) => stable_json(json),
        Err(_) => text.split('\n').collect(),
    }
}

/// Replaces addresses, folders, times of now and names of this process.
fn stable_text(server: Option<&TestServer>, text: &str) -> String {
    static TIME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z").expect("it is valid")
    });
    static RESET: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new("(resets? in[^0-9\\n]*)[0-9]+(  +[0-9]+)?").expect("it is valid")
    });
    static ADDRESS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"127\.0\.0\.1:\d+").expect("it is valid"));
    static REPLICA: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("replica [0-9a-f]{16}").expect("it is valid"));
    // Tables are as wide as the paths in them.
    static GAP: LazyLock<Regex> = LazyLock::new(|| Regex::new("  +").expect("it is valid"));
    let mut text = text.to_owned();
    if text.contains(&sample(INPUT)) {
        text = text.replace(&sample(INPUT), "$IN");
        text = GAP.replace_all(&text, " ").into_owned();
    }
    if let Some(server) = server {
        let folder = server.path("").display().to_string();
        text = text.replace(folder.trim_end_matches('/'), "$RULES");
    }
    // The inputs and the clock of test cases have times of their own.
    let time = |found: &Captures<'_>| match &found[0] {
        fixed if fixed.starts_with("2001-") || fixed.starts_with("2026-01-01") => fixed.to_owned(),
        _ => "$TIME".to_owned(),
    };
    let text = TIME.replace_all(&text, time);
    let text = ADDRESS.replace_all(&text, "$$ADDRESS");
    let text = RESET.replace_all(&text, "$1$$SECONDS");
    REPLICA.replace_all(&text, "replica $$REPLICA").into_owned()
}

/// Replaces fields of now and of this process.
fn stable_json(json: Value) -> Value {
    match json {
        Value::Array(items) => items.into_iter().map(stable_json).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| {
                let varies = [
                    "replica",
                    "replicas",
                    "resets_in_seconds",
                    "duration_until_reset",
                    "durationUntilReset",
                    "upstream",
                ];
                let placeholder = || Value::from(format!("${name}"));
                let value = match value {
                    Value::Array(items) if varies.contains(&&*name) => {
                        items.iter().map(|_| placeholder()).collect()
                    }
                    Value::String(_) | Value::Number(_) if varies.contains(&&*name) => {
                        placeholder()
                    }
                    other => stable_json(other),
                };
                (name, value)
            });
            Value::Object(fields.collect())
        }
        other => other,
    }
}

/// A service with all rules and candidate rules.
fn service() -> Builder {
    let files = ["rules/shop.yaml", "rules/bulk.yaml", "candidate/shop.yaml"];
    let files = files.map(|name| (name.trim_start_matches("rules/"), input(name)));
    let files = files.each_ref().map(|(name, text)| (*name, &**text));
    TestServer::with_files(files).with_envs(&[
        ("ADMIN_TOKEN", TOKEN),
        ("RULES_WRITABLE", "true"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
        ("WORKERS", "1"),
    ])
}

/// The requests of `traffic.jsonl`.
fn traffic() -> Vec<RateLimitRequest> {
    let traffic = input("traffic.jsonl");
    let lines = traffic
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| line["domain"].is_string())
        .map(|line| request_of(&line))
        .collect()
}

fn request_of(line: &Value) -> RateLimitRequest {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = |value: &Value| value.as_array().cloned().expect("a list");
    let mut sent = request(&text(&line["domain"]), &[]);
    for given in list(&line["descriptors"]) {
        let entries = list(&given["entries"])
            .iter()
            .map(|entry| [&entry["key"], &entry["value"]].map(text))
            .collect::<Vec<_>>();
        let entries: Vec<(&str, &str)> = entries
            .iter()
            .map(|[key, value]| (&**key, &**value))
            .collect();
        let mut descriptor = crate::support::descriptor(&entries);
        descriptor.hits_addend = given["hits_addend"].as_u64();
        descriptor.is_negative_hits = given["is_negative_hits"] == true;
        if let Some(requests) = given["limit"]["requests_per_unit"].as_u64() {
            descriptor.limit = Some(RateLimitOverride {
                requests_per_unit: requests.try_into().expect("a small number"),
                unit: RateLimitUnit::Day.into(),
            });
        }
        sent.descriptors.push(descriptor);
    }
    sent
}

/// Sends the traffic, and waits until a page has counted it.
async fn send_traffic(server: &TestServer, page: &str, requests: u64) {
    let mut client = server.client().await;
    for request in traffic() {
        // Invalid ones are answered with an error.
        let _ = client.call(request).await;
    }
    look_until(page, || {
        let page: Value = serde_json::from_str(&server.admin(page)).expect("it is JSON");
        page["requests"] == requests
    });
}

/// Starts a service and sends the traffic. Records an event of its over-limit feed.
async fn started(builder: Builder, records: &mut Records) -> TestServer {
    let server = builder.start();
    server.metric_becomes("tollgate_candidate_rules", 6.0).await;
    let mut feed = top::feed(&server);
    send_traffic(&server, "/candidate", DECIDED).await;
    let event = top::event(&mut feed).to_string();
    records.add("GET /api/v1/over-limit", value(Some(&server), &event));
    server
}

#[tokio::test]
async fn pages_of_a_service_are_as_recorded() {
    let mut pages = Records::default();
    let server = started(service(), &mut pages).await;
    pages.add_pages(&server, &input("pages.txt"));
    let reply = server.json(
        r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"new"}],"hits_addend":"2"},{"entries":[{"key":"quota","value":"new"}]}]}"#,
    );
    pages.add("POST /json", page(&server, &reply));
    pages.assert_recorded("pages");
}

#[tokio::test]
async fn commands_to_a_service_are_as_recorded() {
    let mut commands = Records::default();
    let server = started(service(), &mut commands).await;
    commands.add_commands(Some(&server), &input("client_commands.txt"));
    commands.add_pages(&server, CHANGE);
    commands.add_commands(Some(&server), "rules rollback $URL shop.yaml");
    commands.assert_recorded("client_commands");
}

#[tokio::test]
async fn redacted_pages_are_as_recorded() {
    let mut pages = Records::default();
    for redact in ["hash", "drop"] {
        let service = service().with_envs(&[("ADMIN_REDACT", redact), ("ADMIN_REDACT_KEY", "key")]);
        let server = started(service, &mut pages).await;
        pages.add_pages(&server, &input("redacted_pages.txt"));
    }
    pages.assert_recorded("redacted_pages");
}

#[tokio::test]
async fn trial_is_as_recorded() {
    let upstream = TestServer::with_rules(&input("upstream/shop.yaml")).start();
    let server = service()
        .with_env("TRIAL_UPSTREAM", &upstream.grpc.to_string())
        .start();
    send_traffic(&server, "/trial", DECIDED).await;
    let mut records = Records::default();
    records.add_pages(&server, "GET /trial");
    records.add_commands(Some(&server), "trial report $URL");
    records.assert_recorded("trial");
}

#[test]
fn commands_are_as_recorded() {
    let mut commands = Records::default();
    commands.add_commands(None, &input("commands.txt"));
    commands.assert_recorded("commands");
}
