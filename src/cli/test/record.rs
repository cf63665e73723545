//! Sends requests to a running service, and writes its responses as a test.
//!
//! `reset` and headers are left out: they depend on the microsecond of the decision, which a response
//! does not state.

use std::path::Path;

use anyhow::{Context as _, bail};
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::api::convert;
use crate::cli::fetch;
use crate::cli::output::print;
use crate::record::line::body;
use crate::time::Clock;
use crate::traffic::{self, Descriptor, Request};

const PAGE: &str = "/json";
/// A test of more is no test that people read.
const REQUESTS_MAX: usize = 10_000;

/// Prints a file of one test. Envoy's protocol is all that the service needs to have.
pub(super) fn run(url: &str, requests: Option<&Path>) -> anyhow::Result<()> {
    let path = requests.unwrap_or(Path::new("-"));
    let requests = traffic::read_requests(path, REQUESTS_MAX)?;
    if requests.is_empty() {
        bail!("{} has no request", path.display());
    }
    let clock = Clock::system();
    let name = format!("recorded from {url} at {}", clock.now().to_rfc3339());
    let mut text = format!("tests:\n  - name: {}\n    steps:\n", json!(name));
    for (index, request) in requests.iter().enumerate() {
        let time = clock.now().to_rfc3339();
        let response = fetch::post(url, PAGE, body(&convert::query(request)))?;
        let fetch::Response {
            status,
            body: reply,
        } = response;
        if ![StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&status) {
            bail!("request {}: {status}: {}", index + 1, reply.trim());
        }
        let response: Value = serde_json::from_str(&reply).context("read the response")?;
        text += &format!(
            "      - at: {time}\n        request: {}\n        expect: {}\n",
            step(request),
            expectation(&response)
        );
    }
    print(&text);
    Ok(())
}

/// As a step has it. JSON is YAML.
fn step(request: &Request) -> Value {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let pairs: Vec<[String; 2]> = entries
            .map(|entry| [text(&entry.key), text(&entry.value)])
            .collect();
        let map: Map<String, Value> = pairs
            .iter()
            .map(|[key, value]| (key.clone(), json!(value)))
            .collect();
        // A map of JSON is sorted.
        let is_ordered = map.keys().eq(pairs.iter().map(|[key, _]| key));
        let entries = if is_ordered { map.into() } else { json!(pairs) };
        let is_short = descriptor.limit.is_none()
            && descriptor.hits_addend.is_none()
            && !descriptor.is_negative_hits;
        if is_short {
            entries
        } else {
            long_form(descriptor, entries)
        }
    });
    let mut step = json!({
        "domain": text(&request.domain),
        "descriptors": descriptors.collect::<Vec<_>>(),
    });
    if request.hits_addend > 0 {
        step["hits_addend"] = request.hits_addend.into();
    }
    step
}

/// A descriptor with the fields that it has.
fn long_form(descriptor: &Descriptor, entries: Value) -> Value {
    let mut long = Value::Object(Map::from_iter([("entries".to_owned(), entries)]));
    if let Some(limit) = descriptor.limit {
        long["limit"] = json!({"requests_per_unit": limit.requests_per_unit, "unit": limit.unit});
    }
    if let Some(hits) = descriptor.hits_addend {
        long["hits_addend"] = hits.into();
    }
    if descriptor.is_negative_hits {
        long["is_negative_hits"] = true.into();
    }
    long
}

/// Absent fields have protobuf's defaults.
fn expectation(response: &Value) -> Value {
    let code = |value: &Value| value.as_str().unwrap_or("OK").to_owned();
    let statuses = response["statuses"].as_array().into_iter().flatten();
    let statuses = statuses.map(|status| {
        let limit = status["currentLimit"].as_object();
        let requests = |limit: &Map<String, Value>| limit.get("requestsPerUnit").cloned();
        let limit = limit.map(|limit| requests(limit).unwrap_or(0.into()));
        let remaining = status["limitRemaining"].as_u64().unwrap_or_default();
        json!({"code": code(&status["code"]), "limit": limit, "remaining": remaining})
    });
    json!({
        "code": code(&response["overallCode"]),
        "statuses": statuses.collect::<Vec<_>>(),
    })
}

/// Requests are read from JSON, so their texts are UTF-8.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
