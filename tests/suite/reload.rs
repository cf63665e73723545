//! Rules come and go while the service runs: what is good takes effect, what is broken never takes
//! the place of what serves.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::Duration;

use tempfile::TempDir;
use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};

use crate::support::volume::Volume;
use crate::support::{
    Builder, Client, Code, PATIENCE, TestServer, eventually, limit_of, request, write,
};

const BROKEN: &str = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 3}\n";

/// Rules of a domain of that name, with one limit.
fn domain(name: &str) -> String {
    format!(
        "domain: {name}\ndescriptors:\n  - key: k\n    rate_limit: {{unit: year, requests_per_unit: 1}}\n"
    )
}

/// Whether a limit is in force, by what /rlconfig says of it.
pub(crate) fn has_limit(server: &TestServer, key: &str, requests: u32) -> bool {
    let line = format!("{key}: unit=YEAR requests_per_unit={requests}, ");
    server.admin("/rlconfig").lines().any(|there| there.starts_with(&line))
}

pub(crate) async fn limit_becomes(server: &TestServer, key: &str, requests: u32) {
    eventually("the limit is in force", async || has_limit(server, key, requests)).await;
}

/// Waits until health reports that it serves.
async fn serving(client: &mut Client) {
    let is_serving = async || client.health("").await.expect("it is known") == Serving;
    eventually("it gets healthy", is_serving).await;
}

/// What remains of the limit of domain `d` after one more call.
async fn remaining(client: &mut Client) -> (Code, u32) {
    let response = client.answer(request("d", &[&[("k", "")]])).await;
    let remaining = response.statuses[0].limit_remaining;
    (response.overall_code(), remaining)
}

#[tokio::test]
async fn added_changed_and_removed_files_take_effect() {
    let server = TestServer::with_rules(&limit_of(7)).start();
    let mut client = server.client().await;
    assert!(has_limit(&server, "d.k", 7));
    assert_eq!(client.ask("more", &[("k", "")]).await, Code::Ok, "it is unknown before");

    server.write("more.yaml", &domain("more"));
    limit_becomes(&server, "more.k", 1).await;
    assert_eq!(client.ask("more", &[("k", "")]).await, Code::Ok);
    assert_eq!(client.ask("more", &[("k", "")]).await, Code::OverLimit);

    server.write("rules.yaml", &limit_of(8));
    limit_becomes(&server, "d.k", 8).await;
    assert!(has_limit(&server, "more.k", 1));

    fs::remove_file(server.path("more.yaml")).expect("it exists");
    eventually("the removed file is forgotten", async || !has_limit(&server, "more.k", 1)).await;
    assert_eq!(client.ask("more", &[("k", "")]).await, Code::Ok);
    assert!(has_limit(&server, "d.k", 8));
}

#[tokio::test]
async fn new_subdirectory_takes_effect() {
    let server = TestServer::with_files([]).start();
    write(&server.path("team/shop/rules.yaml"), &limit_of(7));
    limit_becomes(&server, "d.k", 7).await;
    fs::rename(server.path("team"), server.path("..team")).expect("it exists");
    eventually("names with a dot are left out", async || !has_limit(&server, "d.k", 7)).await;
}

#[tokio::test]
async fn invalid_file_keeps_the_last_good_rules_and_is_reported() {
    let server = TestServer::with_rules(&limit_of(2)).start();
    let mut client = server.client().await;
    assert_eq!(remaining(&mut client).await, (Code::Ok, 1));
    server.assert_metric("tollgate_rules_rejected", 0.0);
    server.assert_metric("ratelimit_service_config_load_error", 0.0);
    assert!(server.get("/ready").body.ends_with("rules: ok\n"));

    server.write("rules.yaml", BROKEN);
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    server.assert_metric("ratelimit_service_config_load_error", 1.0);
    server.assert_metric("ratelimit_service_config_load_success", 1.0);
    let ready = server.get("/ready");
    assert_eq!(ready.status, 200, "{ready:?}");
    let in_force = "rules: the newest are invalid, the last good configuration serves\n";
    for text in [&ready.body, &server.admin("/ready")] {
        assert!(text.contains(in_force), "{text}");
    }
    let unit = "invalid rate limit unit 'fortnight'";
    for text in [&ready.body, &server.log_with(unit)] {
        assert!(text.contains(unit) && text.contains("rules.yaml:4:24"), "{text}");
    }
    assert_eq!(client.health("").await.expect("it is known"), Serving);
    assert_eq!(remaining(&mut client).await, (Code::Ok, 0));
    assert_eq!(remaining(&mut client).await, (Code::OverLimit, 0));

    server.write("rules.yaml", &limit_of(9));
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    assert!(has_limit(&server, "d.k", 9));
    assert!(server.get("/ready").body.ends_with("rules: ok\n"));
    server.assert_metric("ratelimit_service_config_load_success", 2.0);
    server.assert_metric("ratelimit_service_config_load_error", 1.0);
}

/// Lines about a load, a reload, a rejected reload and the recovery.
const RELOAD_LINES: [&str; 4] = [
    " INFO rules loaded ",
    " INFO rules reloaded ",
    "ERROR Error loading new configuration: rules.yaml: invalid rate limit unit 'fortnight'",
    " INFO rules valid again ",
];

/// How many of each of [`RELOAD_LINES`] a server logs that reloads, rejects and recovers, with the
/// default log level, up to the last one.
async fn reload_lines(server: Builder, last: &str) -> [usize; 4] {
    let server = server.with_env("LOG_LEVEL", "").start();
    server.write("rules.yaml", &limit_of(8));
    server.metric_becomes("ratelimit_service_config_load_success", 2.0).await;
    server.write("rules.yaml", BROKEN);
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    server.write("rules.yaml", &limit_of(9));
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    let log = server.log_with(last);
    // An error is logged at every level.
    let rejected = log.lines().find(|line| line.contains("ERROR")).unwrap_or_default();
    for words in [
        "rules.yaml:4:24 (domain d",
        "hint=\"write one of second, ",
        "in_force=\"last good configuration\"",
    ] {
        assert!(rejected.contains(words), "{words}: {rejected}");
    }
    RELOAD_LINES.map(|text| log.lines().filter(|line| line.contains(text)).count())
}

#[tokio::test]
async fn reload_rejection_and_recovery_are_one_line_each_on_a_terminal() {
    let server = TestServer::with_rules(&limit_of(7)).with_a_terminal();
    assert_eq!(reload_lines(server, RELOAD_LINES[3]).await, [1, 1, 1, 1]);
}

#[tokio::test]
async fn without_a_terminal_the_log_level_is_that_of_the_reference() {
    let server = TestServer::with_rules(&limit_of(7));
    assert_eq!(reload_lines(server, RELOAD_LINES[2]).await, [0, 0, 1, 0]);
}

#[tokio::test]
async fn log_level_wins_over_the_terminal() {
    let server = TestServer::with_rules(&limit_of(7))
        .with_a_terminal()
        .with_env("LOG_LEVEL", "warn")
        .start();
    server.assert_not_logged(" INFO ");
}

#[tokio::test]
async fn writes_in_steps_never_leave_the_service_without_rules() {
    let server = TestServer::with_rules(&limit_of(7)).start();
    let text = limit_of(8);
    let (head, tail) = text.split_at(text.len() / 2);

    File::create(server.path("rules.yaml")).expect("it is truncated");
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    assert!(has_limit(&server, "d.k", 7));

    fs::write(server.path("rules.yaml"), head).expect("it is written");
    server.metric_becomes("ratelimit_service_config_load_error", 2.0).await;
    assert!(has_limit(&server, "d.k", 7));

    fs::write(server.path("rules.yaml"), format!("{head}{tail}")).expect("it is written");
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    assert!(has_limit(&server, "d.k", 8));
}

#[tokio::test]
async fn config_map_updates_take_effect_at_istios_mount() {
    let root = TempDir::new().expect("a temporary directory");
    let mount = root.path().join("ratelimit/config");
    let config_map = Volume::new(mount, &[("rules.yaml", &limit_of(1))]);
    let update = |requests| config_map.replace(&[("rules.yaml", &limit_of(requests))]);
    let server = TestServer::with_runtime_root(root.path())
        .with_env("RUNTIME_SUBDIRECTORY", "ratelimit")
        .with_env("RUNTIME_WATCH_ROOT", "false")
        .with_env("RUNTIME_IGNOREDOTFILES", "true")
        .start();
    assert!(has_limit(&server, "d.k", 1));
    for requests in 20..25 {
        update(requests);
        limit_becomes(&server, "d.k", requests).await;
    }
    for requests in 30..40 {
        update(requests);
    }
    limit_becomes(&server, "d.k", 39).await;
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    // Changes that come together are one load.
    let loads = server.metric("ratelimit_service_config_load_success").expect("the metric exists");
    assert!(loads < 17.0, "{loads}");
}

#[tokio::test]
async fn replaced_link_at_the_runtime_root_takes_effect() {
    let base = TempDir::new().expect("a temporary directory");
    let root = base.path().join("current");
    let turn = |requests: u32| {
        let version = base.path().join(format!("version_{requests}"));
        write(&version.join("ratelimit/config/rules.yaml"), &limit_of(requests));
        symlink(&version, base.path().join("next")).expect("it is not there");
        fs::rename(base.path().join("next"), &root).expect("both are in one directory");
    };
    turn(1);
    let server = TestServer::with_runtime_root(&root)
        .with_env("RUNTIME_SUBDIRECTORY", "ratelimit")
        .with_env("RUNTIME_WATCH_ROOT", "true")
        .start();
    assert!(has_limit(&server, "d.k", 1));
    for requests in 2..6 {
        turn(requests);
        limit_becomes(&server, "d.k", requests).await;
    }
    // And a file within the version that is current now, though the first watch was on another.
    write(&root.join("ratelimit/config/rules.yaml"), &limit_of(9));
    limit_becomes(&server, "d.k", 9).await;
}

#[tokio::test]
async fn removed_directory_keeps_the_rules_until_it_is_restored() {
    let server = TestServer::with_rules(&limit_of(1)).start();
    let mut client = server.client().await;
    // At once: without its files the directory would be valid, and limit nothing.
    let away = TempDir::new().expect("a temporary directory");
    fs::rename(server.path(""), away.path().join("rules")).expect("both are on one disk");
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    let ready = server.get("/ready");
    assert_eq!(ready.status, 200);
    for text in [&ready.body, &server.log_with("read rules from")] {
        assert!(text.contains("read rules from"), "{text}");
        assert!(text.contains("No such file or directory"), "{text}");
    }
    assert_eq!(remaining(&mut client).await, (Code::Ok, 0));
    assert_eq!(remaining(&mut client).await, (Code::OverLimit, 0));

    write(&server.path("rules.yaml"), &limit_of(5));
    limit_becomes(&server, "d.k", 5).await;
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    // A watch is on the new directory, too.
    server.write("rules.yaml", &limit_of(6));
    limit_becomes(&server, "d.k", 6).await;
}

#[tokio::test]
async fn invalid_first_rules_keep_health_not_serving_until_valid_ones() {
    let server = TestServer::with_rules(BROKEN).start();
    let mut client = server.client().await;
    server.assert_announced("were rejected, see the log; waiting for valid rules");
    server.assert_logged("invalid rate limit unit 'fortnight'");
    assert_unready(&server, &mut client).await;
    let ready = server.get("/ready").body;
    assert!(ready.contains("rules: none: the first rules are invalid\n"), "{ready}");

    server.write("rules.yaml", &limit_of(1));
    serving(&mut client).await;
    assert_eq!(server.get("/healthcheck").status, 200);
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(remaining(&mut client).await, (Code::Ok, 0));
    assert_eq!(remaining(&mut client).await, (Code::OverLimit, 0));
}

#[tokio::test]
async fn rules_directory_may_be_created_after_startup() {
    let base = TempDir::new().expect("a temporary directory");
    let server = TestServer::with_runtime_root(base.path()).start();
    let mut client = server.client().await;
    assert_unready(&server, &mut client).await;

    write(&base.path().join("config/rules.yaml"), &limit_of(1));
    serving(&mut client).await;
    assert_eq!(remaining(&mut client).await, (Code::Ok, 0));
}

async fn assert_unready(server: &TestServer, client: &mut Client) {
    let called = client.call(request("d", &[&[("k", "")]])).await;
    let error = called.expect_err("there are no rules");
    assert_eq!(error.code(), tonic::Code::Unknown);
    assert_eq!(error.message(), "no rate limit configuration loaded");
    for service in ["", "ratelimit"] {
        let health = client.health(service).await;
        assert_eq!(health.expect("it is known"), NotServing);
    }
    let health = server.get("/healthcheck");
    assert_eq!((health.status, &*health.body), (500, ""));
    assert_eq!(server.get("/ready").status, 503);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#;
    assert_eq!(server.json(body).status, 400);
    server.assert_metric("tollgate_rules_rejected", 1.0);
    assert_eq!(server.admin("/rlconfig"), "");
}

#[tokio::test]
async fn empty_rules_directory_limits_nothing_and_warns() {
    let server = TestServer::with_files([]).with_env("LOG_LEVEL", "warn").start();
    server.assert_logged("no rules files: nothing is limited");
    let mut client = server.client().await;
    assert_eq!(client.health("").await.expect("it is known"), Serving);
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(server.get("/healthcheck").status, 200);
}

#[tokio::test]
async fn force_start_is_healthy_before_the_first_rules() {
    let server = TestServer::with_rules(BROKEN)
        .with_env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .start();
    let mut client = server.client().await;
    assert_eq!(client.health("").await.expect("it is known"), Serving);
    assert_eq!(server.get("/healthcheck").status, 200);
    let called = client.call(request("d", &[&[("k", "")]])).await;
    assert!(called.is_err(), "there are no rules all the same");
}

#[tokio::test]
async fn health_follows_the_rules_if_a_domain_is_required() {
    let server = TestServer::with_files([])
        .with_env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")
        .with_env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .start();
    let mut client = server.client().await;
    assert_eq!(client.health("").await.expect("it is known"), NotServing);
    let ready = server.get("/ready").body;
    assert!(ready.contains("rules: no domain"), "{ready}");
    server.write("rules.yaml", &limit_of(1));
    serving(&mut client).await;
    fs::remove_file(server.path("rules.yaml")).expect("it exists");
    eventually("it gets unhealthy", async || {
        client.health("").await.expect("it is known") == NotServing
    })
    .await;
}

#[tokio::test]
async fn sighup_reloads_rules_with_unchanged_metadata() {
    let mut server = TestServer::with_rules(&limit_of(7)).start();
    let path = server.path("rules.yaml");
    let file = File::options().write(true).open(&path).expect("it exists");
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    // The same length, inode and time.
    fs::write(&path, limit_of(8)).expect("it is written");
    file.set_modified(modified.expect("it has a time")).expect("it is ours");
    server.signal("HUP");
    limit_becomes(&server, "d.k", 8).await;
    assert!(server.is_running());
}

#[tokio::test]
async fn a_file_that_was_there_during_a_load_only_is_forgotten() {
    // A load of them takes a few milliseconds.
    const FILES: u32 = 400;
    let server = TestServer::with_rules(&limit_of(7)).start();
    for number in 1..FILES {
        server.write(&format!("{number}.yaml"), &domain(&number.to_string()));
    }
    let domains = f64::from(FILES);
    server.metric_becomes("tollgate_rule_domains", domains).await;
    for round in 0..16 {
        let seen = server.log().len();
        server.signal("HUP");
        // In one of the rounds it comes between the look at the files and reading them.
        std::thread::sleep(Duration::from_micros(250 * round));
        server.write("broken.yaml", BROKEN);
        let logs = |text: &str| server.log()[seen..].contains(text);
        // Soon, so that it is gone before its event is handled.
        let is_read = async {
            while !logs("fortnight") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let is_read = tokio::time::timeout(PATIENCE, is_read).await;
        assert!(is_read.is_ok(), "round {round}: {}", server.log());
        fs::remove_file(server.path("broken.yaml")).expect("it exists");
        eventually("the rules are valid again", async || logs("valid again")).await;
    }
}
