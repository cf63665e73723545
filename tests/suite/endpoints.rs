//! Responses of every endpoint: gRPC with health and reflection, HTTP, the admin listener, and
//! Prometheus' own.

use serde_json::json;
use tokio_stream::once;
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

use crate::support::http::{self, Connection};
use crate::support::{Code, TestServer, limit_of, request};

/// What reflection must list.
const SERVICES: [&str; 2] =
    ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"];

#[tokio::test]
async fn grpc_response_has_limit_and_remaining() {
    let server = TestServer::with_rules(&limit_of(2)).start();
    let mut client = server.client().await;
    let asked = request("d", &[&[("k", "")], &[("unknown", "")]]);
    let response = client.answer(asked).await;
    assert_eq!(response.overall_code(), Code::Ok);
    let [limited, unlimited] = &*response.statuses else {
        panic!("a status for each descriptor: {response:?}")
    };

    let limit = limited.current_limit.as_ref().expect("it has a limit");
    assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Year));
    assert_eq!((limited.code(), limited.limit_remaining), (Code::Ok, 1));
    let reset = limited.duration_until_reset.as_ref().expect("a reset");
    assert!((1..=365 * 24 * 3_600).contains(&reset.seconds), "{reset:?}");
    assert_eq!(reset.nanos, 0);
    assert_eq!((unlimited.code(), unlimited.limit_remaining), (Code::Ok, 0));
    assert_eq!(unlimited.current_limit, None);

    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    let response = client.answer(request("d", &[&[("k", "")]])).await;
    let codes = [response.overall_code(), response.statuses[0].code()];
    assert_eq!(codes, [Code::OverLimit; 2]);
}

#[tokio::test]
async fn calls_on_many_connections_share_one_counter() {
    let server = TestServer::with_rules(&limit_of(40)).with_env("WORKERS", "4").start();
    server.assert_announced("\n  workers  4\n");
    let mut admitted = 0;
    for _ in 0..10 {
        let mut client = server.client().await;
        for _ in 0..5 {
            admitted += usize::from(client.ask("d", &[("k", "")]).await == Code::Ok);
        }
    }
    assert_eq!(admitted, 40);
}

#[tokio::test]
async fn unknown_service_or_method_is_unimplemented() {
    let server = TestServer::with_rules(&limit_of(1)).start();
    let mut client = server.client().await;
    let mut elsewhere = tonic::client::Grpc::new(client.channel.clone());
    for path in [
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/envoy.service.ratelimit.v3.RateLimitService/Nothing",
    ] {
        elsewhere.ready().await.expect("the connection is open");
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let request = tonic::Request::new(());
        let uri = path.parse().expect("a path");
        let answer = elsewhere.unary(request, uri, codec).await;
        let error = answer.expect_err("it is not there");
        assert_eq!(error.code(), tonic::Code::Unimplemented, "{path}");
    }
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
}

/// What reflection of a version answers.
macro_rules! reflect {
    ($version:ident, $client:expr, $question:ident($text:expr)) => {{
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        let request = tonic_reflection::pb::$version::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::$question($text.to_owned())),
        };
        let mut reflection = ServerReflectionClient::new($client.channel.clone());
        let answers = reflection.server_reflection_info(once(request)).await;
        let mut answers = answers.expect("there is reflection").into_inner();
        let answer = answers.message().await.expect("the stream is open");
        let answer = answer.expect("an answer");
        format!("{:?}", answer.message_response.expect("it has a message"))
    }};
}

#[tokio::test]
async fn reflection_lists_the_services_and_describes_them() {
    let server = TestServer::with_rules(&limit_of(1)).start();
    let client = server.client().await;
    for list in
        [reflect!(v1, client, ListServices("")), reflect!(v1alpha, client, ListServices(""))]
    {
        for service in SERVICES {
            assert!(list.contains(&format!("name: {service:?}")), "{list}");
        }
    }
    for service in SERVICES {
        let described = reflect!(v1, client, FileContainingSymbol(service));
        assert!(described.starts_with("FileDescriptorResponse"), "{described}");
    }
}

#[test]
fn healthcheck_accepts_any_method() {
    let server = TestServer::with_rules(&limit_of(1)).start();
    let mut connection = Connection::open(server.http);
    for method in ["GET", "POST", "HEAD", "PUT"] {
        let reply = connection.send(method, "/healthcheck", "");
        let reply = reply.expect("there is a response");
        let body = if method == "HEAD" { "" } else { "OK" };
        assert_eq!((reply.status, &*reply.body), (200, body), "{method}");
    }
}

#[test]
fn ready_reports_each_part_on_both_ports() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("BACKEND_TYPE", "memory").start();
    let body = "ready\nprocess: running\nstore: memory\nrules: ok\n";
    for addr in [server.http, server.admin] {
        let reply = http::get(addr, "/ready");
        assert_eq!((reply.status, &*reply.body), (200, body));
    }
}

#[test]
fn http_port_has_no_other_paths() {
    let server = TestServer::with_rules(&limit_of(1)).start();
    for path in ["/", "/metrics", "/rlconfig", "/json/", "/nothing"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn unknown_admin_path_is_answered_with_every_page() {
    let server = TestServer::with_rules(&limit_of(7)).start();
    let index = server.admin("/whatever");
    for page in "explain healthcheck live metrics ready rlconfig stats".split(' ') {
        let begin = format!("/{page}: ");
        assert!(index.lines().any(|line| line.starts_with(&begin)), "{page}: {index}");
        assert_ne!(http::get(server.admin, &format!("/{page}")).status, 404, "{page}");
    }
    for path in ["/whatever/else", "/rlconfig/", "/metric"] {
        let reply = http::get(server.admin, path);
        assert_eq!((reply.status, &*reply.body), (404, &*index), "{path}");
    }
}

/// A limit that envoyproxy/ratelimit cannot express.
const BUCKET: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: {unit: minute, requests_per_unit: 5}
    metadata: {tollgate: {algorithm: token_bucket, unit_multiplier: 5, burst: 20}}
";

#[test]
fn rlconfig_has_the_complete_limit_as_text_and_as_json() {
    let server = TestServer::with_rules(BUCKET).with_env("ON_STORE_ERROR", "deny").start();
    let line = "d.k: unit=MINUTE unit_multiplier=5 requests_per_unit=5, shadow_mode: false, quota_mode: false, \
                algorithm: token_bucket, burst: 20, over_limit_hits: drop, on_limit: reject\n";
    assert_eq!(server.admin("/rlconfig"), line);
    assert_eq!(server.admin("/rlconfig?format=text"), line);

    let reply = http::get(server.admin, "/rlconfig?format=json");
    assert_eq!(reply.status, 200);
    let is_json = reply.has_header("content-type: application/json");
    assert!(is_json, "{:?}", reply.headers);
    let json = reply.json();
    let limit = &json["domains"][0]["descriptors"][0]["limit"];
    assert_eq!((&limit["burst"], &limit["on_store_error"]), (&json!(20), &json!("deny")));

    let reply = http::get(server.admin, "/rlconfig?format=yaml");
    let error = "unknown format \"yaml\"; write format=text or format=json\n";
    assert_eq!((reply.status, &*reply.body), (400, error));
}

#[test]
fn rlconfig_as_json_is_503_while_no_rules_are_loaded() {
    let server = TestServer::with_rules("domain: ''\n").start();
    let reply = http::get(server.admin, "/rlconfig?format=json");
    assert_eq!((reply.status, &*reply.body), (503, "no rules are loaded\n"));
    // As envoyproxy/ratelimit responds.
    let reply = http::get(server.admin, "/rlconfig");
    assert_eq!((reply.status, &*reply.body), (200, ""));
}

#[test]
fn explain_page_explains_and_shows_its_usage() {
    let server = TestServer::with_rules(&limit_of(7)).start();
    let page = server.admin("/explain?domain=d&descriptor=k%3D10.0.0.1%2C%2010.0.0.2");
    assert!(
        page.contains("k=10.0.0.1, 10.0.0.2 -> k (its key, for any value)")
            && page.contains("=> limit 7 per year"),
        "{page}"
    );
    let usage = "write /explain?domain=DOMAIN&descriptor=KEY%3DVALUE";
    for query in ["", "?domain=d", "?domain=d&descriptor=%3Dv"] {
        let reply = http::get(server.admin, &format!("/explain{query}"));
        assert_eq!(reply.status, 400, "{query}");
        assert!(reply.body.contains(usage), "{query}: {reply:?}");
    }
    let no_domain =
        "rate limit domain must not be empty\nwrite a RateLimitRequest as JSON, such as ";
    for (body, expected) in [("", "invalid request: "), ("{}", no_domain)] {
        let reply = http::post(server.admin, "/explain", body);
        assert_eq!(reply.status, 400, "{body}");
        assert!(
            reply.body.starts_with(expected) && reply.body.contains("\"descriptors\""),
            "{body}: {reply:?}"
        );
    }
    let oversized = " ".repeat(tollgate::api::request_size::MESSAGE_BYTES_MAX + 1);
    assert_eq!(http::post(server.admin, "/explain", &oversized).status, 413);
}

#[test]
fn prometheus_addr_serves_metrics_only() {
    let start = |enabled: &str, path: &str| {
        TestServer::with_rules(&limit_of(1))
            .with_env("USE_PROMETHEUS", enabled)
            .with_env("PROMETHEUS_PATH", path)
            .start()
    };
    let server = start("true", "");
    let addr = server.prometheus.expect("it is bound");
    let page = http::get(addr, "/metrics");
    assert_eq!(page.status, 200);
    let content_type = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(page.has_header(content_type), "{:?}", page.headers);
    for text in
        ["# TYPE ratelimit_service_config_load_success counter", "process_resident_memory_bytes "]
    {
        assert!(page.body.contains(text), "{}", page.body);
    }
    // It shows metrics alone.
    assert_eq!(http::get(addr, "/rlconfig").status, 404);

    let server = start("true", "/stats/prometheus");
    let addr = server.prometheus.expect("it is bound");
    assert_eq!(http::get(addr, "/stats/prometheus").status, 200);
    assert!(start("", "").prometheus.is_none());
}
