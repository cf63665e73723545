//! A trial: callers see what they would see without it, and decisions here are compared with those of
//! the service in use.

use std::time::Duration;

use h2::Reason;
use http::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Code::{
    Cancelled, DeadlineExceeded, Internal, PermissionDenied, ResourceExhausted, Unavailable,
};

use crate::support::certificates::{Authority, KeyForm};
use crate::support::proxy::{Fault, Proxy};
use crate::support::raw_grpc::frame;
use crate::support::raw_upstream::{Answer, RawUpstream, headers};
use crate::support::redis::RedisProcess;
use crate::support::{Builder, Client, Code, TestServer, eventually, request, tollgate, write};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A limit of a year for each user, in the domain `d`.
fn users(requests: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n  - key: user\n    rate_limit: {{unit: year, requests_per_unit: {requests}}}\n"
    )
}

fn trial(requests: u32, upstream: &impl ToString) -> Builder {
    TestServer::with_rules(&users(requests))
        .with_env("TRIAL_UPSTREAM", &upstream.to_string())
        .with_env("WORKERS", "1")
}

async fn compared(server: &TestServer, requests: u64) -> Value {
    eventually("requests are compared", async || {
        server.admin_json("/trial")["requests"] == requests
    })
    .await;
    server.admin_json("/trial")
}

fn user(name: &str) -> RateLimitRequest {
    request("d", &[&[("user", name)]])
}

async fn codes(server: &TestServer, user: &str, requests: usize) -> Vec<Code> {
    let mut client = server.client().await;
    let mut codes = Vec::new();
    for _ in 0..requests {
        codes.push(client.ask("d", &[("user", user)]).await);
    }
    codes
}

/// The code of a call with a time-out.
async fn error_within(client: &mut Client, timeout: Duration) -> tonic::Code {
    let mut call = tonic::Request::new(user("ann"));
    call.set_timeout(timeout);
    let mut rls = tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient::new(client.channel.clone());
    match rls.should_rate_limit(call).await {
        Ok(_) => tonic::Code::Ok,
        Err(status) => status.code(),
    }
}

/// A response as it was received.
struct Raw {
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Raw {
    fn status(&self) -> Option<&str> {
        let trailers = self.trailers.as_ref();
        let status = trailers.and_then(|trailers| trailers.get("grpc-status"));
        let status = status.or_else(|| self.headers.get("grpc-status"));
        status.map(|status| status.to_str().expect("it is text"))
    }
}

/// Sends a call as it is.
async fn call(server: &TestServer, sent: &HeaderMap, body: &[u8]) -> Raw {
    use http_body_util::{BodyExt as _, Full};
    let stream = TcpStream::connect(server.grpc).await.expect("it is open");
    let http2 = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) =
        http2.handshake(TokioIo::new(stream)).await.expect("it speaks HTTP/2");
    let mut driving = JoinSet::new();
    driving.spawn(async { drop(connection.await) });
    let mut request = Request::post(format!("http://{}{PATH}", server.grpc))
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("it is a request");
    request.headers_mut().extend(sent.clone());
    let response = sender.send_request(request).await.expect("a response");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body");
    Raw {
        headers: head.headers,
        trailers: body.trailers().cloned(),
        body: body.to_bytes().to_vec(),
    }
}

fn ok() -> HeaderMap {
    headers(&[("grpc-status", "0")])
}

fn grpc() -> HeaderMap {
    headers(&[("content-type", "application/grpc"), ("te", "trailers")])
}

/// OK for each descriptor, without limits.
fn reply(descriptors: usize) -> RateLimitResponse {
    let mut status = DescriptorStatus::default();
    status.set_code(Code::Ok);
    let mut response =
        RateLimitResponse { statuses: vec![status; descriptors], ..RateLimitResponse::default() };
    response.set_overall_code(Code::Ok);
    response
}

fn answer(body: Vec<u8>) -> Answer {
    Answer::Reply {
        headers: headers(&[("content-type", "application/grpc")]),
        body,
        trailers: Some(ok()),
    }
}

/// A message with a field that no version knows.
fn with_unknown_field(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    // Field 999 is `x`.
    bytes.extend_from_slice(&[0xba, 0x3e, 1, b'x']);
    crate::support::raw_grpc::frame_of(&bytes)
}

#[tokio::test]
async fn calls_and_replies_are_forwarded_as_they_are() {
    let body = with_unknown_field(&reply(1));
    let upstream = RawUpstream::start(Answer::Reply {
        headers: headers(&[("content-type", "application/grpc+proto"), ("x-served-by", "a")]),
        body: body.clone(),
        trailers: Some(headers(&[("grpc-status", "0"), ("x-cost", "3")])),
    })
    .await;
    let server = trial(1, &upstream.addr).start();
    let mut sent = grpc();
    sent.extend(headers(&[("x-tenant", "acme"), ("grpc-timeout", "90000m")]));
    let message = with_unknown_field(&user("ann"));
    let got = call(&server, &sent, &message).await;
    assert_eq!(got.body, body);
    assert_eq!(got.headers["content-type"], "application/grpc+proto");
    assert_eq!(got.headers["x-served-by"], "a");
    assert_eq!(got.trailers.expect("some")["x-cost"], "3");

    let received = &upstream.received()[0];
    assert_eq!((&*received.path, &received.body), (PATH, &message));
    assert_eq!(received.headers["x-tenant"], "acme");
    assert_eq!(received.headers["te"], "trailers");
    let timeout = received.headers["grpc-timeout"].to_str().expect("it is text");
    let left: u64 = timeout.trim_end_matches('u').parse().expect("microseconds");
    assert!((60_000_000..90_000_000).contains(&left), "{timeout}");

    upstream.set(Answer::Reply {
        headers: headers(&[
            ("content-type", "application/grpc"),
            ("grpc-status", "12"),
            ("grpc-message", "unknown service"),
            ("grpc-status-details-bin", "CAwSA2Zvbw"),
        ]),
        body: Vec::new(),
        trailers: None,
    });
    let got = call(&server, &grpc(), &message).await;
    assert_eq!((got.status(), &*got.body), (Some("12"), &b""[..]));
    assert_eq!(got.headers["grpc-message"], "unknown service");
    assert_eq!(got.headers["grpc-status-details-bin"], "CAwSA2Zvbw");

    let shown = compared(&server, 2).await;
    assert_eq!(shown["agreed"], 1, "the first response was OK here, too");
    let disagreements = shown["disagreements"].as_array().expect("a list");
    let classes: Vec<&Value> = disagreements.iter().map(|one| &one["class"]).collect();
    assert_eq!(classes, ["error_there"]);
}

#[tokio::test]
async fn decisions_are_compared_by_rule() {
    let upstream = TestServer::with_rules(&users(1)).start();
    let server = trial(3, &upstream.grpc).start();
    let expected = [Code::Ok, Code::OverLimit, Code::OverLimit, Code::OverLimit];
    assert_eq!(codes(&server, "ann", 4).await, expected);
    let shown = compared(&server, 4).await;
    assert_eq!((&shown["agreed"], &shown["dropped"]), (&json!(2), &json!(0)));
    assert_eq!(shown["upstream"], upstream.grpc.to_string());
    let rule = &shown["rules"][0];
    for (field, expected) in [
        ("domain", json!("d")),
        ("rule", json!("d.user")),
        ("requests", json!(4)),
        ("agreed", json!(2)),
        ("over_here", json!(0)),
        ("over_there", json!(2)),
    ] {
        assert_eq!(rule[field], expected, "{field}");
    }
    assert_eq!(rule["classes"]["limit_differs"], 2);
    server.assert_announced(&format!("gRPC is forwarded to {}", upstream.grpc));
    let last = &shown["disagreements"][0];
    assert_eq!(last["descriptors"], json!(["user=ann"]));
    assert_eq!(
        (&last["here"]["code"], &last["there"]["code"]),
        (&json!("OK"), &json!("OVER_LIMIT"))
    );
    assert_eq!(last["there"]["current_limit"]["requests_per_unit"], 1);
    let series = |class: &str| {
        format!(r#"tollgate_trial_decisions_total{{domain="d",rule="d.user",class="{class}"}}"#)
    };
    server.assert_metric(&series("agreed"), 2.0);
    server.assert_metric(&series("limit_differs"), 2.0);
    let forwarded = r#"tollgate_trial_requests_total{domain="d",outcome="forwarded"}"#;
    server.assert_metric(forwarded, 4.0);
    server.assert_metric("tollgate_trial_upstream_seconds_count", 4.0);

    let ran = tollgate(&["trial", "report", "--url", &format!("http://{}", server.admin)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for expected in [
        "4 requests compared with 127.0.0.1:",
        "agreed: 50.00 % (15.00 to 85.00)",
        "limit_differs 2",
        "limit_differs  d.user  user=ann",
        "there  OVER_LIMIT, 1 per year, 0 left",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}: {}", ran.stdout);
    }
}

#[tokio::test]
async fn differences_are_explained() {
    let there = format!(
        "{}  - key: path\n    rate_limit: {{unit: year, requests_per_unit: 0}}\n",
        users(2)
    );
    let upstream = TestServer::with_rules(&there).start();
    let mut before = upstream.client().await;
    before.ask("d", &[("user", "ann")]).await;
    let server = trial(2, &upstream.grpc).start();
    assert_eq!(codes(&server, "ann", 2).await, [Code::Ok, Code::OverLimit]);
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("path", "/")]).await, Code::OverLimit);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}"#;
    for _ in 0..2 {
        assert_eq!(server.json(body).status, 200, "counted here only");
    }
    assert_eq!(codes(&server, "bob", 1).await, [Code::Ok]);
    let shown = compared(&server, 4).await;
    let of_last: Vec<(&Value, &Value)> = shown["disagreements"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (&one["rule"], &one["class"]))
        .collect();
    let expected = [
        (&json!("d.user"), &json!("unexplained")),
        (&json!("(no rule)"), &json!("rule_missing")),
        (&json!("d.user"), &json!("warm_up")),
    ];
    assert_eq!(of_last, expected);
}

#[tokio::test]
async fn without_a_trial_there_is_no_page() {
    let server = TestServer::with_rules(&users(1)).start();
    assert_eq!(server.admin("/trial"), "TRIAL_UPSTREAM is not set\n");
    assert_eq!(server.metric("tollgate_trial_enforce_percent"), None);
}

#[tokio::test]
async fn an_upstream_that_ends_is_unavailable_until_it_is_back() {
    let upstream = TestServer::with_rules(&users(9)).start();
    let port = upstream.grpc.port().to_string();
    let server = trial(9, &upstream.grpc).start();
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("user", "ann")]).await, Code::Ok);
    upstream.signal("KILL");
    drop(upstream);
    let status = client.call(user("ann")).await.expect_err("it is gone");
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    let upstream = TestServer::with_rules(&users(9)).with_env("GRPC_PORT", &port).start();
    eventually("it is used again", async || client.call(user("ann")).await.is_ok()).await;
    server.assert_logged("connection to the trial's upstream failed");
    drop(upstream);
}

#[tokio::test]
async fn a_late_upstream_is_waited_for_until_the_deadline() {
    let upstream = TestServer::with_rules(&users(9)).start();
    let proxy = Proxy::before(upstream.grpc.port());
    let server = trial(9, &proxy.addr()).start();
    let deciding = trial(0, &proxy.addr()).with_env("TRIAL_ON_UPSTREAM_ERROR", "decide").start();
    let (mut client, mut of_deciding) = (server.client().await, deciding.client().await);
    assert_eq!(of_deciding.ask("d", &[("user", "ann")]).await, Code::Ok);
    for fault in [Fault::None, Fault::Delay(Duration::from_millis(300))] {
        proxy.set(fault);
        assert_eq!(client.ask("d", &[("user", "ann")]).await, Code::Ok);
    }
    proxy.set(Fault::Stall);
    let count = |outcome: &str| {
        server
            .metric(&format!(r#"tollgate_trial_requests_total{{domain="d",outcome="{outcome}"}}"#))
    };
    // On a busy machine a caller may give up before its call arrives.
    eventually("a call is counted, as late or canceled", async || {
        let code = error_within(&mut client, Duration::from_millis(300)).await;
        assert!(matches!(code, DeadlineExceeded | Cancelled), "{code:?}");
        count("late").zip(count("canceled")).is_some_and(|(late, canceled)| late + canceled > 0.5)
    })
    .await;
    assert_eq!(count("forwarded"), Some(2.0));
    let code = error_within(&mut of_deciding, Duration::from_secs(20)).await;
    assert_eq!(code, tonic::Code::Ok, "a fifth of the time is for our answer");
    let decided = r#"tollgate_trial_requests_total{domain="d",outcome="decided"}"#;
    deciding.metric_becomes(decided, 1.0).await;
    proxy.set(Fault::None);
    eventually("it replies again", async || {
        error_within(&mut client, Duration::from_secs(5)).await == tonic::Code::Ok
    })
    .await;
}

#[tokio::test]
async fn on_an_upstream_error_our_answer_may_be_returned() {
    let error = Answer::Reply {
        headers: headers(&[("content-type", "application/grpc"), ("grpc-status", "2")]),
        body: Vec::new(),
        trailers: None,
    };
    let upstream = RawUpstream::start(error).await;
    let server = trial(1, &upstream.addr).with_env("TRIAL_ON_UPSTREAM_ERROR", "decide").start();
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("user", "ann")]).await, Code::Ok);
    assert_eq!(client.ask("d", &[("user", "ann")]).await, Code::OverLimit);
    let invalid = client.call(request("d", &[])).await.expect_err("no descriptors");
    assert_eq!(invalid.code(), tonic::Code::Unknown, "that of the upstream");
    upstream.set(Answer::Reset(Reason::INTERNAL_ERROR));
    assert_eq!(client.ask("d", &[("user", "bob")]).await, Code::Ok);
}

#[tokio::test]
async fn invalid_replies_are_errors_as_a_client_sees_them() {
    let upstream = RawUpstream::start(Answer::Reset(Reason::REFUSED_STREAM)).await;
    let server = trial(9, &upstream.addr).start();
    let mut client = server.client().await;
    let mut code = async |answer: Answer| {
        upstream.set(answer);
        let status = client.call(user("ann")).await.expect_err("no valid reply");
        status.code()
    };
    assert_eq!(code(Answer::Reset(Reason::REFUSED_STREAM)).await, Unavailable);
    assert_eq!(upstream.received().len(), 3, "it was sent again, since it was not seen");
    assert_eq!(code(Answer::Reset(Reason::INADEQUATE_SECURITY)).await, PermissionDenied);
    assert_eq!(upstream.received().len(), 4);
    let part = frame(&reply(1))[..4].to_vec();
    assert_eq!(code(Answer::ResetDuring(part)).await, Internal);
    assert_eq!(code(answer(vec![0; (4 << 20) + 1])).await, ResourceExhausted);
    let outcome = r#"tollgate_trial_requests_total{domain="d",outcome="unavailable"}"#;
    server.assert_metric(outcome, 4.0);
    compared(&server, 4).await;
}

#[tokio::test]
async fn calls_that_cannot_be_compared_are_forwarded_and_counted() {
    let upstream = RawUpstream::start(answer(frame(&reply(2)))).await;
    let server = trial(9, &upstream.addr).start();
    let dropped = |reason: &str| format!(r#"tollgate_trial_dropped_total{{reason="{reason}"}}"#);
    let got = call(&server, &grpc(), &frame(&user("ann"))).await;
    assert_eq!(got.status(), Some("0"));
    server.metric_becomes(&dropped("invalid_reply"), 1.0).await;
    let not_protobuf = crate::support::raw_grpc::frame_of(b"\xff\xff");
    let got = call(&server, &grpc(), &not_protobuf).await;
    assert_eq!((got.status(), &got.body), (Some("0"), &frame(&reply(2))));
    assert_eq!(upstream.received()[1].body, not_protobuf);
    server.metric_becomes(&dropped("invalid"), 1.0).await;
    assert_eq!(server.admin_json("/trial")["dropped"], 2);
    assert_eq!(server.admin_json("/trial")["requests"], 0);
}

#[tokio::test]
async fn other_services_are_not_forwarded() {
    let upstream = RawUpstream::start(answer(frame(&reply(1)))).await;
    let server = trial(9, &upstream.addr).start();
    let mut client = server.client().await;
    client.health("").await.expect("it has health of its own");
    let mut grpc = tonic::client::Grpc::new(client.channel.clone());
    grpc.ready().await.expect("it is connected");
    let path =
        http::uri::PathAndQuery::from_static("/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit");
    let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let called = grpc.unary(tonic::Request::new(user("ann")), path, codec).await;
    let status = called.expect_err("no such service");
    assert_eq!(status.code(), tonic::Code::Unimplemented);
    assert!(upstream.received().is_empty());
}

#[tokio::test]
async fn a_trial_whose_upstream_is_a_trial_is_rejected() {
    let inner = trial(9, &"127.0.0.1:9").start();
    let server = trial(9, &inner.grpc).start();
    let mut client = server.client().await;
    let status = client.call(user("ann")).await.expect_err("it is a loop");
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert!(status.message().contains("TRIAL_UPSTREAM"), "{status:?}");
    client.call(user("ann")).await.expect_err("it is a loop");
    inner.assert_metric(r#"tollgate_trial_dropped_total{reason="loop"}"#, 2.0);
    inner.assert_logged_once("rejecting a call that a trial has forwarded");
}

#[tokio::test]
async fn callers_do_not_notice_that_our_redis_stops_or_ends_under_load() {
    const CALLERS: usize = 8;
    let upstream = TestServer::with_rules(&users(200)).start();
    let mut redis = RedisProcess::builder().in_own_group().start();
    let server = trial(200, &upstream.grpc)
        .with_env("REDIS_URL", &redis.url())
        .with_env("STORE_TIMEOUT", "50ms")
        .start();
    let client = server.client().await;
    // Each uses its own limit and as many hits again.
    let call = async |client: Client, caller: usize| {
        let mut client = client;
        let mut codes = Vec::new();
        for _ in 0..400 {
            codes.push(client.ask("d", &[("user", &*caller.to_string())]).await);
        }
        codes
    };
    let mut calls = JoinSet::new();
    for caller in 0..CALLERS {
        let client = client.clone();
        calls.spawn(call(client, caller));
    }
    let forwarded = r#"tollgate_trial_requests_total{domain="d",outcome="forwarded"}"#;
    let some = async |count: f64| {
        eventually("calls are answered", async || {
            server.metric(forwarded).is_some_and(|forwarded| forwarded >= count)
        })
        .await;
    };
    some(300.0).await;
    redis.stop();
    some(900.0).await;
    redis.kill();
    while let Some(codes) = calls.join_next().await {
        let codes = codes.expect("no call fails");
        let (admitted, over) = codes.split_at(200);
        assert!(admitted.iter().all(|code| *code == Code::Ok));
        assert!(over.iter().all(|code| *code == Code::OverLimit));
    }
    let shown = compared(&server, 3_200).await;
    let rule = &shown["rules"][0];
    let explained = rule["agreed"].as_u64().expect("a number")
        + rule["classes"]["store_error"].as_u64().expect("a number");
    assert_eq!(explained, 3_200, "{shown}");
}

#[tokio::test]
async fn comparisons_are_bounded_and_dropped_beyond() {
    let upstream = TestServer::with_rules(&users(1_000_000)).start();
    let redis = RedisProcess::builder().in_own_group().start();
    // Waits for a Redis that does not reply.
    let server = trial(1_000_000, &upstream.grpc).with_env("REDIS_URL", &redis.url()).start();
    let client = server.client().await;
    assert_eq!(codes(&server, "ann", 1).await, [Code::Ok]);
    compared(&server, 1).await;
    redis.stop();
    let mut calls = JoinSet::new();
    for _ in 0..1_100 {
        let mut client = client.clone();
        calls.spawn(async move { client.ask("d", &[("user", "ann")]).await });
    }
    while let Some(code) = calls.join_next().await {
        assert_eq!(code.expect("no panic"), Code::Ok);
    }
    let dropped = server.metric(r#"tollgate_trial_dropped_total{reason="pending_max"}"#);
    assert!(dropped.is_some_and(|dropped| dropped >= 1.0), "{dropped:?}");
    redis.cont();
}

#[tokio::test]
async fn counters_of_a_trial_are_separate_and_may_be_kept() {
    let redis = RedisProcess::start();
    let with_redis = |server: Builder| {
        let server = server.with_env("REDIS_URL", &redis.url());
        server.with_env("CACHE_KEY_PREFIX", "p:")
    };
    let upstream = with_redis(TestServer::with_rules(&users(2))).start();
    let server = with_redis(trial(2, &upstream.grpc)).start();
    let expected = [Code::Ok, Code::Ok, Code::OverLimit];
    assert_eq!(codes(&server, "ann", 3).await, expected);
    assert_eq!(compared(&server, 3).await["agreed"], 3);
    let mut keys: Vec<String> = redis.command(&["KEYS", "*user_ann_*"]);
    keys.sort();
    let prefixes: Vec<&str> = keys.iter().filter_map(|key| key.split("d_").next()).collect();
    assert_eq!(prefixes, ["p:", "trial:p:"]);
    redis.command::<()>(&["DEL", &keys[0]]);
    let fresh = with_redis(TestServer::with_rules(&users(2))).start();
    assert_eq!(codes(&fresh, "ann", 1).await, [Code::Ok]);
    let keeping = with_redis(TestServer::with_rules(&users(2)))
        .with_env("TRIAL_KEEP_COUNTERS", "true")
        .start();
    assert_eq!(codes(&keeping, "ann", 1).await, [Code::OverLimit]);
}

#[tokio::test]
async fn a_share_of_callers_gets_our_answer() {
    let upstream = TestServer::with_rules(&users(1_000)).start();
    // Over limit here, and there never.
    let server = trial(0, &upstream.grpc).with_env("TRIAL_ENFORCE_PERCENT", "50").start();
    let mut client = server.client().await;
    let mut sides = async || {
        let mut sides = Vec::new();
        for user in 0..100 {
            sides.push(client.ask("d", &[("user", &*user.to_string())]).await);
        }
        sides
    };
    let first = sides().await;
    let ours = first.iter().filter(|code| **code == Code::OverLimit).count();
    assert!((30..70).contains(&ours), "{ours}");
    assert_eq!(sides().await, first, "one caller always gets the same side");
    let shown = compared(&server, 200).await;
    assert_eq!(shown["rules"][0]["over_here"], 200, "every call is compared");
    assert_eq!(shown["enforce_percent"], 50);
    let enforced = r#"tollgate_trial_requests_total{domain="d",outcome="enforced"}"#;
    server.assert_metric(enforced, 2.0 * f64::from(u32::try_from(ours).expect("small")));
}

#[tokio::test]
async fn the_share_is_reloaded_from_its_file() {
    let upstream = TestServer::with_rules(&users(1_000)).start();
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let file = directory.path().join("percent");
    write(&file, "100\n");
    let server = trial(0, &upstream.grpc)
        .with_env("TRIAL_ENFORCE_PERCENT_FILE", &file.display().to_string())
        .start();
    assert_eq!(codes(&server, "ann", 1).await, [Code::OverLimit]);
    for (content, percent, code) in [("0", 0.0, Code::Ok), ("100", 100.0, Code::OverLimit)] {
        write(&file, content);
        let gauge = "tollgate_trial_enforce_percent";
        server.metric_becomes(gauge, percent).await;
        assert_eq!(codes(&server, "ann", 1).await, [code]);
    }
    write(&file, "many");
    eventually("it is logged", async || server.log().contains("TRIAL_ENFORCE_PERCENT_FILE")).await;
    assert_eq!(codes(&server, "ann", 1).await, [Code::OverLimit]);
}

#[tokio::test]
async fn our_answer_does_not_need_the_upstream() {
    let server = trial(1, &"127.0.0.1:9").with_env("TRIAL_ENFORCE_PERCENT", "100").start();
    assert_eq!(codes(&server, "ann", 2).await, [Code::Ok, Code::OverLimit]);
    let shown = compared(&server, 2).await;
    assert_eq!(shown["rules"][0]["classes"]["error_there"], 2);
}

#[tokio::test]
async fn the_upstream_may_require_tls_and_a_client_certificate() {
    let authority = Authority::new();
    let identity = authority.sign("server", "DNS:ratelimit", KeyForm::Pkcs8);
    let own = authority.sign("client", "DNS:trial", KeyForm::Pkcs8);
    let ca = authority.cacert().display().to_string();
    let upstream = TestServer::with_rules(&users(1))
        .with_env("GRPC_SERVER_USE_TLS", "true")
        .with_env("GRPC_SERVER_TLS_CERT", &identity.cert.display().to_string())
        .with_env("GRPC_SERVER_TLS_KEY", &identity.key.display().to_string())
        .with_env("GRPC_CLIENT_TLS_CACERT", &ca)
        .start();
    let with_tls = || {
        trial(1, &upstream.grpc)
            .with_env("TRIAL_UPSTREAM_TLS", "true")
            .with_env("TRIAL_UPSTREAM_TLS_CACERT", &ca)
            .with_env("TRIAL_UPSTREAM_SERVER_NAME", "ratelimit")
    };
    let server = with_tls()
        .with_env("TRIAL_UPSTREAM_TLS_CERT", &own.cert.display().to_string())
        .with_env("TRIAL_UPSTREAM_TLS_KEY", &own.key.display().to_string())
        .start();
    assert_eq!(codes(&server, "ann", 2).await, [Code::Ok, Code::OverLimit]);
    let without = with_tls().start();
    let mut client = without.client().await;
    let status = client.call(user("ann")).await.expect_err("no certificate");
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
}

#[tokio::test]
async fn connections_that_the_upstream_ends_are_replaced_without_an_error() {
    let upstream = TestServer::with_rules(&users(1_000_000))
        .with_env("GRPC_MAX_CONNECTION_AGE", "200ms")
        .start();
    let server = trial(1_000_000, &upstream.grpc).start();
    let mut client = server.client().await;
    let aged = "tollgate_connections_aged_total";
    eventually("connections were ended", async || {
        for _ in 0..50 {
            client.answer(user("ann")).await;
        }
        upstream.metric(aged).is_some_and(|aged| aged >= 5.0)
    })
    .await;
}
