//! The pictures of docs/console.md show the views of this version: a hash of each view's structure
//! was written when they were drawn. `make console-images` draws them, and writes the hashes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use ring::digest::{SHA256, digest};

use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually, http, look_until, sample};

const HASHES: &str = "docs/images/console-views.txt";
/// More than the limit of a minute in each of two minutes.
const CALLS: usize = 250;
/// Classes that depend on the traffic.
const STATES: [&str; 5] = ["good", "warning", "bad", "over", "near"];
/// The view of Redis, and elements of it that depend on how busy the machine is: they warn of slow calls.
const STORE: &str = "/console/store";
const OF_SLOW_CALLS: [&str; 2] = ["ul.messages", "span.state"];
/// Elements whose text is part of the structure.
const NAMED: [&str; 6] = ["h1", "h2", "dt", "label", "button", "th scope=\"col\""];

fn read(path: &str) -> String {
    fs::read_to_string(sample(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pictures that are drawn, by name, with their paths.
fn pictures(script: &str) -> BTreeMap<String, String> {
    let pictures = script.split("(\"console-").skip(1).map(|rest| {
        let parts: Vec<&str> = rest.splitn(4, '"').collect();
        (format!("console-{}", parts[0]), parts[2].to_owned())
    });
    pictures.collect()
}

/// Each kind of element of a view with those around it, and the texts that name parts of it. How
/// many there are depends on the traffic, and so does what is inside charts.
fn structure(page: &str) -> BTreeSet<String> {
    let (_, main) = page.split_once("<main").expect("a view has content");
    let mut open: Vec<String> = Vec::new();
    let mut found = BTreeSet::new();
    for part in main.split("</main>").next().unwrap_or_default().split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap_or((part, ""));
        let name = tag.split(' ').next().unwrap_or_default();
        if let Some(closed) = name.strip_prefix('/') {
            let is_it = |element: &String| element.split('.').next() == Some(closed);
            let at = open.iter().rposition(is_it).unwrap_or(open.len());
            open.truncate(at);
            continue;
        }
        let classes = tag.split_once("class=\"").and_then(|(_, rest)| rest.split('"').next());
        let classes = classes.unwrap_or_default().split_whitespace();
        let mut classes: Vec<&str> = classes.filter(|class| !STATES.contains(class)).collect();
        classes.insert(0, name);
        open.push(classes.join("."));
        if open.iter().filter(|element| element.starts_with("svg")).count() == 0 {
            let is_named = NAMED.iter().any(|named| tag.starts_with(named));
            found.insert(format!("{} {}", open.join(">"), if is_named { text } else { "" }));
        }
        if ["input", "br", "img", "link", "meta", "hr"].contains(&name) {
            open.pop();
        }
    }
    found
}

fn hash(server: &TestServer, path: &str) -> String {
    let page = http::get(server.admin, path);
    assert_eq!(page.status, 200, "{path}: {}", page.body);
    let is_of_slow_calls =
        |line: &String| OF_SLOW_CALLS.iter().any(|element| line.contains(element));
    let lines = structure(&page.body).into_iter();
    let lines: Vec<String> =
        lines.filter(|line| path != STORE || !is_of_slow_calls(line)).collect();
    let digest = digest(&SHA256, lines.join("\n").as_bytes());
    digest.as_ref().iter().take(8).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("texts can be written");
        text
    })
}

async fn service(rules: &str, redis: &str) -> TestServer {
    let server = TestServer::with_files([("shop.yaml", rules)]);
    let server = server.with_env("REDIS_URL", redis).start();
    let mut client = server.client().await;
    for _ in 0..CALLS {
        client.ask("shop", &[("user", "42")]).await;
    }
    look_until("the overview has the rule that limits", || {
        server.admin("/").contains("/console/rule?domain=shop&amp;rule=shop.user")
    });
    server
}

#[tokio::test]
async fn every_view_has_a_picture_of_this_version() {
    let script = read("tests/console_images.py");
    let rules = script.split("\"\"\"").nth(3).expect("the rules of the pictures");
    let pictures = pictures(&script);
    let source = read("src/operator/console.rs");
    let views = source.lines().filter_map(|line| line.trim().strip_prefix("(\"/"));
    // The runbook is a page of the docs.
    let views = views.filter(|rest| !rest.contains("frame::") && !rest.contains("get(runbook)"));
    for view in views.filter_map(|rest| rest.split('"').next()) {
        let is_drawn = |path: &String| path.split('?').next() == Some(&format!("/{view}"));
        assert!(pictures.values().any(is_drawn), "tests/console_images.py does not draw /{view}");
    }
    let page = read("docs/console.md");
    for name in pictures.keys() {
        let file = format!("images/{name}.png");
        assert!(page.contains(&file), "docs/console.md does not show {file}");
    }
    let redis = RedisProcess::start();
    let in_memory = service(rules, "").await;
    let on_redis = service(rules, &redis.url()).await;
    let of = |path: &str| if path == STORE { &on_redis } else { &in_memory };
    let paths: BTreeSet<&String> = pictures.values().collect();
    if std::env::var_os("REWRITE").is_some() {
        let lines = paths.iter().map(|path| format!("{path} {}\n", hash(of(path), path)));
        let lines: String = lines.collect();
        return fs::write(sample(HASHES), lines).expect("it can be written");
    }
    let hashes = fs::read_to_string(sample(HASHES)).unwrap_or_default();
    for path in paths {
        let is_current = || hashes.contains(&format!("{path} {}\n", hash(of(path), path)));
        let what = format!("{path} has the structure of its picture; run `make console-images`");
        // Numbers of the last second may be missing at first.
        eventually(&what, async || is_current()).await;
    }
}

#[test]
fn structure_is_that_of_elements_and_their_names_but_not_of_rows() {
    let page = |rows: &str, column: &str| {
        format!(
            "<main id=\"main\"><h1>Rules</h1><table class=\"rules\"><tr><th scope=\"col\">{column}</th></tr>{rows}</table><svg><g></g></svg></main>"
        )
    };
    let row = "<tr><td class=\"number over\">1</td></tr>";
    let one = structure(&page(row, "Hits"));
    assert_eq!(one, structure(&page(&row.replace(" over", "").repeat(3), "Hits")));
    assert_ne!(one, structure(&page(row, "Requests")));
    assert_ne!(one, structure(&page(&row.replace("td", "td><b"), "Hits")));
    assert!(one.contains("h1 Rules") && one.contains("table.rules>tr>td.number "), "{one:?}");
    assert!(!one.iter().any(|line| line.contains("svg")), "{one:?}");
}
