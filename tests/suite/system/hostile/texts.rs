//! Texts of which a parser makes many times their size: rules that are written, and resources of a control
//! plane.

use std::net::SocketAddr;

use tollgate::base::proto::envoy::service::discovery::v3::DiscoveryResponse;

use crate::support::http::{Connection, Reply};
use crate::support::xds::{Puppet, TYPE_URL, resource_of, response, rules_of};
use crate::support::{Builder, TestServer, limit_of};
use crate::system::hostile::{RESIDENT_MAX_KIB, UnderAttack};

/// Of each form, less the last brackets.
const SHORT_BYTES: usize = (1 << 20) - 1_024;
/// As long as PUT takes, less the beginning.
const WRITTEN_BYTES: usize = (8 << 20) - 1_024;
/// Below the longest response of a control plane.
const RESOURCE_BYTES: usize = (4 << 20) - 1_024;

fn server() -> Builder {
    TestServer::with_rules(&limit_of(1_000_000_000)).with_envs(&[
        ("WORKERS", "1"),
        ("DRAIN_PERIOD", "0s"),
        ("ADMIN_TOKEN", "open-sesame"),
        ("RULES_WRITABLE", "true"),
    ])
}

/// Texts of this length: what a text begins with, and what it repeats.
fn texts(bytes: usize) -> Vec<(String, String)> {
    let long = "d".repeat(bytes / 4);
    let pairs: Vec<_> = (0..500).map(|key| format!("a{key}: b")).collect();
    let pairs = pairs.join(", ");
    let rule = "{key: k, rate_limit: {unit: day, requests_per_unit: 1}";
    let forms = [
        ("domain: d\ndescriptors: [", ":,"),
        ("domain: d\ndescriptors: [", "{},"),
        ("domain: d\ndescriptors: [", "[],"),
        ("domain: d\ndescriptors: [", "[a],"),
        ("domain: d\ndescriptors: [", "a:,"),
        ("domain: d\ndescriptors: [", "{key: a},"),
        ("domain: d\nx: &a {}\ndescriptors: [", "*a,"),
        ("domain: d\ndescriptors:\n", "- {}\n"),
        ("domain: d\ndescriptors:\n", "- a\n"),
        ("domain: d\ndescriptors: [[", ":,"),
        ("[", ":,"),
        ("[", "? "),
        ("- ", "["),
        ("", "a: {b: "),
        ("", "a: b\n"),
        ("domain: d\ndescriptors: [", "\"a\", "),
    ];
    let mut texts: Vec<_> =
        forms.map(|(begin, repeated)| (begin.to_owned(), repeated.to_owned())).into();
    texts.extend([
        // One merge of 500 pairs for each nine bytes.
        (
            format!("x: &a {{{pairs}}}\ndomain: d\ndescriptors: ["),
            "{<<: *a},".to_owned(),
        ),
        // A map of JSON for each pair.
        (
            format!("domain: d\ndescriptors: [{rule}, metadata: {{a: ["),
            "{b: c},".to_owned(),
        ),
        // A path that is as long as a quarter of the text, for each rule.
        (
            format!("domain: {long}\ndescriptors: [{rule}, descriptors: ["),
            "{key: a},".to_owned(),
        ),
        // A body of 4 KiB for each rule.
        (
            format!(
                "domain: d\nmetadata: {{tollgate: {{defaults: {{response_body: {}}}}}}}\ndescriptors: [",
                "b".repeat(4_000)
            ),
            format!("{rule}}},"),
        ),
    ]);
    texts
}

/// The text, valid up to its last brackets.
fn text((begin, repeated): &(String, String), bytes: usize) -> String {
    let count = (bytes - begin.len()) / repeated.len();
    let text = format!("{begin}{}", repeated.repeat(count));
    let end: String = begin.chars().rev().filter_map(closing).collect();
    format!("{text}{end}")
}

fn closing(bracket: char) -> Option<char> {
    match bracket {
        '[' => Some(']'),
        '{' => Some('}'),
        _ => None,
    }
}

fn put(admin: SocketAddr, text: &str) -> Reply {
    let headers = ["authorization: Bearer open-sesame", "if-match: *"];
    let mut connection = Connection::open(admin);
    let sent = connection.send_with(&headers, "PUT", "/api/v1/rules/rules.yaml", text);
    sent.expect("there is a response")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_that_are_written_take_little_memory() {
    let attacked = UnderAttack::start(server());
    let admin = attacked.server.admin;
    let short = texts(SHORT_BYTES).into_iter();
    let short = short.map(|form| text(&form, SHORT_BYTES));
    let long = texts(WRITTEN_BYTES).into_iter().take(1);
    for text in short.chain(long.map(|form| text(&form, WRITTEN_BYTES))) {
        let reply = put(admin, &text);
        assert_eq!(reply.status, 422, "{}: {reply:?}", &text[..60]);
    }
    attacked.finish().await;
}

/// Fields of a message of protobuf: `1a 00` is an empty descriptor of a resource.
fn resources() -> Vec<Vec<u8>> {
    let repeated = |begin: &[u8], field: &[u8]| {
        let count = (RESOURCE_BYTES - begin.len()) / field.len();
        [begin, &field.repeat(count)].concat()
    };
    let within = |number: u8, message: &[u8]| {
        let mut field = vec![number << 3 | 2];
        let mut length = message.len();
        while length >= 128 {
            field.push(u8::try_from(length & 127).expect("seven bits") | 128);
            length >>= 7;
        }
        field.push(u8::try_from(length).expect("seven bits"));
        [&field, message].concat()
    };
    let domain = within(2, b"d");
    let in_descriptor = |field: u8, inner: &[u8]| {
        [&*domain, &within(3, &[&*within(1, b"k"), &within(field, inner)].concat())].concat()
    };
    let pair = within(1, &[&*within(1, b"a"), &within(2, &within(3, b"b"))].concat());
    let list = |values: Vec<u8>| {
        let value = within(6, &values);
        within(1, &[&*within(1, b"a"), &within(2, &value)].concat())
    };
    vec![
        repeated(&domain, &[0x1a, 0]),
        repeated(&domain, &within(3, &within(1, b"a"))),
        // Descriptors, replaces and metadata of one descriptor.
        in_descriptor(4, &repeated(b"", &[0x22, 0])[..RESOURCE_BYTES - 64]),
        in_descriptor(3, &repeated(b"", &[0x2a, 0])[..RESOURCE_BYTES - 64]),
        in_descriptor(8, &repeated(b"", &pair)[..]),
        in_descriptor(8, &list(repeated(b"", &[0x0a, 0])[..RESOURCE_BYTES - 64].to_vec())),
        in_descriptor(8, &list(repeated(b"", &within(1, &within(5, &pair))))),
        // Nothing of it is valid.
        repeated(&domain, &[0x1a, 1]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_of_a_control_plane_take_little_memory() {
    let mut plane = Puppet::start().await;
    let builder = TestServer::with_xds(&plane.addr.to_string())
        .with_env("WORKERS", "1")
        .with_env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms")
        .with_env("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms");
    let server = builder.with_memory_max(RESIDENT_MAX_KIB << 10).start();
    let mut stream = plane.stream().await;
    stream.request().await;
    let valid = response("1", "n", &[rules_of(1_000_000_000)]);
    assert!(stream.ask(valid).await.error_detail.is_none());
    let attacked = UnderAttack::beside(server);
    let answer = |resources: Vec<Vec<u8>>| DiscoveryResponse {
        version_info: "2".into(),
        resources,
        type_url: TYPE_URL.into(),
        nonce: "n".into(),
    };
    for resource in resources() {
        let reply = stream.ask(answer(vec![resource_of(TYPE_URL, resource)])).await;
        assert!(reply.error_detail.is_some());
    }
    for resource in [vec![], vec![8, 0]] {
        let count = RESOURCE_BYTES / (2 + resource.len());
        let reply = stream.ask(answer(vec![resource; count])).await;
        assert!(reply.error_detail.is_some());
    }
    attacked.finish().await;
}
