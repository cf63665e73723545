//! `POST /json`: ShouldRateLimit in protobuf's JSON, with the reference's status codes.

use serde_json::json;

use crate::support::http::Connection;
use crate::support::{TestServer, limit_of};

/// A request for domain `d`, key `k`.
const GOOD: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#;

/// The largest body, as in the reference's gRPC library.
const BODY_BYTES_MAX: usize = 4 << 20;

#[test]
fn response_is_200_within_the_limit_and_429_over_it() {
    let server = TestServer::with_rules(&limit_of(1)).start();
    let reply = server.json(GOOD);
    assert_eq!(reply.status, 200);
    assert!(reply.has_header("content-type: application/json"), "{:?}", reply.headers);
    let mut body = reply.json();
    let reset = body["statuses"][0]["durationUntilReset"].take();
    assert!(
        reset.as_str().is_some_and(|reset| reset.ends_with('s') && !reset.contains('.')),
        "{reset}"
    );
    let status = json!({"code": "OK", "currentLimit": {"requestsPerUnit": 1, "unit": "YEAR"}, "durationUntilReset": null});
    assert_eq!(
        body,
        json!({"overallCode": "OK", "statuses": [status]}),
        "fields with default values are omitted"
    );

    let reply = server.json(GOOD);
    assert_eq!(reply.status, 429);
    let body = reply.json();
    assert_eq!(
        (&body["overallCode"], &body["statuses"][0]["code"]),
        (&json!("OVER_LIMIT"), &json!("OVER_LIMIT"))
    );
}

/// Invalid bodies, and the reason in the response; others are those of `src/api/messages.rs`.
const INVALID: &str = r#"
{} => rate limit domain must not be empty
{"domain":"d"} => rate limit descriptor list must not be empty
{"domain":"d","descriptors":[]} => rate limit descriptor list must not be empty
{"domain":"","descriptors":[{"entries":[{"key":"k"}]}]} => rate limit domain must not be empty
{"domain":null,"descriptors":[{"entries":[{"key":"k"}]}]} => rate limit domain must not be empty
{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":5,"unit":99}}]} => descriptors[0].limit.unit 99 is no unit
no json => invalid request: expected ident at line 1 column 2
"#;

#[tokio::test]
async fn invalid_request_gets_400_with_the_reason_and_keeps_its_connection() {
    let server = TestServer::with_rules(&limit_of(1_000)).start();
    let mut connection = Connection::open(server.http);
    for line in INVALID.lines().skip(1) {
        let (body, reason) = line.split_once(" => ").expect("a body => a reason");
        let reply = connection.send("POST", "/json", body).expect("there is a response");
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        assert!(reply.has_header("content-type: text/plain; charset=utf-8"), "{body}: {reply:?}");
        assert!(reply.body.contains(reason), "{body}: {reply:?}");
        assert_eq!(
            reply.body.starts_with("invalid request: "),
            reply.body.contains("such as {\"domain\""),
            "{body}: {reply:?}"
        );
        assert_eq!(
            connection.send("POST", "/json", GOOD).expect("the connection is open").status,
            200,
            "after {body}"
        );
    }
    assert_eq!(server.client().await.ask("d", &[("k", "")]).await, crate::support::Code::Ok);
}

#[test]
fn body_over_4_mib_gets_413() {
    let server = TestServer::with_rules(&limit_of(1_000)).start();
    let padded = |bytes: usize| format!("{GOOD}{}", " ".repeat(bytes - GOOD.len()));
    assert_eq!(server.json(&padded(BODY_BYTES_MAX)).status, 200);
    assert_eq!(server.json(&padded(BODY_BYTES_MAX + 1)).status, 413);
    assert_eq!(server.json(&padded(3 * BODY_BYTES_MAX)).status, 413);
    assert_eq!(server.json(GOOD).status, 200);
}
