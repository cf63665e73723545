//! What holds for all commands: help that fits a screen, exit codes, one way to name a service; and
//! `config`, `healthcheck` and `version`.

use serde_json::Value;

use crate::support::{
    TestServer, assert_has, eventually, http, limit_of, look_until, tollgate, tollgate_with_env,
};

/// Lines of a small terminal.
const SCREEN_LINES: usize = 40;
/// All commands, with those below them.
const COMMANDS: &str = "serve, config, healthcheck, check, explain, test, simulate, replay, diff, schema, top, counter, \
     counter get, counter reset, counter grant, trial, trial report, version, completions, man";

#[test]
fn short_help_fits_a_screen_and_groups_the_commands() {
    let top = tollgate(&["-h"]).stdout;
    for heading in ["Serve:", "Author rules:", "Operate:"] {
        assert!(top.contains(&format!("\n{heading}\n")), "{heading}: {top}");
    }
    for name in COMMANDS.split(", ") {
        let words: Vec<&str> = name.split(' ').collect();
        let help = tollgate(&[&words[..], &["-h"]].concat());
        let lines = help.stdout.lines().count();
        assert!(lines <= SCREEN_LINES, "{name} -h has {lines} lines");
        assert!(help.stdout.contains(&format!("Usage: tollgate {name}")), "{help:?}");
        let line = top.lines().find(|line| line.starts_with(&format!("  {name} ")));
        assert_eq!(line.is_some(), words.len() == 1, "{name}: {top}");
    }
    assert!(top.lines().count() <= SCREEN_LINES, "{top}");
    let whole = tollgate(&["serve", "--help"]).stdout;
    assert_has(&whole, &["--redis-tls", "--near-limit-ratio"]);
}

#[test]
fn help_settings_lists_all_settings() {
    let help = tollgate(&["help", "settings"]);
    assert_eq!(help.code, Some(0), "{help:?}");
    let rows = include_str!("../../docs/settings.md").lines();
    for group in rows.clone().filter_map(|line| line.strip_prefix("## ")) {
        assert_has(&help.stdout, &[&format!("{group}:\n")]);
    }
    let names = rows.filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut count = 0;
    for name in names {
        count += 1;
        let flag = format!("  --{} ", name.to_lowercase().replace('_', "-"));
        assert!(help.stdout.contains(&flag), "{name}");
    }
    assert!(count > 100, "{count} settings");
}

/// Command lines that are invalid: their code is 64. Behind some, what the message contains.
const MISUSE: &str = "
--no-such-flag => --no-such-flag
serve --no-such-flag => --no-such-flag
serve one two => two
explain => <WORD>
explain d => DOMAIN KEY=VALUE...
--port x
serve --port x
check --format xml
check --no-such-flag
counter
counter get shop
counter take shop user=1
counter grant shop user=1 --hits 0
explain shop
explain --json
top --window 2m
trial
replay
diff one
test --format xml
simulate --requests ten
completions tcsh
man nothing
healthcheck now
version --xml
config --format xml
help nothing
explian
explian shop user=42
top --url 127.0.0.1:6070
";

#[test]
fn misuse_ends_with_64_and_bad_settings_with_78() {
    for line in MISUSE.trim().lines() {
        let (words, expected) = line.split_once(" => ").unwrap_or((line, ""));
        tollgate(&words.split(' ').collect::<Vec<_>>()).assert_failed(64, &[expected]);
    }
    for command in ["serve", "config"] {
        let ran = tollgate_with_env(&[command], &[("PORT", "x")]);
        ran.assert_failed(78, &["environment variable PORT"]);
    }
}

#[test]
fn wrong_ports_say_which_they_are_and_name_the_right_one() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("USE_PROMETHEUS", "true").start();
    let prometheus = server.prometheus.expect("a Prometheus address");
    for (address, name) in [
        (server.http, "this is PORT"),
        (server.grpc, "such as GRPC_PORT"),
        (prometheus, "this is PROMETHEUS_ADDR"),
    ] {
        let url = format!("http://{address}");
        for command in
            [&["explain", "--live", "d", "k=1"][..], &["counter", "get", "d", "k=1"], &["top"]]
        {
            let ran = tollgate_with_env(command, &[("TOLLGATE_URL", &url)]);
            ran.assert_failed(1, &[name, "the admin port is DEBUG_PORT, 6070 by default"]);
        }
    }
}

#[test]
fn healthcheck_says_what_ready_says() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("DRAIN_PERIOD", "60s").start();
    let url = format!("http://{}", server.admin);
    let check = || tollgate(&["healthcheck", "--url", &url]);
    let ready = check();
    assert_eq!((ready.code, ready.stdout), (Some(0), server.admin("/ready")));
    server.signal("TERM");
    look_until("it drains", || check().code == Some(1));
    check().assert_printed(1, &["not ready\nprocess: draining\n"]);
    let nowhere = tollgate(&["healthcheck", "--url", "http://127.0.0.1:9"]);
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
}

#[test]
fn version_describes_the_build() {
    let version = tollgate(&["version", "--json"]).json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    for field in ["commit", "profile", "target", "features", "rustc", "tzdata"] {
        assert!(version[field].is_string(), "{field}: {version}");
    }
    let written = format!(
        "tollgate {} (tzdata {})\n",
        env!("CARGO_PKG_VERSION"),
        version["tzdata"].as_str().expect("a text")
    );
    for arguments in ["version", "--version"] {
        assert_eq!(tollgate(&[arguments]).stdout, written);
    }
}

/// A setting of `config --format json`.
fn setting<'j>(config: &'j Value, name: &str) -> &'j Value {
    let settings = config["settings"].as_array().expect("a list");
    let found = settings.iter().find(|setting| setting["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is missing"))
}

#[test]
fn config_shows_values_with_their_sources_and_no_secret() {
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret-token\n").expect("it can be written");
    let variables = [
        ("GRPC_PORT", "9081"),
        ("REDIS_URL", "redis://:s3cret@127.0.0.1:1"),
        ("REDIS_AUTH", "s3cret"),
        ("ADMIN_TOKEN_FILE", &*file.display().to_string()),
        ("MEMCACHE_TLS", "true"),
        ("REDIS_URI", "redis:6379"),
        ("PORT", ""),
    ];
    let ran = tollgate_with_env(&["config", "--port", "9080", "--format", "json"], &variables);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let config = ran.json();
    for (name, value, source) in [
        ("PORT", "9080", "flag"),
        ("GRPC_PORT", "9081", "environment"),
        ("DEBUG_PORT", "6070", "default"),
        ("REDIS_URL", "<hidden>", "environment"),
        ("REDIS_AUTH", "<hidden>", "environment"),
        ("ADMIN_TOKEN_FILE", &*file.display().to_string(), "environment"),
    ] {
        let setting = setting(&config, name);
        assert_eq!(
            (&setting["value"], &setting["source"]),
            (&value.into(), &source.into()),
            "{name}"
        );
    }
    let token = setting(&config, "ADMIN_TOKEN");
    let expected = serde_json::json!({"name": "ADMIN_TOKEN", "value": null, "source": "file"});
    assert_eq!(token, &expected);
    assert_has(
        &config["warnings"].to_string(),
        &["MEMCACHE_TLS has no effect", "REDIS_URI is not a setting; did you mean REDIS_URL?"],
    );
    let text = tollgate_with_env(&["config"], &variables);
    assert!(text.stdout.contains("\nGRPC_PORT "), "{text:?}");
    assert!(!format!("{ran:?}{text:?}").contains("s3cret"), "{ran:?} {text:?}");

    // What `serve` would not start with is shown, with the reason.
    let invalid = tollgate_with_env(&["config"], &[("REDIS_URL", "one:1,two:1")]);
    invalid.assert_failed(78, &["REDIS_TYPE"]);
    invalid.assert_printed(78, &["GRPC_PORT"]);
}

#[tokio::test]
async fn port_in_use_names_the_setting_and_a_tollgate_that_drains() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("DRAIN_PERIOD", "60s").start();
    let start = |grpc: u16, admin: u16| {
        TestServer::with_rules(&limit_of(1))
            .with_env("GRPC_PORT", &grpc.to_string())
            .with_env("DEBUG_PORT", &admin.to_string())
            .start_and_fail()
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let other = taken.local_addr().expect("its address").port();
    let grpc = server.grpc.port();
    let admin = server.admin.port();
    let fails = |grpc: u16, admin: u16, expected: &str| {
        let texts = ["GRPC_PORT", "Address already in use", expected];
        start(grpc, admin).assert_failed(1, &texts);
    };
    fails(grpc, admin, "a Tollgate is running with this DEBUG_PORT");
    // It accepts the connection, and never answers.
    fails(other, other, "another process holds it");
    server.signal("TERM");
    eventually("it drains", async || http::get(server.admin, "/ready").body.contains("draining"))
        .await;
    fails(grpc, admin, "a Tollgate that drains");
}
