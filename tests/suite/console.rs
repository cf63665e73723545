//! The console over HTTP: the URL, content and headers of each view. `system/console.rs` runs it in a
//! browser.

use std::fs;

use crate::support::html;
use crate::support::http::{self, Reply};
use crate::support::redis::RedisProcess;
use crate::support::{TestServer, assert_has, eventually};

const RULES: &str = "
domain: shop
descriptors:
  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 4}}
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
";
const SHOP_USER: &str = "/console/rule?domain=shop&rule=shop.user";
const USER_ANN: &str = "/console/key?domain=shop&e=user%3Dann";

fn view(server: &TestServer, path: &str) -> Reply {
    http::get(server.admin, path)
}

/// The content of a view, with one space for each run of white space.
fn text(server: &TestServer, path: &str) -> String {
    html::text(&view(server, path).body)
}

#[tokio::test]
async fn every_view_has_its_url_and_a_strict_policy() {
    let server = TestServer::with_rules(RULES).start();
    for (path, title) in [
        ("/", "Overview"),
        ("/console/rules", "Rules"),
        ("/console/budgets", "Budgets"),
        ("/console/files", "Files"),
        ("/console/file?name=rules.yaml", "rules.yaml"),
        ("/console/over-limit", "Over limit"),
        ("/console/store", "Store"),
        ("/console/trial", "Trial"),
        (SHOP_USER, "shop.user"),
        (USER_ANN, "user=ann"),
    ] {
        let reply = view(&server, path);
        assert_eq!(reply.status, 200, "{path}");
        let shown = format!("<title>{title} · Tollgate</title>");
        assert!(reply.body.contains(&shown), "{path}: {}", reply.body);
        assert!(reply.has_header("content-type: text/html; charset=utf-8"));
        assert!(reply.has_header("x-content-type-options: nosniff"));
        let policy = "content-security-policy: default-src 'none'; script-src 'self'; ";
        let has_policy = |header: &String| header.starts_with(policy);
        assert!(reply.headers.iter().any(has_policy), "{:?}", reply.headers);
        for inline in ["<style", " style=", " onclick=", "http:", "https:"] {
            let body = reply.body.replace("http://www.w3.org/2000/svg", "");
            assert!(!body.contains(inline), "{path} has {inline}: {body}");
        }
        for link in ["Overview", "Rules", "Budgets", "Files", "Over limit", "Store", "Trial"] {
            assert!(reply.body.contains(&format!(">{link}</a>")), "{path}: {link}");
        }
    }
}

#[test]
fn files_of_a_page_are_served_and_small() {
    let server = TestServer::with_rules(RULES).start();
    let page = view(&server, "/").body;
    let mut bytes = page.len();
    let mut files = 0;
    for link in page.split('"').filter(|part| part.starts_with("/console/console.")) {
        let reply = view(&server, link);
        assert_eq!(reply.status, 200, "{link}");
        assert!(reply.has_header("cache-control: public, max-age=31536000, immutable"));
        bytes += reply.body.len();
        files += 1;
    }
    assert_eq!(files, 2, "a style sheet and a script: {page}");
    let page = view(&server, "/console/file?name=rules.yaml").body;
    let (_, behind) = page.split_once("/console/editor.js").expect("a script");
    let version = behind.split('"').next().unwrap_or_default();
    let editor = view(&server, &format!("/console/editor.js{version}"));
    assert_eq!(editor.status, 200);
    bytes += page.len() + editor.body.len();
    assert!(bytes < 200_000, "{bytes} bytes");
}

#[tokio::test]
async fn views_have_limits_and_reasons_beside_their_numbers() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    for _ in 0..3 {
        client.ask("shop", &[("user", "ann")]).await;
    }
    for (path, shown) in [
        ("/console/rules", "shop.path_/login 4 per year 0 of 4 0 0 fixed_window"),
        ("/console/rules", "shop.user 2 per year per key 3 1 fixed_window"),
        (SHOP_USER, "rule shop.user at "),
        (USER_ANN, "Reset and Grant are off: no admin token is configured; set ADMIN_TOKEN"),
        (USER_ANN, "Remaining 0 hits"),
        (USER_ANN, "Counted in memory"),
        (USER_ANN, "3 hits 1 over limit at most 3 hits in 5 minutes"),
        ("/console/key?domain=shop&e=user%3Dbob", "None of its hits is known"),
        ("/console/trial", " TRIAL_UPSTREAM=ratelimit.istio-system:8081 "),
    ] {
        assert_has(&text(&server, path), &[shown]);
    }
}

#[tokio::test]
async fn client_input_is_text() {
    let server = TestServer::with_rules(RULES).start();
    let attack = "<img src=x onerror=alert(1)>\"'&";
    let mut client = server.client().await;
    for _ in 0..3 {
        client.ask("shop", &[("user", attack)]).await;
    }
    let encoded = "%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%22%27%26";
    for path in [
        format!("/console/key?domain=shop&e=user%3D{encoded}"),
        format!("/console/key?domain={encoded}&e=user%3D1"),
        format!("/console/key?domain=shop&e={encoded}"),
        format!("/console/rules?q={encoded}"),
        format!("/console/rule?domain={encoded}&rule={encoded}"),
    ] {
        let reply = view(&server, &path);
        assert!(!reply.body.contains("<img"), "{path}: {}", reply.body);
        assert!(!reply.body.contains("\"'&"), "{path}: {}", reply.body);
    }
    let key = view(&server, &format!("/console/key?domain=shop&e=user%3D{encoded}"));
    assert!(
        key.body.contains("user=&lt;img src=x onerror=alert(1)&gt;&quot;'&amp;"),
        "{}",
        key.body
    );
    let broken = view(&server, "/console/key?domain=%ff&e=%fe%3D%fd");
    assert_eq!(broken.status, 200);
}

#[test]
fn thousand_rules_are_listed_and_found() {
    let descriptors = (0..1_001).map(|number| {
        format!(
            "  - {{key: k{number:04}, rate_limit: {{unit: minute, requests_per_unit: {number}}}}}"
        )
    });
    let descriptors = descriptors.collect::<Vec<_>>().join("\n");
    let rules = format!("domain: d\ndescriptors:\n{descriptors}");
    let server = TestServer::with_rules(&rules).start();
    let all = view(&server, "/console/rules").body;
    assert_eq!(all.matches("<tr id=\"rule:").count(), 200);
    assert!(all.contains("1,001 of 1,001 rules, the first 200 shown"));
    assert!(all.contains("801 more rules are left out"));
    for (search, found) in
        [("K0999", 1), ("d.k09", 100), ("fixed+k1000", 1), ("rules.yaml:1002", 1), ("nothing", 0)]
    {
        let page = view(&server, &format!("/console/rules?q={search}")).body;
        let rows = page.matches("<tr id=\"rule:").count();
        assert_eq!(rows, found, "{search}");
        let shown = format!("{rows} of 1,001 rules");
        assert!(page.contains(&shown), "{search}: {page}");
    }
}

#[tokio::test]
async fn rules_are_sorted_by_what_is_asked_for() {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    for _ in 0..3 {
        client.ask("shop", &[("user", "ann")]).await;
    }
    let rows = |sort: &str| {
        let page = view(&server, &format!("/console/rules?sort={sort}")).body;
        let first = page.find("rule:shop:shop.user").expect("a row");
        first < page.find("rule:shop:shop.path_/login").expect("a row")
    };
    assert_eq!(["path", "hits", "over_limit"].map(rows), [false, true, true]);
}

#[test]
fn form_of_a_rule_leads_to_the_key() {
    let server = TestServer::with_rules(RULES).start();
    assert!(view(&server, SHOP_USER).body.contains(r#"name="k" value="user""#));
    let reply = view(&server, "/console/key?domain=shop&k=user&v=a%26b+c");
    let location = "location: /console/key?domain=shop&e=user%3Da%26b%20c";
    assert!(reply.status == 303 && reply.has_header(location), "{reply:?}");
}

#[tokio::test]
async fn files_are_listed_with_what_the_compiler_reported() {
    let warned = format!("{RULES}  - {{key: plan, shadow_mode: true}}\n");
    let files =
        [("rules.yaml", &*warned), ("below/other.yaml", "domain: other\ndescriptors: []\n")];
    let server = TestServer::with_files(files).start();
    let list = text(&server, "/console/files");
    let row = format!("rules.yaml 2 0 1 {}", warned.len());
    assert!(list.contains(&row), "{row}: {list}");
    let warning = "Warnings rules.yaml:7 `shadow_mode` has no effect without rate_limit beside it";
    assert!(list.contains(warning), "{list}");
    let file = text(&server, "/console/file?name=rules.yaml");
    assert!(file.contains(warning), "{file}");
    assert!(file.contains("Last load in force"), "{file}");

    server.write("rules.yaml", &RULES.replace("unit: year", "unit: yaer"));
    for path in ["/console/files", "/console/file?name=rules.yaml"] {
        eventually(&format!("{path} has the errors"), async || {
            let shown = text(&server, path);
            let expected = ["Rejected: ", "rules.yaml:4 invalid rate limit unit 'yaer'"];
            expected.iter().all(|part| shown.contains(part)) && !shown.contains("Warnings rules")
        })
        .await;
    }
    let file = text(&server, "/console/file?name=rules.yaml");
    assert!(file.contains("Last load rejected"), "{file}");
    server.write("rules.yaml", RULES);
    eventually("the errors are gone", async || {
        !text(&server, "/console/files").contains("Rejected")
    })
    .await;
}

#[test]
fn text_of_a_file_is_shown_as_it_is() {
    let attack = "\n# </textarea><img src=x onerror=alert(1)>\n";
    let rules = format!("{attack}{RULES}");
    let server = TestServer::with_rules(&rules).start();
    let page = view(&server, "/console/file?name=rules.yaml").body;
    let escaped = rules.replace('<', "&lt;").replace('>', "&gt;");
    // The first line break is dropped by browsers.
    assert!(page.contains(&format!(">\n{escaped}</textarea>")), "{page}");
    assert!(page.contains("<label class=\"title\" for=\"text\">Rules of rules.yaml</label>"));
    let refreshed = view(&server, "/console/file?name=rules.yaml&text=no").body;
    assert!(!refreshed.contains("onerror"), "{refreshed}");
}

#[test]
fn files_that_cannot_be_edited_are_explained() {
    let server = TestServer::with_rules(RULES).start();
    for (name, status, expected) in [
        ("none.yaml", 404, "no rules file none.yaml"),
        ("..%2Frules.yaml", 404, "without a slash"),
        ("", 404, "1 to 255 bytes"),
    ] {
        let reply = view(&server, &format!("/console/file?name={name}"));
        assert_eq!(reply.status, status, "{name}");
        assert!(reply.body.contains(expected), "{name}: {}", reply.body);
    }
    fs::write(server.path("latin.yaml"), b"domain: \xfc\n").expect("it is written");
    let latin = text(&server, "/console/file?name=latin.yaml");
    assert!(latin.contains("is not UTF-8"), "{latin}");
    let large = format!("# {}", "x".repeat(1 << 20));
    fs::write(server.path("large.yaml"), large).expect("it is written");
    let large = view(&server, "/console/file?name=large.yaml").body;
    assert!(large.contains("edited_bytes_max") && large.len() < 100_000);

    let xds = TestServer::with_xds("127.0.0.1:1").start();
    assert!(text(&xds, "/console/files").contains("The rules come from a control plane"));
    assert_eq!(view(&xds, "/console/file?name=rules.yaml").status, 404);
}

#[test]
fn buttons_that_change_files_are_there_if_they_can_be_changed() {
    let page = "/console/file?name=rules.yaml";
    let off = [
        (&[][..], "Changes cannot be applied: "),
        (&[("RULES_WRITABLE", "true")][..], "set ADMIN_TOKEN or ADMIN_TOKEN_FILE"),
        (&[("ADMIN_TOKEN", "t")][..], "RULES_WRITABLE"),
    ];
    for (settings, reason) in off {
        let server = TestServer::with_rules(RULES).with_envs(settings).start();
        let shown = text(&server, page);
        assert!(shown.contains(reason), "{reason}: {shown}");
        let body = view(&server, page).body;
        assert!(!body.contains("<dialog"), "{body}");
    }
    let settings = [("RULES_WRITABLE", "true"), ("ADMIN_TOKEN", "t")];
    let server = TestServer::with_rules(RULES).with_envs(&settings).start();
    let body = view(&server, page).body;
    assert_eq!(body.matches("<dialog").count(), 1, "{body}");
    assert!(!body.contains("cannot be applied"), "{body}");
}

#[test]
fn unknown_rule_and_view_are_not_found() {
    let server = TestServer::with_rules(RULES).start();
    for path in
        ["/console/rule?domain=shop&rule=shop.nothing", "/console/rule", "/console/whatever"]
    {
        assert_eq!(view(&server, path).status, 404, "{path}");
    }
}

#[tokio::test]
async fn budgets_are_shown_with_what_keys_have_used() {
    let rules = "
domain: llm
descriptors:
  - key: team
    rate_limit: {unit: minute, requests_per_unit: 1000}
    metadata: {tollgate: {limits: [{name: budget, requests: 10, unit: year, calendar: Europe/Berlin}]}}
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 1000}
        metadata: {tollgate: {parents: true}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 5}}
";
    let server = TestServer::with_rules(rules).start();
    assert!(!text(&server, "/console/budgets").contains("llm.hour"));
    let mut client = server.client().await;
    for (team, hits) in [("search", 8), ("ads", 10)] {
        for _ in 0..hits {
            client.ask("llm", &[("team", team)]).await;
        }
    }
    eventually("both teams are shown", async || {
        let page = text(&server, "/console/budgets");
        let at = |words: &str| page.find(words);
        let rows = [at("ads budget 10 of 10"), at("search budget 8 of 10")];
        rows.iter().all(Option::is_some) && rows.is_sorted()
    })
    .await;
    let key = "/console/key?domain=llm&e=team%3Dsearch&e=user%3Dann";
    assert_has(&text(&server, key), &["llm.team budget 8 of 10", "llm.team.user 0 of 1,000"]);
}

#[tokio::test]
async fn trial_has_a_view() {
    let upstream = TestServer::with_rules(RULES).start();
    let server = TestServer::with_rules(RULES)
        .with_env("TRIAL_UPSTREAM", &upstream.grpc.to_string())
        .start();
    let mut client = server.client().await;
    for _ in 0..2 {
        client.ask("shop", &[("user", "ann")]).await;
    }
    let expected = "2 of 2 requests agree, 100.00 % (34.24 to 100.00)";
    eventually("both requests are compared", async || {
        text(&server, "/console/trial").contains(expected)
    })
    .await;
}

#[tokio::test]
async fn unreachable_redis_is_shown_without_a_call() {
    let redis = RedisProcess::builder().in_own_group().start();
    let server = TestServer::with_rules(RULES).with_env("REDIS_URL", &redis.url()).start();
    let views = ["/", "/console/store"];
    for path in views {
        eventually(&format!("{path} has reachable"), async || {
            text(&server, path).contains(" reachable ")
        })
        .await;
        assert!(!text(&server, path).contains("unreachable"));
    }
    redis.stop();
    for path in views {
        eventually(&format!("{path} has the state in the words of the badge"), async || {
            let page = view(&server, path).body;
            let badge = page.split_once("class=\"pill bad\"").and_then(|(_, rest)| {
                let (_, text) = rest.split_once('>')?;
                text.split('<').next()
            });
            badge.is_some_and(|badge| {
                badge.contains("unreachable")
                    && page.contains(&format!("class=\"state bad\">{badge}"))
            })
        })
        .await;
    }
    let key = text(&server, USER_ANN);
    assert!(key.contains("Counted in fallback"), "{key}");
    let mut client = server.client().await;
    for _ in 0..3 {
        client.ask("shop", &[("user", "ann")]).await;
    }
    let store = text(&server, "/console/store");
    assert!(store.contains("Counters in this process 1 "), "{store}");
    eventually("the chart has the checks by cause", async || {
        let titles = server.admin("/console/store");
        ["1 unreachable", "2 unreachable", "3 unreachable"]
            .iter()
            .any(|count| titles.contains(count))
    })
    .await;
    let key = text(&server, USER_ANN);
    assert!(key.contains("Used 3 of 2"), "{key}");
}

/// The anchors that a page links to, after a text.
fn linked(page: &str, before: &str) -> Vec<String> {
    let links = page.split(before).skip(1);
    let anchors = links.filter_map(|rest| rest.split('"').next());
    anchors.map(str::to_owned).collect()
}

#[test]
fn runbook_has_every_section_that_it_links_to() {
    let server = TestServer::with_rules(RULES).start();
    let page = view(&server, "/console/runbook").body;
    let anchors = linked(&page, "href=\"#");
    assert!(anchors.len() > 50, "{anchors:?}");
    for anchor in &anchors {
        let id = format!(" id=\"{anchor}\"");
        assert_eq!(page.matches(&id).count(), 1, "{anchor}");
    }
    for absent in ["<img", " style=", "<!--", ".md\"", "href=\"http"] {
        assert!(!page.contains(absent), "{absent}: {page}");
    }
    assert!(page.contains("tollgate top    #"), "{page}");
    // The script asks for the rest of the page.
    let refreshed = view(&server, "/console/runbook?text=no").body;
    assert!(refreshed.len() < page.len() / 10, "{refreshed}");
}

#[tokio::test]
async fn faults_link_to_their_section_of_the_runbook() {
    let redis = RedisProcess::builder().in_own_group().start();
    let bad = RULES.replace("unit: year", "unit: yaer");
    let without_redis = TestServer::with_rules(RULES).with_env("REDIS_URL", &redis.url()).start();
    redis.stop();
    let rejected = TestServer::with_rules(RULES).start();
    rejected.write("rules.yaml", &bad);
    let without_rules = TestServer::with_rules(&bad).start();
    let runbook = view(&rejected, "/console/runbook").body;
    let no_rules = "No rules are loaded: calls get an error";
    let last_good = "New rules are rejected; the last good ones serve";
    for (server, badge, path, shown, anchor) in [
        (&without_rules, "bad", "/", no_rules, "tollgatenorules"),
        (&without_rules, "bad", "/console/files", no_rules, "tollgatenorules"),
        (&rejected, "warning", "/", last_good, "tollgaterulesrejected"),
        (&rejected, "warning", "/console/file?name=rules.yaml", last_good, "tollgaterulesrejected"),
        (&without_redis, "bad", "/console/store", "unreachable", "tollgatestorenodeunavailable"),
    ] {
        eventually(&format!("{path} has: {shown}"), async || text(server, path).contains(shown))
            .await;
        let page = view(server, path).body;
        let href = format!("href=\"/console/runbook#{anchor}\"");
        let pill = format!("class=\"pill {badge}\" {href}");
        assert!(page.contains(&pill), "{path} has no {pill}: {page}");
        let links = page.matches(&href).count();
        assert!(links > 1, "{path} has no other {href}: {page}");
        for anchor in linked(&page, "/console/runbook#") {
            let id = format!(" id=\"{anchor}\"");
            assert!(runbook.contains(&id), "{path} links to {anchor}");
        }
    }
    assert!(!text(&without_rules, "/").contains("last good"));
}

#[tokio::test]
async fn pages_say_how_many_replicas_there_are() {
    let redis = RedisProcess::start();
    let replicas = ["pod-a", "pod-b", "pod-c"].map(|pod| {
        let envs = [("REDIS_URL", &*redis.url()), ("POD_NAME", pod)];
        TestServer::with_rules(RULES).with_envs(&envs).start()
    });
    let shows = async |path: &str, expected: &[&str]| {
        eventually(&format!("{path} has {expected:?}"), async || {
            let shown = text(&replicas[0], path);
            expected.iter().all(|part| shown.contains(part))
        })
        .await;
    };
    let overview = [
        "replica pod-a",
        "0 of 0 calls; this replica, one of 3, last minute",
        "Last hour · this replica, one of 3, by minute",
        "Replicas 3 share the limits; this one serves",
        "Totals · this replica, one of 3, since ",
    ];
    shows("/", &overview).await;
    for (path, expected) in [
        ("/console/rules", "Hits: this replica, one of 3, last hour."),
        (SHOP_USER, "Last hour · this replica, one of 3"),
        (SHOP_USER, "Top keys · this replica, one of 3"),
        (USER_ANN, "Leased 0 of used, held by this replica, one of 3"),
        ("/console/over-limit", "over limit of this replica, one of 3, as they are decided"),
    ] {
        shows(path, &[expected]).await;
    }
}
