//! Who sees values of descriptors: callers with a token, on every page; others see hashes, which are
//! equal on all replicas and lead to the counters of their values.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufRead as _;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::{self, Connection, Reply};
use crate::support::raw_upstream::{Answer, RawUpstream, headers};
use crate::support::redis::RedisProcess;
use crate::support::{Builder, TestServer, eventually, look_until, tollgate};

/// What a client sends as a value.
const SECRET: &str = "alice-secret-4711@example.com";
const TOKEN: &str = "may-change-counters";
const READ_TOKEN: &str = "may-only-read-values";

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: user, value: bot, rate_limit: {unit: year, requests_per_unit: 5}}
";

fn get(server: &TestServer, path: &str, token: Option<&str>) -> Reply {
    let header = token.map_or_else(String::new, |token| {
        format!("authorization: Bearer {token}\r\n")
    });
    let mut connection = Connection::open(server.admin);
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n{header}\r\n");
    connection.write(request.as_bytes()).expect("it is open");
    connection.read("GET").expect("there is a response")
}

fn json_of(server: &TestServer, path: &str, token: Option<&str>) -> Value {
    let reply = get(server, path, token);
    serde_json::from_str(&reply.body).unwrap_or_else(|error| panic!("{path}: {error}: {reply:?}"))
}

/// Every page: those of the index, the paths of the API and what their links lead to.
fn pages(server: &TestServer, token: Option<&str>) -> Vec<(String, String)> {
    let index = get(server, "/unknown", None).body;
    let mut found: BTreeSet<String> = BTreeSet::from(["/".to_owned()]);
    found.extend(
        index
            .lines()
            .filter_map(|line| Some(line.split_once(": ")?.0.to_owned())),
    );
    let docs = include_str!("../../docs/console.md").lines();
    let reads = docs.filter_map(|line| line.strip_prefix("| `GET ")?.split('`').next());
    found.extend(reads.map(|path| path.replace("{file}", "rules.yaml")));
    for more in ["by=hits", "by=hits&scope=fleet"] {
        found.insert(format!("/api/v1/top?{more}"));
    }
    // It does not end.
    found.remove("/api/v1/over-limit");
    let mut waiting: Vec<String> = found.iter().cloned().collect();
    let mut pages = Vec::new();
    while let Some(path) = waiting.pop() {
        let body = get(server, &path, token).body;
        let links = body
            .split(" href=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        for link in links.filter(|link| link.starts_with('/')) {
            let link = link.replace("&amp;", "&");
            if found.insert(link.clone()) {
                waiting.push(link);
            }
        }
        pages.push((path, body));
    }
    pages
}

fn stricter() -> String {
    RULES.replace("requests_per_unit: 5", "requests_per_unit: 1")
}

async fn redacting(how: &'static str, upstream: &RawUpstream) -> TestServer {
    let candidate = stricter();
    let files = [("rules.yaml", RULES), ("candidate/rules.yaml", &*candidate)];
    let server = TestServer::with_files(files)
        .with_envs(&[
            ("ADMIN_REDACT", how),
            ("ADMIN_TOKEN", TOKEN),
            ("ADMIN_READ_TOKEN", READ_TOKEN),
            ("TRIAL_UPSTREAM", &upstream.addr.to_string()),
            ("TRIAL_ON_UPSTREAM_ERROR", "decide"),
        ])
        .start();
    server.metric_becomes("tollgate_candidate_rules", 2.0).await;
    let mut client = server.client().await;
    for _ in 0..7 {
        for user in [SECRET, "bot"] {
            client.ask("d", &[("user", user)]).await;
        }
    }
    client.ask("d", &[("user", "bob")]).await;
    eventually("all requests are compared", async || {
        let requests = |path| json_of(&server, path, None)["requests"].clone();
        requests("/trial") == 15 && requests("/candidate") == 15
    })
    .await;
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_on_no_page_without_a_token_and_on_all_with_one() {
    let upstream = RawUpstream::start(Answer::Reply {
        headers: headers(&[
            ("grpc-status", "13"),
            ("grpc-message", "no limit for alice-secret-4711@example.com"),
        ]),
        body: Vec::new(),
        trailers: None,
    })
    .await;
    for how in ["drop", "hash"] {
        let server = redacting(how, &upstream).await;
        let without = pages(&server, None);
        assert!(without.len() > 25, "{without:?}");
        for (path, text) in &without {
            assert!(!text.contains("alice"), "{how} {path}: {text}");
        }
        for path in ["/trial", "/candidate"] {
            let (_, text) = without.iter().find(|page| page.0 == path).expect(path);
            assert!(text.contains("user=bot"), "{path}: {text}");
        }
        server.assert_not_logged("alice");
        for token in [TOKEN, READ_TOKEN] {
            let with = pages(&server, Some(token));
            let shown =
                |(path, text): &(String, String)| text.contains(SECRET).then(|| path.clone());
            let shown: Vec<String> = with.iter().filter_map(shown).collect();
            for expected in [
                "/candidate",
                "/trial",
                "/api/v1/top?by=hits",
                "/console/rule?domain=d&rule=d.user",
                "/console/trial",
            ] {
                assert!(
                    shown.iter().any(|path| path == expected),
                    "{expected}: {shown:?}"
                );
            }
            assert_eq!(get(&server, "/api/v1/top", Some("wrong")).status, 401);
            // Dropped values cannot be distinguished.
            let fleet = get(&server, "/api/v1/top?by=hits&scope=fleet", Some(token)).body;
            assert_eq!((how == "hash"), fleet.contains(SECRET), "{fleet}");
        }
        // How often is tested with a clock of its own.
        let log = server.log();
        let reveals = log.lines().filter(|line| line.contains("action=reveal"));
        let page = |line: &str| line.split(" page=").nth(1).map(str::to_owned);
        let revealed: BTreeSet<_> = reveals.filter_map(page).collect();
        assert!(revealed.len() > 8, "{revealed:?}");
        for command in ["trial", "candidate"] {
            let url = format!("http://{}", server.admin);
            let printed = tollgate(&[command, "report", "--url", &url]);
            assert!(!printed.stdout.contains("alice"), "{}", printed.stdout);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feed_has_values_for_readers_with_a_token() {
    let server = TestServer::with_rules(RULES)
        .with_envs(&[("ADMIN_REDACT", "hash"), ("ADMIN_READ_TOKEN", READ_TOKEN)])
        .start();
    let feeds = [
        String::new(),
        format!("authorization: Bearer {READ_TOKEN}\r\n"),
    ]
    .map(|header| {
        let mut feed = Connection::open(server.admin);
        let request = format!("GET /api/v1/over-limit HTTP/1.1\r\nhost: test\r\n{header}\r\n");
        feed.write(request.as_bytes()).expect("it is open");
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            feed.0.read_line(&mut line).expect("there is a head");
        }
        feed
    });
    let mut client = server.client().await;
    for _ in 0..6 {
        client.ask("d", &[("user", SECRET)]).await;
    }
    let events = feeds.map(|mut feed| {
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            feed.0.read_line(&mut line).expect("the feed continues");
        }
        line
    });
    assert!(
        !events[0].contains("alice") && events[1].contains(SECRET),
        "{events:?}"
    );
}

#[test]
fn token_to_read_changes_nothing() {
    let server = TestServer::with_rules(RULES)
        .with_envs(&[("ADMIN_TOKEN", TOKEN), ("ADMIN_READ_TOKEN", READ_TOKEN)])
        .start();
    let reset = |token: &str| {
        let headers = [format!("authorization: Bearer {token}")];
        let body = r#"{"domain": "d", "descriptor": [["user", "ann"]]}"#;
        http::post_with(&headers, server.admin, "/api/v1/counters/reset", body)
    };
    let rejected = reset(READ_TOKEN);
    assert_eq!(rejected.status, 403, "{rejected:?}");
    assert!(
        rejected.body.contains("ADMIN_READ_TOKEN may only read"),
        "{rejected:?}"
    );
    assert_eq!(reset(TOKEN).status, 200);
    let same = tollgate(&[
        "--admin-token",
        "one-and-the-same",
        "--admin-read-token",
        "one-and-the-same",
    ]);
    assert_eq!(same.code, Some(78), "{same:?}");
    assert!(
        same.stderr.contains("ADMIN_READ_TOKEN are the same"),
        "{same:?}"
    );
}

#[test]
fn token_file_shows_values() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let file = home.path().join("token");
    fs::write(&file, format!("{READ_TOKEN}\n")).expect("it can be written");
    let server = TestServer::with_rules(RULES)
        .with_envs(&[("ADMIN_REDACT", "hash"), ("ADMIN_TOKEN", TOKEN)])
        .with_env("ADMIN_READ_TOKEN_FILE", &file.display().to_string())
        .start();
    let status = |token| get(&server, "/api/v1/top", Some(token)).status;
    assert_eq!((status(READ_TOKEN), status("wrong")), (200, 401));
    fs::write(&file, format!("{TOKEN}\n")).expect("it can be written");
    look_until("the token for changes is rejected", || {
        server.log().contains("ADMIN_READ_TOKEN are the same")
    });
    assert_eq!((status(READ_TOKEN), status(TOKEN)), (200, 200));
}

fn replica(redis: &RedisProcess) -> Builder {
    TestServer::with_rules(RULES).with_envs(&[
        ("REDIS_URL", &redis.url()),
        ("DEBUG_HOST", "0.0.0.0"),
        ("POD_IP", "127.0.0.1"),
    ])
}

/// Keys and hits of a rule.
fn keys(answer: &Value) -> Vec<(Value, u64)> {
    let keys = answer["rules"][0]["keys"].as_array().into_iter().flatten();
    keys.map(|key| (key["key"].clone(), key["hits"].as_u64().expect("a number")))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashes_are_equal_on_all_replicas() {
    const FLEET: &str = "/api/v1/top?scope=fleet&by=hits";
    let redis = RedisProcess::start();
    for token in [&[][..], &[("ADMIN_READ_TOKEN", READ_TOKEN)]] {
        let servers = [(); 3].map(|()| replica(&redis).with_envs(token).start());
        for server in &servers {
            server.client().await.ask("d", &[("user", SECRET)]).await;
        }
        for server in &servers {
            look_until("the tenant has one row", || {
                let keys = keys(&json_of(server, FLEET, None));
                keys.len() == 1 && keys[0].1 == 3
            });
        }
        let [(shown, _)] = &keys(&json_of(&servers[0], FLEET, None))[..] else {
            panic!("one row");
        };
        assert_ne!(shown, &json!([["user", SECRET]]));
        // Values never leave a replica, and a caller with the token sees those that it knows.
        if let [(_, token)] = token {
            let answer = json_of(&servers[1], FLEET, Some(token));
            assert_eq!(keys(&answer), [(json!([["user", SECRET]]), 3)]);
        }
        // A later process takes over their key.
        let late = replica(&redis).with_envs(token).start();
        late.client().await.ask("d", &[("user", SECRET)]).await;
        look_until("it has the same hash", || {
            keys(&json_of(&late, "/api/v1/top?by=hits", None)) == [(shown.clone(), 1)]
        });
        drop((servers, late));
        let _: String = redis.command(&["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hash_leads_to_the_counter_of_its_value() {
    let server = TestServer::with_rules(RULES)
        .with_envs(&[("ADMIN_REDACT", "hash"), ("ADMIN_TOKEN", TOKEN)])
        .start();
    let mut client = server.client().await;
    for _ in 0..3 {
        client.ask("d", &[("user", SECRET)]).await;
    }
    let top = json_of(&server, "/api/v1/top?by=hits", None);
    let hash = top["rules"][0]["keys"][0]["key"][0][1]
        .as_str()
        .expect("a hash");
    let path = format!("/api/v1/counters?domain=d&hashed=1&e=user%3D{hash}");
    let counter = json_of(&server, &path, None);
    assert_eq!(
        (&counter["used"], &counter["key"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(counter["hashed"], json!([["user", hash]]));
    let counter = json_of(&server, &path, Some(TOKEN));
    assert!(
        counter["key"]
            .as_str()
            .is_some_and(|key| key.contains(SECRET)),
        "{counter}"
    );
    let unknown = get(
        &server,
        "/api/v1/counters?domain=d&hashed=1&e=user%3D0123456789abcdef",
        None,
    );
    assert_eq!(unknown.status, 404, "{unknown:?}");
    assert!(
        unknown.body.contains("no key with this hash"),
        "{unknown:?}"
    );
    let url = format!("http://{}", server.admin);
    let value = format!("user={SECRET}");
    let commands: [&[&str]; 2] = [
        &["counter", "get", "d", &value, "--url", &url],
        &["explain", "--live", "d", &value, "--url", &url],
    ];
    for command in commands {
        let printed = tollgate(command);
        assert!(
            printed.stdout.contains(&format!("user={hash}")),
            "{printed:?}"
        );
    }
}
