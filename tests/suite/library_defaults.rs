//! What envoyproxy/ratelimit has by the defaults of its libraries, and is otherwise here.

use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request};

use crate::support::http::{self, Connection};
use crate::support::{Code as Answered, TestServer, limit_of, request};

/// The code and text of the answer to a call with a header.
async fn answer(server: &TestServer, name: &'static str, value: &str) -> (Code, String) {
    let mut client = RateLimitServiceClient::new(server.client().await.channel);
    let mut call = Request::new(request("d", &[&[("k", "v")]]));
    call.metadata_mut().insert(name, value.parse().expect("a value"));
    match client.should_rate_limit(call).await {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

#[tokio::test]
async fn calls_compressed_with_gzip_are_answered_uncompressed() {
    let server = TestServer::with_rules(&limit_of(2)).start();
    let mut client = RateLimitServiceClient::new(server.client().await.channel)
        .send_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Gzip);
    for expected in [Answered::Ok, Answered::Ok, Answered::OverLimit] {
        let call = request("d", &[&[("k", "v")]]);
        let response = client.should_rate_limit(call).await.expect("an answer");
        assert_eq!(response.metadata().get("grpc-encoding"), None);
        assert_eq!(response.into_inner().overall_code(), expected);
    }
    // Some kilobytes of gzip.
    let long = "v".repeat(4 << 20);
    let call = client.should_rate_limit(request("d", &[&[("k", &long)]]));
    let status = call.await.expect_err("more than 4 MiB");
    assert_eq!(status.code(), Code::ResourceExhausted);
    server.assert_metric("tollgate_oversized_requests_total", 1.0);
    let call = client.should_rate_limit(request("d", &[&[("k", &long[100..])]]));
    call.await.expect("within the bound");

    let (code, text) = answer(&server, "grpc-encoding", "zstd").await;
    assert_eq!(code, Code::Unimplemented);
    assert_eq!(text, "Content is compressed with `zstd` which isn't supported");
    assert_eq!(answer(&server, "grpc-encoding", "identity").await.0, Code::Ok);
    assert_eq!(answer(&server, "grpc-accept-encoding", "gzip").await.0, Code::Ok);
}

#[tokio::test]
async fn headers_of_a_call_have_at_most_16_kib() {
    let server = TestServer::with_rules(&limit_of(9)).start();
    assert_eq!(answer(&server, "x-long", &"a".repeat(8_192)).await.0, Code::Ok);
    assert_ne!(answer(&server, "x-long", &"a".repeat(32_768)).await.0, Code::Ok);
    assert_eq!(answer(&server, "x-long", "a").await.0, Code::Ok);
}

#[test]
fn paths_are_taken_as_they_are() {
    let server = TestServer::with_rules(&limit_of(9)).start();
    for (path, status) in [
        ("/healthcheck", 200),
        ("//healthcheck", 404),
        ("/x/../healthcheck", 404),
        ("/healthcheck/", 404),
    ] {
        assert_eq!(http::get(server.http, path).status, status, "{path}");
    }
}

#[test]
fn a_page_of_metrics_is_sent_uncompressed() {
    let server = TestServer::with_rules(&limit_of(9)).start();
    let mut connection = Connection::open(server.admin);
    let head = "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\naccept-encoding: gzip\r\n\r\n";
    connection.write(head.as_bytes()).expect("it is read");
    let reply = connection.read("GET").expect("there is an answer");
    assert!(!reply.headers.iter().any(|header| header.contains("content-encoding")));
    assert!(reply.body.starts_with("# HELP"), "{}", reply.body);
}
