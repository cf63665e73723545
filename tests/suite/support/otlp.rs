//! A collector of one test, gone with it: the receiver of the OpenTelemetry Collector, which prints
//! what it takes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::certificates::Identity;
use super::process::{Process, look_until};
use super::tools::tool;

/// A running collector. Dropped, it is killed.
pub(crate) struct Collector {
    _process: Process,
    home: TempDir,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
}

/// What was taken at once.
pub(crate) struct Batch {
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, Vec<String>>,
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) spans: Vec<Span>,
}

/// A span as it was taken. Ids in hexadecimal, values as text.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty if it has none.
    pub(crate) parent: String,
    pub(crate) tracestate: String,
    /// Nanoseconds since the epoch.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Of a failure.
    pub(crate) error: Option<String>,
}

impl Collector {
    /// In plain text.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With TLS, for clients whose certificate the same authority has signed.
    pub(crate) fn start_with_tls(identity: &Identity) -> Self {
        let [cert, key, ca] = [&identity.cert, &identity.key, &identity.ca]
            .map(|path| path.to_str().expect("a plain name"));
        Self::start_with(&["-cert", cert, "-key", key, "-client-ca", ca])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let home = TempDir::new().expect("a temporary directory can be made");
        let [stdout, stderr] = ["stdout", "stderr"]
            .map(|name| File::create(home.path().join(name)).expect("a file can be made"));
        let mut command = Command::new(tool("otel-collector"));
        // It ends with its standard input, so it is gone even if this process is killed.
        let child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .expect("it is a program");
        let output =
            || fs::read_to_string(home.path().join("stdout")).expect("what it prints is text");
        let failed = || fs::read_to_string(home.path().join("stderr")).unwrap_or_default();
        look_until("the collector says where it is", || {
            assert_eq!(failed(), "", "the collector failed");
            output().lines().count() >= 2
        });
        let output = output();
        let address = |protocol: &str| {
            output
                .lines()
                .find_map(|line| line.strip_prefix(protocol))
                .and_then(|addr| addr.trim().parse().ok())
        };
        let [http, grpc] = ["http", "grpc"].map(|protocol| {
            address(protocol).unwrap_or_else(|| panic!("no {protocol} in {output}"))
        });
        let log = home.path().join("stderr");
        Self { _process: Process::of("otel-collector", child, log), home, http, grpc }
    }

    /// What was taken so far.
    pub(crate) fn batches(&self) -> Vec<Batch> {
        let output =
            fs::read_to_string(self.home.path().join("stdout")).expect("what it prints is text");
        // A line without an end is being written.
        let lines = output.split_inclusive('\n').filter(|line| line.ends_with('\n')).skip(2);
        lines.map(|line| batch(&serde_json::from_str(line).expect("a batch is JSON"))).collect()
    }

    /// Every span that was taken so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.batches().into_iter().flat_map(|batch| batch.spans).collect()
    }

    /// Waits until there is such a span.
    pub(crate) fn wait_for(&self, what: &str, is_it: impl Fn(&Span) -> bool) -> Span {
        look_until(what, || self.spans().iter().any(&is_it));
        self.spans().into_iter().find(is_it).expect("it was there")
    }
}

fn batch(output: &Value) -> Batch {
    let headers = serde_json::from_value(output["headers"].clone()).expect("headers have values");
    let [resource] = list(&output["traces"]["resourceSpans"]) else {
        panic!("one resource, not {output}")
    };
    let scopes = list(&resource["scopeSpans"]).iter();
    let spans = scopes.flat_map(|scope| list(&scope["spans"]));
    Batch {
        headers,
        resource: attributes(&resource["resource"]["attributes"]),
        spans: spans.map(span).collect(),
    }
}

fn span(output: &Value) -> Span {
    let text = |name: &str| output[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| text(name).parse().expect("64 bits are written as text");
    Span {
        name: text("name"),
        trace: text("traceId"),
        id: text("spanId"),
        parent: text("parentSpanId"),
        tracestate: text("traceState"),
        start: number("startTimeUnixNano"),
        end: number("endTimeUnixNano"),
        attributes: attributes(&output["attributes"]),
        error: (output["status"]["code"] == 2)
            .then(|| output["status"]["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Empty if it is not there.
fn list(output: &Value) -> &[Value] {
    output.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn attributes(output: &Value) -> BTreeMap<String, String> {
    let value = |value: &Value| {
        value
            .as_object()
            .and_then(|value| value.values().next())
            .and_then(|value| value.as_str().map(str::to_owned))
    };
    list(output)
        .iter()
        .map(|pair| {
            (
                pair["key"].as_str().expect("it has a key").to_owned(),
                value(&pair["value"]).unwrap_or_default(),
            )
        })
        .collect()
}
