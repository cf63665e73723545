//! Traces: what an OpenTelemetry collector receives, and that no request waits for an absent one.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};

use tokio::task::JoinSet;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::metadata::AsciiMetadataKey;
use tonic::{Code, Request};

use crate::support::certificates::{Authority, KeyForm};
use crate::support::http;
use crate::support::otlp::{Batch, Collector, Span};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisProcess;
use crate::support::{
    Builder, Code as Overall, TestServer, assert_settings_rejected, limit_of, look_until, request,
};

const CALL: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const EXECUTION: &str = "ShouldRateLimit Execution";
const REDIS: &str = "Redis Pipeline Execution";
const JSON: &str = "NewJsonHandler Remaining Execution";
const JSON_BODY: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#;
/// The process ends at once, and not after the drain.
const NO_DRAIN: (&str, &str) = ("DRAIN_PERIOD", "0");
/// Longer than any test waits for anything, in ms.
const NEVER_MS: &str = "600000";

/// Traced over http, as Envoy Gateway asks for it.
fn traced(collector: &Collector) -> Builder {
    traced_to(TestServer::with_rules(&limit_of(1_000)), collector.http)
}

fn traced_to(builder: Builder, collector: SocketAddr) -> Builder {
    builder
        .with_env("TRACING_ENABLED", "true")
        .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{collector}"))
}

/// Calls with these headers.
async fn call(server: &TestServer, headers: &[(&str, &str)]) {
    let mut client = RateLimitServiceClient::new(server.client().await.channel);
    let mut request = Request::new(request("d", &[&[("k", "")]]));
    for (name, value) in headers {
        let name: AsciiMetadataKey = name.parse().expect("a name");
        request.metadata_mut().insert(name, value.parse().expect("a value"));
    }
    let called = client.should_rate_limit(request).await;
    called.expect("there is an answer");
}

/// The same on /json.
fn call_json(server: &TestServer, headers: &[(&str, &str)]) {
    let headers: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(http::post_with(&headers, server.http, "/json", JSON_BODY).status, 200);
}

/// Of a trace that is complete: its root is sent last.
fn trace(collector: &Collector, root: &str) -> Vec<Span> {
    let root = collector.wait_for(&format!("{root} is traced"), |span| span.name == root);
    collector.spans().into_iter().filter(|span| span.trace == root.trace).collect()
}

fn named<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in {spans:#?}"))
}

fn attribute<'s>(span: &'s Span, name: &str) -> &'s str {
    span.attributes.get(name).map_or("(not there)", |value| value)
}

#[tokio::test]
async fn requests_have_the_spans_of_the_reference() {
    let collector = Collector::start();
    let redis = RedisProcess::start();
    for (protocol, addr) in [("http", collector.http), ("grpc", collector.grpc)] {
        let instance = format!("{protocol}-0");
        let server = traced_to(TestServer::with_rules(&limit_of(1)), addr)
            .with_env("TRACING_EXPORTER_PROTOCOL", protocol)
            .with_env("TRACING_SERVICE_NAME", "limits")
            .with_env("TRACING_SERVICE_NAMESPACE", "edge")
            .with_env("TRACING_SERVICE_INSTANCE_ID", &instance)
            .with_env("OTEL_RESOURCE_ATTRIBUTES", "zone=a%2C1,service.name=other")
            .with_env("CACHE_KEY_PREFIX", protocol)
            .with_env("REDIS_URL", &redis.url())
            .start();
        let asked = request("d", &[&[("k", "")], &[("other", "x\ny")]]);
        let answer = server.client().await.answer(asked).await;
        assert_eq!(answer.overall_code(), Overall::Ok);

        let of_instance = || {
            let mut batches = collector.batches().into_iter();
            batches.find(|batch| batch.resource["service.instance.id"] == instance)
        };
        look_until("there is a batch", || {
            of_instance().is_some_and(|batch| batch.spans.len() == 3)
        });
        let batch = of_instance().expect("there is one");
        for (name, value) in [
            ("service.name", "limits"),
            ("service.namespace", "edge"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("zone", "a,1"),
        ] {
            assert_eq!(batch.resource[name], value, "{name}");
        }

        let [root, execution, trip] =
            [CALL, EXECUTION, REDIS].map(|name| named(&batch.spans, name));
        assert_eq!((&*root.parent, &execution.parent, &trip.parent), ("", &root.id, &execution.id));
        let spans = &batch.spans;
        let is_well = |span: &Span| span.trace == root.trace && span.error.is_none();
        assert!(spans.iter().all(is_well), "{spans:#?}");
        let times = [root.start, execution.start, trip.start, trip.end, execution.end, root.end];
        assert!(times.is_sorted() && trip.start < trip.end, "{spans:#?}");
        let asked = r#"domain:"d" descriptors:{entries:{key:"k" value:""}} descriptors:{entries:{key:"other" value:"x\ny"}}"#;
        for (span, name, value) in [
            (root, "rpc.system", "grpc"),
            (root, "rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
            (root, "rpc.method", "ShouldRateLimit"),
            (root, "rpc.grpc.status_code", "0"),
            (execution, "domain", "d"),
            (execution, "request string", asked),
            (execution, "tollgate.code", "OK"),
            (execution, "tollgate.source", "store"),
            (trip, "pipeline length", "1"),
            (trip, "perSecondPipeline length", "0"),
        ] {
            assert_eq!(attribute(span, name), value, "{name}");
        }
    }
}

#[tokio::test]
async fn spans_name_the_rule_over_limit_and_the_outage_policy() {
    let collector = Collector::start();
    let mut redis = RedisProcess::start();
    let server = traced_to(TestServer::with_rules(&limit_of(1)), collector.http);
    let server =
        server.with_env("REDIS_URL", &redis.url()).with_env("ON_STORE_ERROR", "deny").start();
    let mut client = server.client().await;
    for expected in [Overall::Ok, Overall::OverLimit] {
        assert_eq!(client.ask("d", &[("k", "")]).await, expected);
    }
    let over_limit = collector.wait_for("an over-limit response is traced", |span| {
        attribute(span, "tollgate.code") == "OVER_LIMIT"
    });
    let limit = "1 per year, fixed_window, over-limit hits count";
    assert_eq!(attribute(&over_limit, "tollgate.refused_by"), "d.k");
    assert_eq!(attribute(&over_limit, "tollgate.store_policy"), "(not there)");
    assert_eq!(attribute(&over_limit, "tollgate.refused_limit"), limit);

    redis.kill();
    assert_eq!(client.ask("d", &[("k", "")]).await, Overall::OverLimit);
    let trip = collector
        .wait_for("a trip in vain is traced", |span| span.name == REDIS && span.error.is_some());
    let execution = collector.wait_for("it has a parent", |span| span.id == trip.parent);
    assert!(attribute(&execution, "tollgate.store_policy").starts_with("deny ("), "{execution:#?}");
    assert_eq!(attribute(&execution, "tollgate.source"), "fallback");
}

#[tokio::test]
async fn spans_arrive_after_a_proxy_has_closed_the_idle_connection() {
    let collector = Collector::start();
    for port in [collector.http.port(), collector.grpc.port()] {
        let proxy = Proxy::closing_idle(port);
        let protocol = if port == collector.grpc.port() { "grpc" } else { "http" };
        let server = traced_to(TestServer::with_rules(&limit_of(1_000)), proxy.addr())
            .with_env("TRACING_EXPORTER_PROTOCOL", protocol)
            .start();
        let before = spans_of_calls(&collector);
        for calls in 1..=3 {
            call(&server, &[]).await;
            look_until("each call is traced", || spans_of_calls(&collector) == before + calls);
            let closed = proxy.closed();
            look_until("the proxy closes the connection", || proxy.closed() > closed);
        }
        server.assert_metric("tollgate_spans_lost_total{cause=\"failed\"}", 0.0);
    }
}

fn spans_of_calls(collector: &Collector) -> usize {
    collector.spans().iter().filter(|span| span.name == CALL).count()
}

#[tokio::test]
async fn json_and_invalid_requests_have_spans() {
    let collector = Collector::start();
    let server = traced(&collector).start();
    assert_eq!(server.json(JSON_BODY).status, 200);
    let spans = trace(&collector, JSON);
    assert_eq!(named(&spans, EXECUTION).parent, named(&spans, JSON).id);
    assert_eq!(attribute(named(&spans, JSON), "http.status_code"), "200");
    assert!(spans.iter().all(|span| span.name != REDIS), "Redis was not called: {spans:#?}");

    let status = server
        .client()
        .await
        .call(request("", &[&[("k", "")]]))
        .await
        .expect_err("it has no domain");
    assert_eq!(status.code(), Code::Unknown);
    let spans = trace(&collector, CALL);
    for span in [CALL, EXECUTION] {
        let error = named(&spans, span).error.as_deref();
        assert_eq!(error, Some("rate limit domain must not be empty"));
    }
    assert_eq!(attribute(named(&spans, CALL), "rpc.grpc.status_code"), "2");
}

#[tokio::test]
async fn cancelled_requests_have_cancelled_spans() {
    let collector = Collector::start();
    let rules = "{domain: d, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}, \
                 metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1h}}}]}";
    let server = traced_to(TestServer::with_rules(rules), collector.http).start();
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("k", "")]).await, Overall::Ok);
    let mut waiting = client.clone();
    let mut calls = JoinSet::new();
    calls.spawn(async move { waiting.ask("d", &[("k", "")]).await });
    server.metric_becomes("tollgate_queue_waiters", 1.0).await;
    calls.abort_all();
    server.metric_becomes("tollgate_queue_waiters", 0.0).await;
    let given_up =
        collector.wait_for("it is traced", |span| attribute(span, "rpc.grpc.status_code") == "1");
    assert_eq!(given_up.name, CALL);
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// `parent.rs` has the forms of these headers.
#[tokio::test]
async fn parents_are_read_from_w3c_and_b3_headers() {
    let collector = Collector::start();
    let server = traced(&collector).start();
    let long = |number: u32| format!("{number:032x}");
    let w3c = format!("00-{}-{SPAN}-01", long(1));
    let b3 = format!("{}-{SPAN}-1", long(2));
    let w3c: [(&str, &str); 2] = [("traceparent", &w3c), ("tracestate", "vendor=x")];
    let b3: [(&str, &str); 1] = [("b3", &b3)];
    for (number, headers, state) in [(1, &w3c[..], "vendor=x"), (2, &b3, "")] {
        call(&server, headers).await;
        call_json(&server, headers);
        for name in [CALL, JSON] {
            let span = collector.wait_for("it belongs to the caller's trace", |span| {
                span.trace == long(number) && span.name == name
            });
            assert_eq!((&*span.parent, &*span.tracestate), (SPAN, state), "{headers:?}");
        }
    }
    call(&server, &[("traceparent", "00-zz-01")]).await;
    collector.wait_for("what is malformed is no parent", |span| {
        span.name == CALL && span.parent.is_empty()
    });
}

#[tokio::test]
async fn callers_decide_sampling_before_the_rate() {
    let collector = Collector::start();
    let [never, half, always] = ["0", "0.5", "1"]
        .map(|rate| traced(&collector).with_env("TRACING_SAMPLING_RATE", rate).start());
    let [not_sampled, sampled] = ["00", "01"].map(|flags| format!("00-{TRACE}-{SPAN}-{flags}"));
    let [single, single_sampled] = ["0", "1"].map(|state| format!("{TRACE}-{SPAN}-{state}"));

    for server in [&half, &always] {
        call(server, &[("traceparent", &not_sampled)]).await;
        call(server, &[("b3", &single)]).await;
        let several = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "0")];
        call(server, &several).await;
        call_json(server, &[("traceparent", &not_sampled)]);
    }
    call(&never, &[]).await;
    call_json(&never, &[]);
    // B3 may leave it open; then the trace's number decides, and it does so everywhere alike.
    for number in 0..64_u64 {
        let b3 = format!("{:016x}{:016x}-{SPAN}", number + 1, number << 58);
        call(&half, &[("b3", &b3)]).await;
    }
    for server in [&never, &half, &always] {
        // The last of each: what was sent before is there when it is.
        call(server, &[("traceparent", &sampled)]).await;
        call(server, &[("b3", &single_sampled)]).await;
    }
    let traces = || {
        let spans = collector.spans().into_iter().filter(|span| span.name == CALL);
        spans.map(|span| span.trace).partition::<Vec<_>, _>(|trace| trace == TRACE)
    };
    look_until("what is to be traced is traced", || traces().0.len() == 6);
    let (_, mut open) = traces();
    open.sort();
    let lower_half: Vec<String> =
        (0..32_u64).map(|number| format!("{:016x}{:016x}", number + 1, number << 58)).collect();
    assert_eq!(open, lower_half);
    assert!(collector.spans().iter().all(|span| span.name != JSON));

    for _ in 0..200 {
        call(&half, &[]).await;
    }
    let last = format!("{:032x}", 0xe0f);
    call(&half, &[("b3", &format!("{last}-{SPAN}-1"))]).await;
    collector.wait_for("the last one is there", |span| span.trace == last);
    let by_chance = collector
        .spans()
        .into_iter()
        .filter(|span| span.name == CALL && span.parent.is_empty())
        .count();
    assert!((60..140).contains(&by_chance), "{by_chance} of 200");
}

#[tokio::test]
async fn disabled_traces_send_and_read_nothing() {
    let collector = Collector::start();
    let server = traced(&collector)
        .with_env("TRACING_ENABLED", "false")
        .with_env("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere");
    let server = server
        .with_env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "nowhere")
        .with_env("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")
        .start();
    call(&server, &[("traceparent", &format!("00-{TRACE}-{SPAN}-01"))]).await;
    assert_eq!(server.metric("tollgate_spans_sent_total"), None);
    // There is no exporter thread.
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    let mut names = threads.map(|thread| {
        std::fs::read_to_string(thread.expect("it is there").path().join("comm"))
            .unwrap_or_default()
    });
    assert!(names.all(|name| !name.starts_with("OpenTelemetry")));
    assert_eq!(collector.spans().len(), 0);
}

#[tokio::test]
async fn headers_are_sent_and_settings_for_traces_take_precedence() {
    let collector = Collector::start();
    for (protocol, addr) in [("http", collector.http), ("grpc", collector.grpc)] {
        let nowhere = "http://127.0.0.1:9/nowhere";
        let path = if protocol == "http" { "/v1/traces" } else { "" };
        let server = traced(&collector)
            .with_env("TRACING_EXPORTER_PROTOCOL", protocol)
            .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", nowhere)
            .with_env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("http://{addr}{path}"))
            .with_env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=wrong")
            .with_env(
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                &format!("x-token=s3%2Ccret,x-from={protocol}"),
            )
            .start();
        call(&server, &[]).await;
        let batch = batch_with(&collector, "x-from", protocol);
        assert_eq!(batch.headers["x-token"], ["s3,cret"]);
        server.assert_not_logged("s3");

        let server = traced_to(TestServer::with_rules(&limit_of(1)), addr)
            .with_env("TRACING_EXPORTER_PROTOCOL", protocol)
            .with_env("OTEL_EXPORTER_OTLP_HEADERS", &format!("x-all={protocol}"))
            .start();
        call(&server, &[]).await;
        batch_with(&collector, "x-all", protocol);
    }
}

/// Waits for a batch with this header.
fn batch_with(collector: &Collector, name: &str, value: &str) -> Batch {
    let mut found = None;
    look_until("there is a batch", || {
        let has = |batch: &Batch| batch.headers.get(name).is_some_and(|values| values == &[value]);
        found = collector.batches().into_iter().find(has);
        found.is_some()
    });
    found.expect("it was found")
}

#[tokio::test]
async fn https_authenticates_collector_and_client() {
    let authority = Authority::new();
    let theirs = authority.sign("collector", "DNS:localhost,IP:127.0.0.1", KeyForm::Pkcs8);
    let ours = authority.sign("tollgate", "DNS:tollgate", KeyForm::Pkcs1);
    let stranger = Authority::new();
    let collector = Collector::start_with_tls(&theirs);
    let [ca, cert, key, other_ca] = [authority.cacert(), ours.cert, ours.key, stranger.cacert()]
        .map(|path| path.display().to_string());
    for (protocol, addr) in [("http", collector.http), ("grpc", collector.grpc)] {
        let encrypted = |for_traces: &str| {
            let endpoint = format!("https://localhost:{}", addr.port());
            TestServer::with_rules(&limit_of(1))
                .with_env("TRACING_ENABLED", "1")
                .with_env("TRACING_EXPORTER_PROTOCOL", protocol)
                .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
                .with_env(&format!("OTEL_EXPORTER_OTLP_{for_traces}CERTIFICATE"), &ca)
        };
        for for_traces in ["", "TRACES_"] {
            let client = format!("OTEL_EXPORTER_OTLP_{for_traces}CLIENT");
            let server = encrypted(for_traces)
                .with_env(&format!("{client}_CERTIFICATE"), &cert)
                .with_env(&format!("{client}_KEY"), &key)
                .start();
            let before = collector.spans().len();
            call(&server, &[]).await;
            look_until("its spans are there", || collector.spans().len() == before + 2);
        }
        let before = collector.spans().len();
        let without_certificate = encrypted("").start();
        let with_another_authority =
            encrypted("").with_env("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", &other_ca).start();
        for server in [&without_certificate, &with_another_authority] {
            call(server, &[]).await;
            look_until("it is counted", || {
                server.metric("tollgate_span_exports_failed_total") > Some(0.0)
            });
            server.assert_logged("trace export failed");
        }
        with_another_authority.assert_logged("the trusted authority of that name did not sign it");
        assert_eq!(collector.spans().len(), before);
    }
}

#[tokio::test]
async fn a_hanging_collector_costs_only_spans() {
    for protocol in ["http", "grpc"] {
        // The kernel accepts connections, and nothing reads from them.
        let silent = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let collector = silent.local_addr().expect("it is bound");
        let given = |timeout, millis: &str| {
            traced_to(TestServer::with_rules(&limit_of(100_000)), collector)
                .with_envs(&[
                    ("TRACING_EXPORTER_PROTOCOL", protocol),
                    (timeout, millis),
                    ("SHUTDOWN_TIMEOUT", "10m"),
                    NO_DRAIN,
                ])
                .start()
        };
        let mut hasty = given("OTEL_EXPORTER_OTLP_TIMEOUT", "300");
        call(&hasty, &[]).await;
        let lost = r#"tollgate_spans_lost_total{cause="failed"}"#;
        hasty.metric_becomes(lost, 2.0).await;
        assert!(hasty.metric("tollgate_span_exports_failed_total") >= Some(1.0));
        hasty.assert_metric("tollgate_spans_sent_total", 0.0);
        hasty.assert_logged_once("trace export failed; requests are unaffected");
        assert_ends(&mut hasty).await;

        // More than the queue has room for, while the first of them are still tried.
        let mut patient = given("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", NEVER_MS);
        let client = patient.client().await;
        let calls = (0..2_000).map(|_| {
            let mut client = client.clone();
            async move { client.ask("d", &[("k", "")]).await }
        });
        // None of them waits for the collector.
        calls.collect::<JoinSet<Overall>>().join_all().await;
        // The first are still tried, and 2,048 of 4,000 have room.
        patient.assert_metric(lost, 0.0);
        let lost = patient.metric(r#"tollgate_spans_lost_total{cause="full"}"#);
        let lost = lost.expect("it is on the page");
        assert!((1_000.0..=1_952.0).contains(&lost), "{lost}");
        assert_ends(&mut patient).await;
        patient.assert_logged("the collector did not accept the last spans; they are lost");
    }
}

/// It ends, though the last spans cannot be sent. Without a bound of its own that would take until
/// SHUTDOWN_TIMEOUT, which is ten minutes.
async fn assert_ends(server: &mut TestServer) {
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test]
async fn the_last_spans_are_flushed_within_3_s() {
    let collector = Collector::start();
    let mut server = traced(&collector).with_env(NO_DRAIN.0, NO_DRAIN.1).start();
    call(&server, &[]).await;
    assert_ends(&mut server).await;
    assert_eq!(collector.spans().len(), 2);
}

#[test]
fn invalid_trace_settings_are_errors() {
    let authority = Authority::new();
    let ours = authority.sign("tollgate", "DNS:tollgate", KeyForm::Pkcs8);
    let cert = ours.cert.to_str().expect("a plain name");
    assert_settings_rejected(
        || TestServer::with_rules(&limit_of(1)).with_env("TRACING_ENABLED", "true"),
        &format!(
            "
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; TRACING_ENABLED=maybe => write true or false
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; TRACING_EXPORTER_PROTOCOL=zipkin => write one of http, grpc
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; TRACING_SAMPLING_RATE=1.5 => write a number from 0 to 1
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; TRACING_SAMPLING_RATE=NaN => write a number from 0 to 1
OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318 => write http://HOST:PORT or https://HOST:PORT
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=ftp://collector => write http://HOST:PORT or https://HOST:PORT
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_EXPORTER_OTLP_TIMEOUT=10s => write a whole number of milliseconds
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=0 => write a whole number of milliseconds
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_EXPORTER_OTLP_HEADERS=s3cret => write NAME=VALUE,NAME=VALUE
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_EXPORTER_OTLP_COMPRESSION=zstd => write none or gzip
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere => /nowhere
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE={cert} => a certificate needs its key
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_EXPORTER_OTLP_CLIENT_KEY={cert} => a certificate needs its key
OTEL_EXPORTER_OTLP_ENDPOINT=https://collector; OTEL_RESOURCE_ATTRIBUTES=zone => write NAME=VALUE,NAME=VALUE"
        ),
    );
}

#[tokio::test]
async fn batches_are_compressed_with_gzip() {
    let collector = Collector::start();
    for (protocol, addr) in [("http", collector.http), ("grpc", collector.grpc)] {
        let server = traced_to(TestServer::with_rules(&limit_of(1)), addr)
            .with_env("TRACING_EXPORTER_PROTOCOL", protocol)
            .with_env("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
            .with_env("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
            .with_env("OTEL_EXPORTER_OTLP_HEADERS", &format!("x-from={protocol}"))
            .start();
        call(&server, &[]).await;
        batch_with(&collector, "x-from", protocol);
    }
    // The collector does not say how it was sent.
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let addr = listener.local_addr().expect("it is bound");
    let server = traced_to(TestServer::with_rules(&limit_of(1)), addr)
        .with_env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .start();
    call(&server, &[]).await;
    let (stream, _) = listener.accept().expect("it connects");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    assert!(head.iter().any(|line| line == "content-encoding: gzip"), "{head:?}");
}

/// Requests of bytes that are not UTF-8 are shown percent-encoded.
#[tokio::test]
async fn bytes_are_traced_as_text() {
    let collector = Collector::start();
    let server = traced(&collector).start();
    let mut client = server.client().await;
    let descriptor = |value: &[u8]| RateLimitDescriptor {
        entries: vec![Entry { key: b"k".to_vec(), value: value.to_vec() }],
        ..RateLimitDescriptor::default()
    };
    for (domain, value, attribute, expected) in [
        (
            &b"d"[..],
            &b"user_\xff%\n"[..],
            "request string",
            r#"domain:"d" descriptors:{entries:{key:"k" value:"user_%FF%25\n"}}"#,
        ),
        (b"\xff", b"", "domain", "%FF"),
    ] {
        let request = RateLimitRequest {
            domain: domain.to_vec(),
            descriptors: vec![descriptor(value)],
            hits_addend: 0,
        };
        client.call(request).await.expect("there is an answer");
        collector.wait_for(expected, |span| {
            span.attributes.get(attribute).is_some_and(|text| text == expected)
        });
    }
}
