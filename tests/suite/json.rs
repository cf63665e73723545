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

/// Valid bodies, each for one hit or a peek of `k` in domain `d`.
const VALID: &[&str] = &[
    GOOD,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":""}]}],"hitsAddend":1}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hits_addend":1}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hitsAddend":"1"}]}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hits_addend":1}]}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":null}],"limit":null,"hitsAddend":null}],"hitsAddend":null}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"isNegativeHits":false}]}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"is_negative_hits":true}]}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":5,"unit":"MINUTE"}}]}"#,
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requests_per_unit":5,"unit":2}}]}"#,
    r#"{"domain":"e","domain":"d","descriptors":[{"entries":[{"key":"x","key":"k"}]}],"hitsAddend":9,"hits_addend":1}"#,
    " \n{\"domain\" : \"d\",\n\t\"descriptors\":[{\"entries\":[{\"key\":\"\\u006b\"}]}]} \n",
];

#[test]
fn protobuf_json_is_read_in_every_spelling() {
    let server = TestServer::with_rules(&limit_of(1_000)).start();
    for body in VALID {
        let reply = server.json(body);
        assert_eq!(reply.status, 200, "{body}: {reply:?}");
        assert!(reply.body.contains("currentLimit"), "{body} matches the rule: {reply:?}");
    }
}

/// Invalid bodies, and the reason in the response.
const INVALID: &str = r#"
 => invalid request: EOF while parsing a value at line 1 column 0
no json => invalid request: expected ident at line 1 column 2
{ => invalid request: EOF while parsing an object at line 1 column 1
[] => invalid request: invalid type: sequence, expected a map
null => invalid request: invalid type: null, expected a map
1 => invalid request: invalid type: integer `1`, expected a map
{} => rate limit domain must not be empty
{"domain":"d"} => rate limit descriptor list must not be empty
{"domain":"d","descriptors":[]} => rate limit descriptor list must not be empty
{"domain":"","descriptors":[{"entries":[{"key":"k"}]}]} => rate limit domain must not be empty
{"domain":null,"descriptors":[{"entries":[{"key":"k"}]}]} => rate limit domain must not be empty
{"domain":1,"descriptors":[{"entries":[{"key":"k"}]}]} => invalid type: integer `1`, expected a string at line 1 column 11
{"domain":"d","descriptors":{"entries":[{"key":"k"}]}} => invalid type: map, expected a list
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"unknown":1} => unrecognized field name 'unknown' at line 1 column 65
{"domain":"d","descriptors":[{"entries":[{"key":"k","unknown":1}]}]} => unrecognized field name 'unknown'
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hitsAddend":-1} => out of range
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hitsAddend":4294967296} => out of range
{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hitsAddend":18446744073709555712}]} => out of range
{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":5,"unit":"FORTNIGHT"}}]} => unrecognized enum value 'FORTNIGHT'
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]} trailing => trailing characters at line 1 column 58
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}{} => trailing characters
{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":5,"unit":99}}]} => descriptors[0].limit.unit 99 is no unit
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
fn reason_of_a_400_is_truncated() {
    let server = TestServer::with_rules(&limit_of(1_000)).start();
    let reply = server.json(&format!(r#"{{"{}":1}}"#, "\u{fc}".repeat(1 << 20)));
    assert_eq!(reply.status, 400);
    assert!(
        reply.body.contains("\u{fc}...\n") && reply.body.len() < 2_000,
        "{} bytes",
        reply.body.len()
    );
}

#[test]
fn deeply_nested_body_gets_400() {
    let server = TestServer::with_rules(&limit_of(1_000)).start();
    for body in [
        "[".repeat(100_000),
        r#"{"a":"#.repeat(100_000),
        format!(r#"{{"domain":{}"#, "[".repeat(1_000_000)),
    ] {
        assert_eq!(server.json(&body).status, 400, "{}", &body[..20]);
        assert_eq!(server.json(GOOD).status, 200);
    }
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
