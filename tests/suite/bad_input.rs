//! Whatever comes in, there is a clear error or a bounded answer, and the service goes on: after
//! each there is a good call on the same connection and one on a new connection.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::Code as Grpc;

use crate::support::http::Connection;
use crate::support::{
    Client, Code, TestServer, descriptor, eventually, raw_grpc, request, resident_peak_kib, write,
};

const RULES: &str = "\
domain: d
descriptors:
  - key: alive
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: window
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: limits
    rate_limit: {unit: year, requests_per_unit: 10}
    metadata: {tollgate: {limits: [{requests: 20, unit: day}]}}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: place
    rate_limit: {unit: year, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: concurrency, lease_by: place, lease: 24h}}
";

/// What a client sends first over TLS: a ClientHello, without its end.
const TLS: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
/// What a client sends first over HTTP/2, and an empty SETTINGS frame.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HTTP1: &[u8] = b"GET /healthcheck HTTP/1.1\r\nhost: test\r\n\r\n";
const NO_PROTOCOL: &[u8] =
    b"\0\x01\xff\xfe rubbish \r\n\r\n\r\n and more of it, longer than any preface";

/// A valid call on this connection, and one on a new connection of either listener.
async fn assert_serving(server: &TestServer, client: &mut Client, after: &str) {
    let code = client.ask("d", &[("alive", "")]).await;
    assert_eq!(code, Code::Ok, "the same connection, after {after}");
    let code = server.client().await.ask("d", &[("alive", "")]).await;
    assert_eq!(code, Code::Ok, "a new connection, after {after}");
    assert_eq!(server.get("/healthcheck").status, 200, "after {after}");
}

fn with_unit(domain: &str, unit: i32) -> RateLimitRequest {
    let mut request = request(domain, &[&[("window", "")]]);
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit });
    request
}

fn many(key: &str, descriptors: usize) -> RateLimitRequest {
    RateLimitRequest {
        descriptors: vec![descriptor(&[(key, "")]); descriptors],
        ..request("d", &[])
    }
}

#[tokio::test]
async fn requests_that_make_no_sense_get_a_clear_error_or_an_answer() {
    let long = "x".repeat(1 << 20);
    let many_entries: Vec<(&str, &str)> = vec![("k", "v"); 10_001];
    let control = request("a\nb\0c\u{1b}[31m", &[&[("window", "\r\n\0\u{7f}\u{202e}")]]);
    let answered = [
        ("no unit in an unknown domain", with_unit("nowhere", 0)),
        ("a week, which only answers can name", with_unit("d", 7)),
        ("a thousand descriptors", many("alive", 1_000)),
        ("a descriptor without entries", request("d", &[&[]])),
        ("an entry without a name", request("d", &[&[("", "")]])),
        ("a domain of a mebibyte", request(&long, &[&[("k", "v")]])),
        ("a key of a mebibyte", request("d", &[&[(&long, "")]])),
        ("a value of a mebibyte", request("d", &[&[("window", &long)]])),
        ("a metric of a mebibyte", request("d", &[&[("detailed", &long)]])),
        ("a holder of a mebibyte", request("d", &[&[("place", &long)]])),
        ("10,000 entries", request("d", &[&many_entries[1..]])),
        ("control characters", control),
    ];
    let bound = |request, text: &str| (request, Grpc::InvalidArgument, text.to_owned());
    let no_unit = |unit| bound(with_unit("d", unit), &format!("unit {unit} is no unit"));
    let empty = |request, what| {
        let text = format!("rate limit {what} must not be empty");
        (request, Grpc::Unknown, text)
    };
    let invalid = [
        empty(request("", &[&[("window", "")]]), "domain"),
        empty(request("d", &[]), "descriptor list"),
        empty(RateLimitRequest::default(), "domain"),
        no_unit(0),
        no_unit(8),
        no_unit(99),
        no_unit(-1),
        bound(request("d", &[&[("place", "")]]), "descriptors[0] has no value for place"),
        bound(many("alive", 1_001), "more than the 1000 descriptors"),
        bound(many("alive", 10_000), "descriptors_max"),
        bound(request("d", &[&many_entries]), "entries_max"),
        bound(many("limits", 501), "checks_max"),
        (
            request("d", &[&[("k", &long.repeat(10))]]),
            Grpc::ResourceExhausted,
            "too large".to_owned(),
        ),
    ];
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    for (what, request) in answered {
        let answer =
            client.call(request).await.unwrap_or_else(|status| panic!("{what}: {status:?}"));
        assert_eq!(answer.overall_code(), Code::Ok, "{what}");
        assert_serving(&server, &mut client, what).await;
    }
    for (request, code, message) in invalid {
        let status = client.call(request).await.expect_err(&message);
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(&message), "{message}: {status:?}");
        assert_serving(&server, &mut client, &message).await;
    }
    server.assert_metric("tollgate_invalid_requests_total", 9.0);
    let first = client.call(request("d", &[&[("limits", "")]])).await;
    let first = first.expect("a response").statuses[0].limit_remaining;
    assert_eq!(first, 9, "nothing of an invalid request is counted");
}

/// Bodies that are no gRPC message, and the status they get.
fn rubbish() -> Vec<(&'static str, Vec<u8>, Grpc)> {
    let groups = vec![0x0b; 100_000];
    let frame = raw_grpc::frame_of;
    let too_long = frame(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let at_once = |bytes: &[u8]| bytes.to_vec();
    let internal = [
        ("no message", Vec::new()),
        ("no protobuf", frame(b"\xff\xff\xff rubbish")),
        ("a number for a domain", frame(&[0x08, 0x01])),
        ("a domain longer than the message", too_long),
        ("groups in groups", frame(&groups)),
        ("half the bytes before a message", at_once(&[0, 0, 0])),
        ("less than announced", at_once(&[0, 0, 0, 0, 100, 0x0a])),
        ("compressed without grpc-encoding", at_once(&[1, 0, 0, 0, 1, 0x0a])),
        ("a flag that is none", at_once(&[7, 0, 0, 0, 1, 0x0a])),
    ];
    let huge = at_once(&[0, 0xff, 0xff, 0xff, 0xff, 0x0a]);
    internal
        .into_iter()
        .map(|(what, body)| (what, body, Grpc::Internal))
        .chain([("4 GiB announced", huge, Grpc::ResourceExhausted)])
        .collect()
}

#[tokio::test]
async fn rubbish_in_place_of_a_message_is_an_error_of_that_call_alone() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    let mut connection = raw_grpc::Connection::open(server.grpc).await;
    let good = raw_grpc::frame(&request("d", &[&[("alive", "")]]));
    for (what, body, expected) in rubbish() {
        let ended = connection.begin().await.finish(&body).await;
        assert_eq!(ended.status, expected, "{what}");
        let next = connection.begin().await.finish(&good).await;
        assert_eq!(next.status, Grpc::Ok, "the same connection, after {what}");
        assert_serving(&server, &mut client, what).await;
    }
}

#[tokio::test]
async fn a_stream_in_the_wrong_protocol_is_closed() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    let to_grpc = [("HTTP/1", HTTP1), ("TLS", TLS), ("rubbish", NO_PROTOCOL)]
        .map(|stream| (server.grpc, stream));
    let to_http = [("HTTP/2", HTTP2), ("TLS", TLS), ("rubbish", NO_PROTOCOL)]
        .map(|stream| (server.http, stream));
    let to_admin =
        [("HTTP/2", HTTP2), ("rubbish", NO_PROTOCOL)].map(|stream| (server.admin, stream));
    for (addr, (what, bytes)) in to_grpc.into_iter().chain(to_http).chain(to_admin) {
        let mut connection = Connection::open(addr);
        connection.write(bytes).expect("the connection is open");
        connection.finish_writing();
        let answer = connection.read_to_end();
        assert!(
            answer.as_ref().map_or_else(
                |error| error.kind() == std::io::ErrorKind::ConnectionReset,
                |bytes| bytes.len() < 1_000
            ),
            "{what}: {answer:?}"
        );
        assert_serving(&server, &mut client, what).await;
    }
}

#[tokio::test]
async fn whoever_never_finishes_an_http_request_is_sent_away() {
    let server = TestServer::with_rules(RULES).start();
    let mut half_a_head = Connection::open(server.http);
    half_a_head.write(b"GET /healthcheck HTTP/1.1\r\nhost: t").expect("the connection is open");
    let mut half_a_body = Connection::open(server.http);
    half_a_body
        .write(b"POST /json HTTP/1.1\r\nhost: test\r\ncontent-length: 200\r\n\r\n{")
        .expect("the connection is open");
    // Within the patience of a read.
    let answer = half_a_head.read_to_end().expect("it is closed");
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 408 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(half_a_body.read("POST").expect("it is answered").status, 408);
}

/// Makes a file of a rules directory that is none.
type Spoil = fn(&Path);

/// Files that are no rules, and what the log says.
fn texts() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let half = "domain: other\ndescriptors:\n  - key: k\n    rate_limit: {unit: min";
    vec![
        ("half a file", half.into(), "bad.yaml:"),
        ("no YAML", "\t}{][ \0 : - ?".into(), "bad.yaml"),
        ("no rules", "just a text".into(), "bad.yaml"),
        ("an alias bomb", alias_bomb().into(), "bad.yaml:"),
        ("brackets in brackets", "[".repeat(1 << 20).into(), "bad.yaml:"),
        ("a file that is not UTF-8", b"domain: caf\xe9\n".into(), "bad.yaml:1:12"),
    ]
}

/// Spoilt so that nothing can be loaded, and what the log says.
const SPOILT: &[(&str, Spoil, &str)] = &[
    ("a file of 65 MiB", |path| sparse_file(path, 65 << 20), "has more than"),
    ("a file of a terabyte", |path| sparse_file(path, 1 << 40), "has more than"),
    ("a file that cannot be read", |path| link("/proc/self/mem", path), "Input/output error"),
    ("a link to itself", |path| link("bad.yaml", path), "Too many levels of symbolic links"),
];

/// Spoilt so that all that is good can be loaded.
const HARMLESS: &[(&str, Spoil)] = &[
    ("a pipe", make_pipe),
    ("a device", |path| link("/dev/zero", path)),
    ("a socket", |path| {
        drop(std::os::unix::net::UnixListener::bind(path).expect("it is bound"));
    }),
    ("a link to nothing", |path| link("nothing", path)),
    ("links in circles", |path| {
        fs::create_dir(path).expect("it is made");
        for name in ["one", "two", "three", "four"] {
            link("..", &path.join(name));
        }
    }),
    ("a limit of nothing", |path| write(path, &limit("k", 0))),
    ("a limit of anything", |path| {
        write(path, &limit("k", u32::MAX));
    }),
    ("a key of a mebibyte", |path| {
        write(path, &limit(&"x".repeat(1 << 20), 1));
    }),
];

/// Rules of another domain.
fn limit(key: &str, requests: u32) -> String {
    format!(
        "domain: other\ndescriptors:\n  - {{key: {key}, rate_limit: {{unit: year, requests_per_unit: {requests}}}}}"
    )
}

fn link(to: &str, path: &Path) {
    symlink(to, path).expect("it is linked");
}

/// A chain of aliases that expands to 10^10 nodes.
fn alias_bomb() -> String {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in ('b'..='j').zip('a'..) {
        let aliases = vec![format!("*{before}"); 10].join(", ");
        text += &format!("{name}: &{name} [{aliases}]\n");
    }
    text
}

/// The same in maps, as merged maps, and as rules.
fn other_alias_bombs() -> Vec<String> {
    let chain = |first: &str, level: &dyn Fn(char) -> String| {
        let levels = ('b'..='j')
            .zip('a'..)
            .map(|(name, before)| format!("{name}: &{name} {}\n", level(before)));
        format!("a: &a {first}\n{}", levels.collect::<String>())
    };
    let ten = |item: &dyn Fn(u32) -> String| (0..10).map(item).collect::<Vec<_>>().join(", ");
    let maps = chain("{x: 1}", &|before| {
        format!("{{{}}}", ten(&|number| format!("k{number}: *{before}")))
    });
    let many_keys: Vec<String> = (0..9_999).map(|number| format!("k{number}: 1")).collect();
    let merges = format!("a: &a {{{}}}\nb:\n{}", many_keys.join(", "), "- <<: *a\n".repeat(10_000));
    let rules = chain("[{key: k, value: v}]", &|before| {
        format!("[{}]", ten(&|number| format!("{{key: k{number}, descriptors: *{before}}}")))
    });
    vec![maps, merges, format!("{rules}domain: other\ndescriptors: *j\n")]
}

fn sparse_file(path: &Path, bytes: u64) {
    fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("there is mkfifo").success());
}

/// Takes away whatever was put there.
fn repair(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.expect("it exists");
}

#[tokio::test]
async fn a_spoilt_rules_directory_is_told_and_the_rules_go_on() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    let path = server.path("bad.yaml");
    let mut spoil = async |what: &str, spoil: &dyn Fn(), expected: &str| {
        let seen = server.log().len();
        spoil();
        server.metric_becomes("tollgate_rules_rejected", 1.0).await;
        let logged = async || server.log()[seen..].contains(expected);
        eventually(&format!("{what} is logged as {expected}"), logged).await;
        let ready = server.get("/ready").body;
        assert!(ready.contains("the last good configuration serves"), "{what}");
        assert_serving(&server, &mut client, what).await;
        repair(&path);
        server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    };
    for (what, text, expected) in texts() {
        spoil(what, &|| write(&path, &text), expected).await;
    }
    for (what, make, expected) in SPOILT {
        spoil(what, &|| make(&path), expected).await;
    }
}

#[tokio::test]
async fn alias_bombs_are_rejected_below_80_mib() {
    let server = TestServer::with_rules(RULES).start();
    for bomb in [alias_bomb()].into_iter().chain(other_alias_bombs()) {
        let seen = server.log().len();
        server.write("bad.yaml", &bomb);
        eventually("the bomb is rejected", async || {
            server.log()[seen..].contains("Error loading new configuration")
        })
        .await;
    }
    let peak = resident_peak_kib(server.pid());
    assert!(peak < 80 << 10, "{peak} KiB");
}

#[tokio::test]
async fn what_is_no_rules_file_is_passed_over() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    let path = server.path("bad.yaml");
    for (round, (what, make)) in HARMLESS.iter().enumerate() {
        make(&path);
        // Another file, so that there is something to wait for.
        let other = limit("k", 1).replace("other", &format!("round_{round}"));
        server.write("round.yaml", &other);
        eventually(&format!("rules beside {what} are read"), async || {
            let rules = server.admin("/rlconfig");
            rules.contains(&format!("round_{round}.k: "))
        })
        .await;
        server.assert_metric("tollgate_rules_rejected", 0.0);
        assert_serving(&server, &mut client, what).await;
        repair(&path);
    }
}
