//! Settings, one by one: each is on the page of compatibility, each that is honoured does something
//! that is seen from outside the process, and each that is not is told.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;

use tempfile::TempDir;

use crate::support::cluster::ClusterProcess;
use crate::support::fault::PATIENT;
use crate::support::http::Reply;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::{self, SentinelProcess};
use crate::support::{
    Builder, TestServer, limit_of, look_until, read_sample, read_test_file, tollgate, write,
};

/// The names of all settings of the reference, one a line.
const OF_THE_REFERENCE: &str = include_str!("settings_of_the_reference.txt");

/// What may be without an effect, by how the name begins: the reference does nothing with it, or it
/// has nothing to do here.
const MAY_BE_WITHOUT_EFFECT: [&str; 12] = [
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "GOSTATS_",
    "MEMCACHE_",
    "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
    "REDIS_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_PIPELINE_",
    "REDIS_PERSECOND_POOL_",
    "REDIS_PIPELINE_",
    "REDIS_POOL_",
    "REDIS_STARTUP_INITIAL_INTERVAL",
    "REDIS_STARTUP_MAX_INTERVAL",
];

/// A row of the page.
#[derive(Debug)]
struct Row {
    names: Vec<String>,
    here: String,
    asserted_by: String,
}

/// A setting that shows in responses; bodies of calls, one after the other; and what shows in the
/// response to the last one.
type Effect =
    ((&'static str, &'static str), &'static [&'static str], fn(&TestServer, &Reply) -> bool);

fn rows() -> Vec<Row> {
    let page = read_sample("docs/compatibility.md");
    let settings = page
        .split("\n## Settings\n")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the page has settings");
    // There are other tables between them.
    let tables = settings.split("\n\n").filter(|part| part.starts_with("| setting |"));
    let lines = tables.flat_map(|table| table.lines().skip(2));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", names, _, here, _, asserted_by, ""] = cells[..] else {
            panic!("five columns, not {line}")
        };
        let names = names.split(", ").map(str::to_owned).collect();
        Row { names, here: here.to_owned(), asserted_by: asserted_by.to_owned() }
    };
    lines.map(row).collect()
}

#[test]
fn every_setting_has_one_row_with_a_test_on_the_page() {
    let rows = rows();
    let mut seen = BTreeMap::new();
    for name in rows.iter().flat_map(|row| &row.names) {
        *seen.entry(name.as_str()).or_insert(0) += 1;
    }
    assert!(seen.values().all(|count| *count == 1), "more than one row: {seen:?}");
    assert_eq!(OF_THE_REFERENCE.lines().count(), 121);
    let missing: Vec<&str> =
        OF_THE_REFERENCE.lines().filter(|name| !seen.contains_key(name)).collect();
    assert!(missing.is_empty(), "no row: {missing:?}");

    for row in &rows {
        match &*row.here {
            "same" | "more" | "differs" | "refused" => {
                let (file, case) = row
                    .asserted_by
                    .split_once(": ")
                    .unwrap_or_else(|| panic!("`file: test`, not {row:?}"));
                let text = read_test_file(file);
                assert!(text.contains(&format!("fn {case}(")), "{file} has no {case}");
                // Hosts and ports of a test's server are set where it is built.
                let is_named = |name: &String| {
                    text.contains(name.trim_end_matches('*'))
                        || ["PORT", "HOST"].iter().any(|end| name.ends_with(end))
                };
                assert!(row.names.iter().any(is_named), "{file} does not say {:?}", row.names);
            }
            "no effect" => {
                let may = |name: &String| {
                    MAY_BE_WITHOUT_EFFECT.iter().any(|begin| name.starts_with(begin))
                };
                assert!(row.names.iter().all(may), "{:?} ought to have an effect", row.names);
            }
            other => panic!("`{other}` is none of the words of the page: {row:?}"),
        }
    }
}

#[test]
fn the_page_has_settings_of_the_help() {
    let help = tollgate(&["--help"]).stdout;
    let in_help: Vec<&str> =
        help.split("[env: ").skip(1).filter_map(|rest| rest.split(['=', ']']).next()).collect();
    let rows = rows();
    for row in rows.iter().filter(|row| ["same", "more", "differs"].contains(&&*row.here)) {
        // Those of a family are not listed one by one, and what is honoured by passing it over has
        // no flag.
        let is_listed = |name: &&String| {
            name.ends_with('*')
                || **name == "GRPC_SERVER_TLS_CA_CERT"
                || in_help.contains(&name.as_str())
        };
        assert!(row.names.iter().all(|name| is_listed(&name)), "not in --help: {row:?}");
    }
}

#[test]
fn settings_without_effect_are_warned_about() {
    let rows = rows();
    let without: Vec<&String> =
        rows.iter().filter(|row| row.here == "no effect").flat_map(|row| &row.names).collect();
    assert!(without.len() > 20, "{without:?}");
    let redis = RedisProcess::start();
    let set: Vec<(&str, &str)> = without.iter().map(|name| (name.as_str(), "1")).collect();
    let server = TestServer::with_rules(&limit_of(1))
        .with_envs(&set)
        .with_env("REDIS_URL", &redis.url())
        .with_env("REDIS_PERSECOND", "true")
        .with_env("REDIS_PERSECOND_URL", &redis.url())
        .start();
    for name in without {
        server.assert_logged_once(&format!("{name} has no effect: "));
    }
}

/// Templates have nothing to fill in for most of what they name.
#[test]
fn empty_settings_are_unset() {
    // Where its rules are, and its ports, the test has to say.
    let own = [
        "RUNTIME_ROOT",
        "PORT",
        "GRPC_PORT",
        "DEBUG_PORT",
        "HOST",
        "GRPC_HOST",
        "DEBUG_HOST",
        "LOG_LEVEL",
        "PROMETHEUS_ADDR",
    ];
    let names = OF_THE_REFERENCE.lines().filter(|name| !own.contains(name));
    let empty: Vec<(&str, &str)> = names.map(|name| (name, "")).collect();
    let server = TestServer::with_rules(&limit_of(1)).with_envs(&empty).start();
    assert_eq!(server.get("/healthcheck").status, 200);
    server.assert_announced("store    memory");
    server.assert_not_logged("no effect");
}

const TWO: &str = "
domain: d
descriptors:
  - {key: tight, metadata: {owner: ann}, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: loose, metadata: {owner: bob}, rate_limit: {unit: year, requests_per_unit: 10}}
";
pub(crate) const TIGHT: &str =
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"tight","value":"v"}]}]}"#;
const LOOSE: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"loose","value":"v"}]}]}"#;
const BOTH: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"tight","value":"v"}]},{"entries":[{"key":"loose","value":"v"}]}]}"#;

fn has_header(reply: &Reply, name: &str) -> bool {
    reply.json()["responseHeadersToAdd"]
        .as_array()
        .is_some_and(|headers| headers.iter().any(|header| header["key"] == name))
}

fn near(server: &TestServer) -> bool {
    server.metric(r#"ratelimit_service_rate_limit_near_limit{domain="d",key1="loose"}"#)
        == Some(2.0)
}

/// Every one of these is as it says with the setting, and is not without.
const EFFECTS: &[Effect] = &[
    (("SHADOW_MODE", "true"), &[TIGHT, TIGHT], |_, reply| reply.status == 200),
    (("QUOTA_MODE", "true"), &[BOTH, BOTH], |_, reply| reply.status == 200),
    (
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
        &[BOTH, BOTH, BOTH, LOOSE],
        |_, reply| reply.json()["statuses"][0]["limitRemaining"] == 8,
    ),
    (("NEAR_LIMIT_RATIO", "0.1"), &[LOOSE, LOOSE, LOOSE], |server, _| near(server)),
    (("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), &[TIGHT], |_, reply| {
        has_header(reply, "RateLimit-Limit")
    }),
    (("RESPONSE_DYNAMIC_METADATA", "true"), &[LOOSE], |_, reply| {
        reply.json()["dynamicMetadata"]["metadata"]["owner"] == "bob"
    }),
    (("IETF_RATELIMIT_HEADERS_ENABLED", "true"), &[TIGHT], |_, reply| {
        has_header(reply, "RateLimit-Policy")
    }),
    (("RETRY_AFTER_HEADER_ENABLED", "true"), &[TIGHT, TIGHT], |_, reply| {
        has_header(reply, "Retry-After")
    }),
];

#[test]
fn settings_change_responses() {
    for (setting, calls, shows) in EFFECTS {
        for variables in [&[*setting][..], &[]] {
            let server = TestServer::with_rules(TWO).with_envs(variables).start();
            let replies: Vec<Reply> = calls.iter().map(|body| server.json(body)).collect();
            let last = replies.last().expect("there is a call");
            let is_set = !variables.is_empty();
            assert_eq!(shows(&server, last), is_set, "{setting:?} {variables:?}: {last:?}");
        }
    }
}

#[tokio::test]
async fn rules_beside_the_directory_are_reloaded_and_have_one_name_each() {
    let root = TempDir::new().expect("a temporary directory can be made");
    write(&root.path().join("config/a.yaml"), &limit_of(2));
    let start = |watch_root| {
        let server = TestServer::with_runtime_root(root.path());
        server.with_env("RUNTIME_WATCH_ROOT", watch_root).start()
    };
    let all = start("true");
    let folder = start("false");
    let other = limit_of(2).replacen("domain: d\n", "domain: d2\n", 1);
    write(&root.path().join("config.b.yaml"), &other);
    all.metric_becomes("tollgate_rule_domains", 2.0).await;
    write(&root.path().join("config.a.yaml"), &other);
    all.metric_becomes("tollgate_rules_rejected", 1.0).await;
    all.assert_logged("are both config.a.yaml");
    assert_eq!(folder.metric("tollgate_rule_domains"), Some(1.0));
    assert_eq!(folder.metric("tollgate_rules_rejected"), Some(0.0));
}

pub(crate) const K: &str =
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;

/// A service whose calls on [`K`] are counted on that Redis, or not at all: it denies what it
/// cannot count. A busy machine does not look like a slow Redis.
pub(crate) fn counting(redis: &RedisProcess) -> Builder {
    let address = redis.address();
    TestServer::with_rules(&limit_of(1_000))
        .with_env("REDIS_URL", &address)
        .with_env("ON_STORE_ERROR", "deny")
        .with_envs(&[PATIENT])
}

/// Ends every connection to a Redis but the test's, and waits until calls are counted on a new one.
pub(crate) fn counts_on_a_new_connection(server: &TestServer, redis: &RedisProcess) {
    let made = || server.metric("ratelimit_redis_pool_cx_total").unwrap_or_default();
    let before = made();
    redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    // Connections for other purposes count too: that of calls is there once a call opens none.
    look_until("calls are counted on a new connection", || {
        let known = made();
        known > before && server.json(K).status == 200 && made() <= known
    });
}

#[test]
fn passwords_are_reloaded_without_a_restart() {
    let redis = RedisProcess::builder().with_user("user app on >1st ~* +@all").start();
    let home = TempDir::new().expect("a temporary directory can be made");
    let path = home.path().join("password");
    write(&path, "app:1st\n");
    let server = counting(&redis).with_env("REDIS_AUTH_FILE", &path.display().to_string()).start();
    look_until("it is authenticated", || server.json(K).status == 200);
    let (rejected, loads) = (
        "tollgate_redis_secrets_rejected",
        "tollgate_redis_secrets_loads_total{result=\"success\"}",
    );
    assert_eq!((server.metric(rejected), server.metric(loads)), (Some(0.0), Some(0.0)));

    write(&path, "app:2nd\nand more\n");
    look_until("an invalid credential is rejected", || server.metric(rejected) == Some(1.0));
    counts_on_a_new_connection(&server, &redis);
    let said = format!("REDIS_AUTH_FILE: {} has more than one line", path.display());
    server.assert_logged_once(&said);

    // Redis lets those stay whose password is another by now.
    redis.command::<()>(&["ACL", "SETUSER", "app", "resetpass", ">2nd"]);
    assert_eq!(server.json(K).status, 200);
    write(&path, "app:2nd\n");
    look_until("it is accepted", || server.metric(rejected) == Some(0.0));
    server.assert_logged_once(" INFO credentials for Redis valid again");
    counts_on_a_new_connection(&server, &redis);
    look_until("the load is counted", || server.metric(loads) == Some(1.0));
    server.assert_not_logged("2nd");
}

#[test]
fn sighup_reloads_credentials() {
    let redis = RedisProcess::builder().with_user("user app on >1st ~* +@all").start();
    let home = TempDir::new().expect("a temporary directory can be made");
    let path = home.path().join("password");
    write(&path, "app:1st");
    let server = counting(&redis).with_env("REDIS_AUTH_FILE", &path.display().to_string()).start();
    redis.command::<()>(&["ACL", "SETUSER", "app", "resetpass", ">2nd"]);
    // As large and as old as before, and so nothing to look at.
    let file = fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    let written = file.metadata().and_then(|metadata| metadata.modified()).expect("it has a time");
    (&file)
        .write_all(b"app:2nd")
        .and_then(|()| file.set_modified(written))
        .expect("a file can be written");
    server.signal("HUP");
    counts_on_a_new_connection(&server, &redis);
}

const OF_A_SECOND: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: s, rate_limit: {unit: second, requests_per_unit: 1000}}
";
pub(crate) const S: &str =
    r#"{"domain":"d","descriptors":[{"entries":[{"key":"s","value":"v"}]}]}"#;
pub(crate) const K_AND_S: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]},{"entries":[{"key":"s","value":"v"}]}]}"#;

/// A service with rules of a year and of a second, which denies what it cannot count on Redis.
pub(crate) fn with_both_periods(settings: &[(&str, &str)]) -> Builder {
    let server = TestServer::with_rules(OF_A_SECOND).with_env("ON_STORE_ERROR", "deny");
    server.with_envs(settings)
}

/// Waits until it says so of its store.
pub(crate) fn wait_until_ready_says(server: &TestServer, text: &str) {
    look_until(&format!("/ready says: {text}"), || server.get("/ready").body.contains(text));
}

#[test]
fn limits_per_second_can_have_their_own_redis() {
    let main = RedisProcess::start();
    let second = RedisProcess::start();
    let (url, second_url) = (main.address(), second.url());
    let settings = [("REDIS_URL", url.as_str()), ("REDIS_PERSECOND_URL", &second_url)];
    let begins = |redis: &RedisProcess| -> Vec<String> {
        let keys: Vec<String> = redis.command(&["KEYS", "*"]);
        keys.into_iter().map(|key| key.chars().take("d_k_v".len()).collect()).collect()
    };
    let start =
        |second: &str| with_both_periods(&settings).with_env("REDIS_PERSECOND", second).start();
    let server = start("true");
    server.assert_announced(&url);
    server.assert_announced(&second_url);
    look_until("both are reached", || server.json(K_AND_S).status == 200);
    assert_eq!(begins(&main), ["d_k_v"]);
    let of_second = begins(&second);
    assert!(!of_second.is_empty() && of_second.iter().all(|key| key == "d_s_v"), "{of_second:?}");
    assert!(server.metric("ratelimit_redis_per_second_pool_cx_total") > Some(0.0));

    let before: usize = second.command(&["DBSIZE"]);
    let server = start("false");
    look_until("it is reached", || server.json(K_AND_S).status == 200);
    assert!(begins(&main).contains(&"d_s_v".to_owned()), "all are counted on the one");
    assert_eq!(second.command::<usize>(&["DBSIZE"]), before);
    server.assert_logged("REDIS_PERSECOND_URL has no effect without REDIS_PERSECOND=true");
}

#[test]
fn redis_type_cluster_counts_on_a_cluster() {
    let cluster = ClusterProcess::start();
    let single = RedisProcess::start();
    let nodes = cluster.url();
    let url = single.url();
    // Each in a slot of its own.
    let ask = |server: &TestServer, key: &str| {
        (0..30).all(|value| {
            let body = format!(r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]}}"#);
            server.json(&body).status == 200
        })
    };
    let server = with_both_periods(&[("REDIS_TYPE", "Cluster"), ("REDIS_URL", &nodes)]).start();
    look_until("every node is reached", || ask(&server, "k"));
    assert_eq!(cluster.keys("d_k_*").len(), 30);

    let second = [
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_TYPE", "CLUSTER"),
        ("REDIS_PERSECOND_URL", &nodes),
    ];
    let server = with_both_periods(&[&[("REDIS_URL", url.as_str())], &second[..]].concat()).start();
    look_until("every node is reached", || ask(&server, "s"));
    assert!(cluster.keys("d_s_*").len() >= 30 && single.command::<usize>(&["DBSIZE"]) == 0);

    // Of one node it is known that it is one of several only if that is said.
    let one = nodes.split(',').next().expect("there is one");
    let server = with_both_periods(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", one)]).start();
    look_until("every node is reached", || ask(&server, "k"));
}

#[test]
fn sentinels_have_their_own_credentials() {
    let deployment = SentinelProcess::with(sentinel::Options {
        server: RedisProcess::builder().with_password("of-servers"),
        sentinel_password: Some("of-sentinels"),
        ..sentinel::Options::default()
    });
    let single = RedisProcess::start();
    let home = TempDir::new().expect("a temporary directory can be made");
    let [of_servers, of_sentinels] = ["of-servers", "of-sentinels"].map(|password| {
        let path = home.path().join(password);
        write(&path, &format!("{password}\n"));
        path.display().to_string()
    });
    let sentinels = deployment.url();
    let url = single.url();
    let main = [("REDIS_TYPE", "sentinel"), ("REDIS_URL", sentinels.as_str())];
    let second = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_TYPE", "sentinel"),
        ("REDIS_PERSECOND_URL", sentinels.as_str()),
    ];
    let values = [["of-servers", "of-sentinels"], [&of_servers, &of_sentinels]];
    let main_names =
        [["REDIS_AUTH", "REDIS_SENTINEL_AUTH"], ["REDIS_AUTH_FILE", "REDIS_SENTINEL_AUTH_FILE"]];
    let second_names = [
        ["REDIS_PERSECOND_AUTH", "REDIS_PERSECOND_SENTINEL_AUTH"],
        ["REDIS_PERSECOND_AUTH_FILE", "REDIS_PERSECOND_SENTINEL_AUTH_FILE"],
    ];
    for (settings, names, body) in [(&main[..], main_names, K), (&second, second_names, S)] {
        for ([auth, sentinel_auth], [server, sentinel]) in names.into_iter().zip(values) {
            let service = with_both_periods(settings)
                .with_envs(&[(auth, server), (sentinel_auth, sentinel)])
                .start();
            look_until("the master is reached", || service.json(body).status == 200);
            assert!(deployment.master().command::<usize>(&["DBSIZE"]) > 0);
            deployment.master().command::<()>(&["FLUSHALL"]);
        }
    }
    // Credentials of the servers are not sent to sentinels, and the other way round.
    for (credentials, missing) in [
        (("REDIS_AUTH", "of-servers"), "REDIS_SENTINEL_AUTH"),
        (("REDIS_SENTINEL_AUTH", "of-sentinels"), "REDIS_AUTH"),
    ] {
        let server = with_both_periods(&[&main[..], &[credentials]].concat()).start();
        wait_until_ready_says(&server, &format!("requires a password (NOAUTH); set {missing}"));
        assert_eq!(server.json(K).status, 429, "{credentials:?}");
    }
    let other = sentinels.replace("mymaster", "other");
    let unknown = [
        ("REDIS_PERSECOND_URL", other.as_str()),
        ("REDIS_PERSECOND_SENTINEL_AUTH", "of-sentinels"),
    ];
    let server = with_both_periods(&[&second[..], &unknown].concat()).start();
    wait_until_ready_says(
        &server,
        "knows no master named other; check the first part of REDIS_PERSECOND_URL",
    );
}

const YEAR_S: i64 = 365 * 86_400;

#[test]
fn redis_url_and_key_settings_choose_where_hits_are_counted() {
    let redis = RedisProcess::start();
    let start = |variables: &[(&str, &str)]| {
        let server = TestServer::with_rules(&limit_of(5)).with_env("REDIS_URL", &redis.url());
        server.with_envs(variables).start()
    };
    let keys = || -> Vec<String> { redis.command(&["KEYS", "*"]) };
    let in_memory = start(&[("BACKEND_TYPE", "memory")]);
    assert_eq!((in_memory.json(K).status, keys()), (200, vec![]));

    // The only key after a call, and its time to live.
    let counted = |server: TestServer| -> (String, i64) {
        redis.command::<()>(&["FLUSHALL"]);
        assert_eq!(server.json(K).status, 200);
        let [key] = &keys()[..] else { panic!("one key, not {:?}", keys()) };
        let life = || redis.command::<i64>(&["TTL", key]);
        look_until("a lifetime", || life() != -1);
        (key.clone(), life())
    };
    let (key, secs) = counted(start(&[
        ("BACKEND_TYPE", "redis"),
        ("CACHE_KEY_PREFIX", "team:"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
    ]));
    assert!(key.starts_with("team:d_k_v_"), "{key}");
    assert!((YEAR_S - 60..=YEAR_S).contains(&secs), "no jitter: {secs}");
    let (key, secs) = counted(start(&[
        ("CACHE_KEY_FORMAT", "safe"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "100000000"),
    ]));
    assert!(key.starts_with("tg:d:k:v:"), "{key}");
    assert!(secs > YEAR_S, "a jitter of three years is more than a second: {secs}");
}

#[test]
fn memory_bytes_max_bounds_the_memory_store() {
    let start = |bytes: &str| {
        TestServer::with_rules(&limit_of(1)).with_env("MEMORY_BYTES_MAX", bytes).start()
    };
    let evicted = |server: &TestServer| {
        (0..2_000).for_each(|value| {
            server.json(&format!(r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k","value":"{value}"}}]}}]}}"#));
        });
        server.metric(r#"tollgate_memory_evicted_total{use="store"}"#)
    };
    assert!(evicted(&start("65536")).is_some_and(|evicted| evicted > 0.0));
    assert_eq!(evicted(&start("268435456")), Some(0.0));
}

/// A server that takes connections and says nothing: it is asked to let somebody in, and does not
/// answer.
#[test]
fn redis_timeout_bounds_connecting() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let address = silent.local_addr().expect("it is bound").to_string();
    let first = [("REDIS_URL", &*address), ("REDIS_TIMEOUT", "50ms")];
    let server = with_both_periods(&first).with_env("STORE_TIMEOUT", "60s").start();
    look_until("connecting times out", || server.json(K).status == 429);

    let redis = RedisProcess::start();
    let url = redis.url();
    let settings = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &address),
    ];
    let server = with_both_periods(&settings)
        .with_env("STORE_TIMEOUT", "60s")
        .with_env("REDIS_PERSECOND_TIMEOUT", "50ms")
        .start();
    look_until("nor to the second", || server.json(S).status == 429);
}
