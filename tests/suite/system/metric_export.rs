//! Metrics by OTLP: what an OpenTelemetry collector receives, and that no request waits for an absent one.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};

use crate::support::certificates::{Authority, KeyForm};
use crate::support::otlp::{Batch, Collector, Point};
use crate::support::{
    Builder, Code, TestServer, assert_settings_rejected, eventually, limit_of, look_until,
};

const HITS: &str = "ratelimit_service_rate_limit_total_hits";
const CALLS: &str = "ratelimit_service_total_requests";

/// Sends metrics to this collector: often, and the last ones at once.
fn exporting(endpoint: &str) -> Builder {
    TestServer::with_rules(&limit_of(1_000)).with_envs(&[
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
        ("USE_STATSD", "false"),
        ("DRAIN_PERIOD", "0"),
    ])
}

fn over_http(addr: SocketAddr) -> String {
    format!("http://{addr}/v1/metrics")
}

/// The last data points, by name and attributes.
fn latest(collector: &Collector) -> BTreeMap<(String, BTreeMap<String, String>), Point> {
    let points = collector.points().into_iter();
    points
        .map(|point| ((point.name.clone(), point.attributes.clone()), point))
        .collect()
}

fn value(collector: &Collector, name: &str, attributes: &[(&str, &str)]) -> Option<f64> {
    let attributes = attributes.iter();
    let attributes = attributes.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let key = (name.to_owned(), attributes.collect());
    Some(latest(collector).get(&key)?.value)
}

/// Waits for a batch with this header.
fn batch_with(collector: &Collector, name: &str, value: &str) -> Batch {
    let has = |batch: &Batch| {
        batch
            .headers
            .get(name)
            .is_some_and(|values| values == &[value])
    };
    look_until("there is a batch", || collector.batches().iter().any(has));
    let mut batches = collector.batches().into_iter();
    batches.find(has).expect("it was there")
}

#[tokio::test]
async fn metrics_have_the_names_labels_and_values_of_the_page() {
    for protocol in ["http/protobuf", "grpc"] {
        let collector = Collector::start();
        let endpoint = match protocol {
            "grpc" => format!("http://{}", collector.grpc),
            _ => over_http(collector.http),
        };
        let mut server = exporting(&endpoint)
            .with_env("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", protocol)
            .with_env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
            .with_env("TRACING_SERVICE_NAME", "limits")
            .with_env("TRACING_SERVICE_INSTANCE_ID", "7")
            .with_env("OTEL_RESOURCE_ATTRIBUTES", "zone=a")
            .with_env("EXTRA_TAGS", "cell:b")
            .start();
        let mut client = server.client().await;
        for _ in 0..3 {
            assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
        }
        let hits = [("domain", "d"), ("key1", "k"), ("cell", "b")];
        look_until("hits are there", || {
            value(&collector, HITS, &hits) == Some(3.0)
        });
        let batch = collector.batches().pop().expect("there is one");
        for (name, value) in [
            ("service.name", "limits"),
            ("service.instance.id", "7"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("zone", "a"),
        ] {
            assert_eq!(batch.resource[name], value, "{name}");
        }

        // The last export is complete.
        let page = server.admin("/metrics");
        server.signal("TERM");
        assert_eq!(server.exit_code().await, Some(0));
        let points = latest(&collector);
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for (name, on_page) in types.map(|line| line.split_once(' ').expect("a name and a type")) {
            let of_name: Vec<&Point> = points.values().filter(|point| point.name == name).collect();
            let kind = if on_page == "counter" { "sum" } else { on_page };
            assert!(!of_name.is_empty(), "{name} is missing");
            for point in of_name {
                assert_eq!(point.kind, kind, "{name}");
                assert_eq!(point.is_total, kind == "sum", "{name}");
                assert_eq!(point.attributes["cell"], "b", "{name}");
            }
        }
        let method = [("grpc_method", "ShouldRateLimit"), ("cell", "b")];
        assert_eq!(value(&collector, CALLS, &method), Some(3.0));
        let response_times = "ratelimit_service_response_time_seconds";
        assert_eq!(value(&collector, response_times, &method), Some(3.0));
    }
}

#[tokio::test]
async fn headers_for_metrics_take_precedence_and_are_not_logged() {
    let collector = Collector::start();
    let server = exporting(&over_http(collector.http))
        .with_env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=wrong")
        .with_env(
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
            "x-token=s3%2Ccret,x-from=metrics",
        )
        .start();
    let batch = batch_with(&collector, "x-from", "metrics");
    assert_eq!(batch.headers["x-token"], ["s3,cret"]);
    server.assert_not_logged("s3");
    let _server = exporting(&over_http(collector.http))
        .with_env("OTEL_EXPORTER_OTLP_HEADERS", "x-all=signals")
        .start();
    batch_with(&collector, "x-all", "signals");
}

#[tokio::test]
async fn https_authenticates_collector_and_client_for_metrics() {
    let authority = Authority::new();
    let theirs = authority.sign("collector", "DNS:localhost,IP:127.0.0.1", KeyForm::Pkcs8);
    let ours = authority.sign("tollgate", "DNS:tollgate", KeyForm::Pkcs8);
    let collector = Collector::start_with_tls(&theirs);
    let [ca, cert, key] =
        [authority.cacert(), ours.cert, ours.key].map(|path| path.display().to_string());
    let endpoint = format!("https://localhost:{}/v1/metrics", collector.http.port());
    let with_authority = || exporting(&endpoint).with_env("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca);
    let stranger = with_authority().start();
    look_until("a client without a certificate is rejected", || {
        stranger.metric("tollgate_metric_exports_failed_total") > Some(0.0)
    });
    assert_eq!(collector.batches().len(), 0);
    let _server = with_authority()
        .with_env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &cert)
        .with_env("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key)
        .start();
    look_until("metrics are there", || !collector.points().is_empty());
}

#[tokio::test]
async fn many_series_are_split_into_requests_and_none_is_lost() {
    let collector = Collector::start();
    let rule = |value: u32| {
        format!(
            "\n- {{key: k, value: '{value}', rate_limit: {{unit: year, requests_per_unit: 9}}}}"
        )
    };
    let rules: String = (0..3_000).map(rule).collect();
    let server = TestServer::with_rules(&format!("domain: d\ndescriptors:{rules}\n"));
    let endpoint = format!("http://{}", collector.grpc);
    let mut server = server
        .with_env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &endpoint)
        .with_env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .with_env("DRAIN_PERIOD", "0")
        .start();
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    let points = collector.points();
    let of_rules = points
        .iter()
        .filter(|point| point.name == "tollgate_rule_limit");
    assert_eq!(of_rules.count(), 3_000);
    let sizes: Vec<usize> = collector
        .batches()
        .iter()
        .map(|batch| batch.points.len())
        .collect();
    assert!(
        sizes.len() > 6 && sizes.iter().all(|&size| size <= 1_000),
        "{sizes:?}"
    );
}

#[tokio::test]
async fn a_hanging_collector_delays_neither_requests_nor_the_end() {
    // The kernel accepts connections, and nothing reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let addr = silent.local_addr().expect("it is bound");
    let mut server = exporting(&over_http(addr))
        .with_env("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
        .with_env("SHUTDOWN_TIMEOUT", "10m")
        .start();
    let mut client = server.client().await;
    for _ in 0..100 {
        assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    }
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    server.assert_logged("the collector did not accept the last metrics in time");
}

#[tokio::test]
async fn failed_exports_are_counted_and_logged_once() {
    let server = exporting("http://127.0.0.1:9/v1/metrics")
        .with_env("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
        .start();
    eventually("several exports fail", async || {
        server.metric("tollgate_metric_exports_failed_total") > Some(3.0)
    })
    .await;
    server.assert_logged_once("metric export failed; requests are unaffected");
    server.assert_metric("tollgate_metric_points_sent_total", 0.0);
}

#[tokio::test]
async fn without_an_endpoint_for_metrics_none_are_sent() {
    let collector = Collector::start();
    let server = TestServer::with_rules(&limit_of(1))
        .with_env(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            &format!("http://{}", collector.http),
        )
        .with_env("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json")
        .with_env("OTEL_METRIC_EXPORT_INTERVAL", "often")
        .with_env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "")
        .start();
    assert_eq!(server.metric("tollgate_metric_points_sent_total"), None);
}

#[test]
fn invalid_settings_of_metric_export_are_errors() {
    assert_settings_rejected(
        || exporting("http://127.0.0.1:9/v1/metrics"),
        "
OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=collector:4318 => write http://HOST:PORT or https://HOST:PORT
OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/json => OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: write http/protobuf or grpc
OTEL_EXPORTER_OTLP_PROTOCOL=http => OTEL_EXPORTER_OTLP_PROTOCOL: write http/protobuf or grpc
OTEL_EXPORTER_OTLP_METRICS_HEADERS=s3cret => OTEL_EXPORTER_OTLP_METRICS_HEADERS: write NAME=VALUE,NAME=VALUE
OTEL_METRIC_EXPORT_INTERVAL=60s => OTEL_METRIC_EXPORT_INTERVAL: write a whole number of milliseconds
OTEL_METRIC_EXPORT_INTERVAL=0 => OTEL_METRIC_EXPORT_INTERVAL: write a whole number of milliseconds
OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere; OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=https://collector => /nowhere",
    );
}
