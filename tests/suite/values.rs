//! Who sees values of descriptors: callers with a token, on every page.

use std::collections::BTreeSet;
use std::fs;

use tempfile::TempDir;

use crate::support::http::{self, Connection, Reply, bearer};
use crate::support::raw_upstream::{Answer, RawUpstream, headers};
use crate::support::{TestServer, eventually, look_until, tollgate};
use crate::top::{event, feed};

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
    let headers: Vec<String> = token.map(bearer).into_iter().collect();
    let reply = Connection::open(server.admin).send_with(&headers, "GET", path, "");
    reply.expect("there is a response")
}

/// Every page: those of the index, the paths of the API and what their links lead to.
fn pages(server: &TestServer, token: Option<&str>) -> Vec<(String, String)> {
    let index = get(server, "/unknown", None).body;
    let mut found: BTreeSet<String> = BTreeSet::from(["/".to_owned()]);
    found.extend(index.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())));
    let docs = include_str!("../../docs/console.md").lines();
    let reads = docs.filter_map(|line| line.strip_prefix("| `GET ")?.split('`').next());
    found.extend(reads.map(|path| path.replace("{file}", "rules.yaml")));
    found.insert("/api/v1/top?by=hits".to_owned());
    // It does not end.
    found.remove("/api/v1/over-limit");
    let mut waiting: Vec<String> = found.iter().cloned().collect();
    let mut pages = Vec::new();
    while let Some(path) = waiting.pop() {
        let body = get(server, &path, token).body;
        let links = body.split(" href=\"").skip(1).filter_map(|rest| rest.split('"').next());
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

async fn redacting(upstream: &RawUpstream) -> TestServer {
    let server = TestServer::with_rules(RULES)
        .with_envs(&[
            ("ADMIN_REDACT", "drop"),
            ("ADMIN_TOKEN", TOKEN),
            ("ADMIN_READ_TOKEN", READ_TOKEN),
            ("TRIAL_UPSTREAM", &upstream.addr.to_string()),
            ("TRIAL_ON_UPSTREAM_ERROR", "decide"),
        ])
        .start();
    let mut client = server.client().await;
    for _ in 0..7 {
        for user in [SECRET, "bot"] {
            client.ask("d", &[("user", user)]).await;
        }
    }
    client.ask("d", &[("user", "bob")]).await;
    // No rule has its key.
    client.ask("d", &[("usr", SECRET)]).await;
    eventually("all requests are compared", async || server.admin_json("/trial")["requests"] == 16)
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
    let server = redacting(&upstream).await;
    let without = pages(&server, None);
    assert!(without.len() > 25, "{without:?}");
    for (path, text) in &without {
        assert!(!text.contains("alice"), "{path}: {text}");
    }
    let trial = without.iter().find(|page| page.0 == "/trial");
    let (_, text) = trial.expect("a page of the trial");
    assert!(text.contains("user=bot"), "{text}");
    server.assert_not_logged("alice");
    for token in [TOKEN, READ_TOKEN] {
        let with = pages(&server, Some(token));
        let shown = |(path, text): &(String, String)| text.contains(SECRET).then(|| path.clone());
        let shown: Vec<String> = with.iter().filter_map(shown).collect();
        for expected in [
            "/trial",
            "/api/v1/top?by=hits",
            "/console/rule?domain=d&rule=d.user",
            "/console/trial",
        ] {
            assert!(shown.iter().any(|path| path == expected), "{expected}: {shown:?}");
        }
        assert_eq!(get(&server, "/api/v1/top", Some("wrong")).status, 401);
    }
    let url = format!("http://{}", server.admin);
    let printed = tollgate(&["trial", "report", "--url", &url]);
    assert!(!printed.stdout.contains("alice"), "{}", printed.stdout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feed_has_values_for_readers_with_a_token() {
    let server = TestServer::with_rules(RULES)
        .with_envs(&[("ADMIN_REDACT", "drop"), ("ADMIN_READ_TOKEN", READ_TOKEN)])
        .start();
    let headers = [String::new(), format!("authorization: Bearer {READ_TOKEN}\r\n")];
    let feeds = headers.map(|header| feed(&server, &header));
    let mut client = server.client().await;
    for _ in 0..6 {
        client.ask("d", &[("user", SECRET)]).await;
    }
    let events = feeds.map(|mut feed| event(&mut feed).to_string());
    assert!(!events[0].contains("alice") && events[1].contains(SECRET), "{events:?}");
}

#[test]
fn token_to_read_changes_nothing() {
    let server = TestServer::with_rules(RULES)
        .with_envs(&[("ADMIN_TOKEN", TOKEN), ("ADMIN_READ_TOKEN", READ_TOKEN)])
        .start();
    let reset = |token: &str| {
        let headers = [bearer(token)];
        let body = r#"{"domain": "d", "descriptor": [["user", "ann"]]}"#;
        http::post_with(&headers, server.admin, "/api/v1/counters/reset", body)
    };
    let rejected = reset(READ_TOKEN);
    assert_eq!(rejected.status, 403, "{rejected:?}");
    assert!(rejected.body.contains("ADMIN_READ_TOKEN may only read"), "{rejected:?}");
    assert_eq!(reset(TOKEN).status, 200);
    let same =
        tollgate(&["--admin-token", "one-and-the-same", "--admin-read-token", "one-and-the-same"]);
    same.assert_failed(78, &["ADMIN_READ_TOKEN are the same"]);
}

#[test]
fn token_file_shows_values() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let file = home.path().join("token");
    fs::write(&file, format!("{READ_TOKEN}\n")).expect("it can be written");
    let server = TestServer::with_rules(RULES)
        .with_envs(&[("ADMIN_REDACT", "drop"), ("ADMIN_TOKEN", TOKEN)])
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
