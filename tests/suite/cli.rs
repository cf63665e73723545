//! What the command line says: the block at the start, help, exit codes, `check`, and where rules
//! are.

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{
    TestServer, assert_settings_rejected, http, limit_of, look_until, tollgate, tollgate_with_env,
    write,
};

/// A tree with something of every kind.
pub(crate) const TREE: &str = "\
domain: shop
descriptors:
  - key: user
    value: alice
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    value: /api/*
    rate_limit: {unit: second, requests_per_unit: 4}
  - key: tenant
    descriptors:
      - key: plan
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: internal
    rate_limit: {unlimited: true}
";

/// A directory with one rules file.
pub(crate) fn rules_in(directory: &TempDir, yaml: &str) -> String {
    write(&directory.path().join("rules.yaml"), yaml);
    directory.path().to_str().expect("temporary directories have plain names").to_owned()
}

#[test]
fn banner_curl_is_quoted_for_a_shell() {
    let rules = "domain: it's\ndescriptors:\n  - key: \"a'b\\\"c\"\n    value: $HOME\n    rate_limit: {unit: year, requests_per_unit: 1}\n";
    let server = TestServer::with_rules(rules).start();
    let (_, body) = printed_curl(server.announcement());
    assert_eq!(
        body,
        r#"{"domain":"it's","descriptors":[{"entries":[{"key":"a'b\"c","value":"$HOME"}]}]}"#
    );
    assert_eq!(server.json(&body).status, 200);
    assert_eq!(server.json(&body).status, 429);
}

#[test]
fn printed_urls_reach_a_server_on_all_addresses() {
    let server = TestServer::with_rules(&limit_of(3))
        .with_env("HOST", "0.0.0.0")
        .with_env("GRPC_HOST", "")
        .with_env("DEBUG_HOST", "0.0.0.0")
        .with_env("USE_PROMETHEUS", "true")
        .start();
    let prometheus = server.prometheus.expect("a Prometheus address");
    server.assert_announced(&format!("http://{prometheus}"));
    let console = format!("http://127.0.0.1:{}/", server.admin.port());
    server.assert_announced(&format!("  console  {console}\n"));
    server.assert_announced("/explain  (on 0.0.0.0)\n");
    let (address, body) = printed_curl(server.announcement());
    assert_eq!(address, format!("http://127.0.0.1:{}/json", server.http.port()));
    assert_eq!(http::post(([127, 0, 0, 1], server.http.port()).into(), "/json", &body).status, 200);
    // A host without a value is every address of both families.
    for host in ["127.0.0.1", "::1"] {
        TcpStream::connect((host, server.grpc.port())).expect(host);
    }
}

/// The address and the body of the printed curl, as a shell would read them.
fn printed_curl(announcement: &str) -> (String, String) {
    let line = announcement
        .lines()
        .find_map(|line| line.trim().strip_prefix("curl -d '"))
        .expect("there is a curl");
    let (body, address) = line.rsplit_once("' ").expect("the body is in quotes");
    (address.to_owned(), body.replace(r"'\''", "'"))
}

/// Whether a help text has an environment variable; of those that may be secret it has no value.
fn has_variable(help: &str, name: &str) -> bool {
    help.contains(&format!("[env: {name}=")) || help.contains(&format!("[env: {name}]"))
}

#[test]
fn every_flag_has_a_description_and_the_name_of_its_variable() {
    let help = tollgate(&["serve", "--help"]).stdout;
    let flags: Vec<&str> = help.split("      --").skip(1).collect();
    assert!(flags.len() > 40, "{help}");
    for text in flags {
        let name = text.split_whitespace().next().expect("there is a first word");
        let variable = name.to_uppercase().replace('-', "_");
        // Lines are broken to the terminal's width.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(has_variable(&text, &variable), "--{name} has another variable:\n{text}");
        let (_, description) = text.split_once('>').expect("every setting has a value");
        let description = description.trim_start_matches(']').trim_start();
        assert!(!description.starts_with('['), "--{name} says nothing:\n{text}");
    }
}

#[test]
fn completions_and_manual_pages_have_every_subcommand() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = tollgate(&["completions", shell]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for name in ["check", "simulate", "--deny-warnings"] {
            let name = name.trim_start_matches("--");
            assert!(ran.stdout.contains(name), "{shell}: {name}");
        }
    }
    let page = tollgate(&["man"]).stdout;
    assert!(page.contains("tollgate\\-check(1)"), "{page}");
    let page = tollgate(&["man", "check"]).stdout;
    let head = page.lines().find(|line| line.starts_with(".TH"));
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(".TH tollgate-check 1  \"tollgate-check {version}\" ");
    assert_eq!(head, Some(&*expected));
    assert!(page.contains("deny\\-warnings"), "{page}");
    assert_eq!(tollgate(&["man", "nothing"]).code, Some(64));
}

#[test]
fn settings_that_cannot_be_served_with_end_with_78_and_say_what_to_write() {
    assert_settings_rejected(
        || TestServer::with_rules(&limit_of(1)),
        "
ADMIN_TOKEN= x => ADMIN_TOKEN begins or ends with a blank, which no request can send; remove it
ADMIN_HOSTS=a.example,https://b.example => `https://b.example` is no host name; write names without scheme, port or wildcard
PORT=http => http
GRPC_PORT=70000 => 70000
WORKERS=0 => workers
LOG_LEVEL=loud => trace, debug, info, warn, error
LOG_FORMAT=xml => text or json
DRAIN_PERIOD=5 => 10s
SHADOW_MODE=yes => true or false
NEAR_LIMIT_RATIO=most => most
PROMETHEUS_PATH=metrics => PROMETHEUS_PATH
PROMETHEUS_PATH=/:x => write a path that begins with / and has letters, digits and /-._~ only, such as /metrics
PROMETHEUS_PATH=/*x => such as /metrics
PROMETHEUS_PATH=/{x => such as /metrics
PROMETHEUS_PATH=/{x} => such as /metrics
PROMETHEUS_PATH=/a b? => such as /metrics
CACHE_KEY_FORMAT=escaped => write one of reference, safe
BACKEND_TYPE=memcache => memcached cannot count exactly and is not supported; write redis, or memory
BACKEND_TYPE=etcd => Invalid setting for BackendType: etcd
REDIS_URL=redis:port => REDIS_URL has a port that is not from 1 to 65535; expected host:port
REDIS_SOCKET_TYPE=udp => write tcp or unix
REDIS_TIMEOUT=10 => 10s
STORE_TIMEOUT=0s => write a time from 1us to 60s
GRPC_SERVER_USE_TLS=true => GRPC_SERVER_TLS_CERT is not set; set it to the path of a PEM file
USE_STATSD=true; USE_PROMETHEUS=true => unable to use more than one stats sink at the same time
USE_DOG_STATSD=true; USE_PROMETHEUS=true => unable to use more than one stats sink at the same time
REFUSALS_LOG_SAMPLE_RATE=2 => REFUSALS_LOG_SAMPLE_RATE
REFUSALS_LOG_SAMPLE_RATE=all => REFUSALS_LOG_SAMPLE_RATE
REFUSALS_LOG_LINES_PER_SECOND_MAX=0 => REFUSALS_LOG_LINES_PER_SECOND_MAX
ADMIN_REDACT=hash => no values are shown",
    );
}

/// Valid settings with `s3cret` in them. Nothing listens there, which is logged.
const WITH_CREDENTIALS: &str = "
REDIS_URL=redis://:s3cret@127.0.0.1:1
REDIS_URL=redis://user:s3cret@127.0.0.1:1/3
REDIS_URL=127.0.0.1:1; REDIS_AUTH=s3cret
REDIS_URL=127.0.0.1:1; REDIS_SENTINEL_AUTH=s3cret
REDIS_URL=127.0.0.1:1; REDIS_PERSECOND_URL=redis://:s3cret@redis:6379
REDIS_URL=127.0.0.1:1; REDIS_PERSECOND=true; REDIS_PERSECOND_URL=redis://:s3cret@127.0.0.1:1
REDIS_URL=127.0.0.1:1; REDIS_PERSECOND=true; REDIS_PERSECOND_URL=127.0.0.1:1; REDIS_PERSECOND_AUTH=s3cret
REDIS_TYPE=cluster; REDIS_URL=redis://:s3cret@127.0.0.1:1,redis://:s3cret@127.0.0.1:2
REDIS_TYPE=sentinel; REDIS_URL=m,redis://:s3cret@127.0.0.1:1; REDIS_AUTH=s3cret; REDIS_SENTINEL_AUTH=s3cret
";

#[test]
fn credentials_are_never_printed() {
    for line in WITH_CREDENTIALS.trim().lines() {
        let variables = line.split("; ").filter_map(|variable| variable.split_once('='));
        let variables: Vec<_> = variables.collect();
        let server = TestServer::with_rules(&limit_of(1))
            .with_env("LOG_LEVEL", "trace")
            .with_envs(&variables)
            .start();
        let faults = ["Redis unreachable", "Redis topology discovery failed"];
        look_until("the log says that the server is unreachable", || {
            faults.iter().any(|text| server.log().contains(text))
        });
        let help = tollgate_with_env(&["--help"], &variables);
        assert_eq!(help.code, Some(0), "{line}: {help:?}");
        for printed in [server.announcement(), &server.log(), &help.stdout, &help.stderr] {
            assert!(!printed.contains("s3cret"), "{line}: {printed}");
        }
    }
    let variables = [("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "s3cret"), ("REDIS_TLS", "maybe")];
    let invalid = tollgate_with_env(&["serve"], &variables);
    assert!(invalid.code == Some(78) && !invalid.stderr.contains("s3cret"), "{invalid:?}");
}

#[test]
fn json_log_has_the_keys_of_the_reference() {
    // The JSON log has no banner to read a port from, so this starts on a port that is taken.
    let taken = TestServer::with_rules(&limit_of(1)).start();
    let port = taken.grpc.port().to_string();
    let ran = TestServer::with_rules(&limit_of(1))
        .with_env("LOG_FORMAT", "json")
        .with_env("BACKEND_TYPE", "memory")
        .with_env("REDIS_URI", "redis:6379")
        .with_env("GRPC_PORT", &port);
    let ran = ran.start_and_fail();
    let line = ran.stderr.lines().next().expect("there is a line");
    let line: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
    assert_eq!(line["level"], "warning", "as logrus names it");
    assert_eq!(line["@message"], "REDIS_URI is not a setting; did you mean REDIS_URL?");
    let time = line["@timestamp"].as_str();
    assert!(time.is_some_and(|time| time.ends_with('Z')), "{line}");
}

#[test]
fn check_of_good_rules_ends_with_0() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, TREE);
    for arguments in
        [&["check", &path][..], &["check", "-config_dir", &path], &["check", "--config-dir", &path]]
    {
        let ran = tollgate_with_env(arguments, &[("CACHE_KEY_FORMAT", "safe")]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.stdout, format!("{path}: ok, 4 limits in 1 domain of 1 file\n"));
    }
}

#[test]
fn check_notes_the_longest_queue_once_per_file() {
    let directory = TempDir::new().expect("a temporary directory");
    let queue = |key: &str, more: &str| {
        format!(
            "  - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}, metadata: {{tollgate: {{{more}}}}}}}\n"
        )
    };
    let buckets = "{tollgate: {defaults: {algorithm: leaky_bucket}}}";
    let queues = [
        queue("a", "on_limit: queue, max_wait: 20ms"),
        queue("b", "on_limit: queue, max_wait: 3s"),
        queue("c", "on_limit: queue, max_wait: 20ms"),
        queue("d", "burst: 2"),
    ];
    let path = rules_in(
        &directory,
        &format!("domain: one\nmetadata: {buckets}\ndescriptors:\n{}", queues.concat()),
    );
    write(
        &directory.path().join("two.yaml"),
        &format!("domain: two\nmetadata: {buckets}\ndescriptors:\n{}", queue("d", "burst: 2")),
    );
    let ran = tollgate(&["check", &path]);
    let expected = format!(
        "\
note: rules.yaml: requests are queued for up to 3 s, but Envoy waits only 20 ms for an answer by default
  --> {path}/rules.yaml:5:5 (rule one.b)
   |
 5 | {}   |     ^
   = give Envoy's rate limit filter a `timeout` of at least 3.75s

{path}: ok, 5 limits in 2 domains of 2 files
",
        queues[1]
    );
    assert_eq!((ran.code, ran.stdout), (Some(0), expected));
}

#[test]
fn check_shows_every_problem_with_place_caret_and_hint() {
    let directory = TempDir::new().expect("a temporary directory");
    let one = "domain: one\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: minute\n      request_per_unit: 3\n";
    let path = rules_in(&directory, one);
    write(
        &directory.path().join("two.yaml"),
        "domain: two\ndescriptors:\n  - key: k\n    rate_limit: {unit: hours, requests_per_unit: 3}\n",
    );
    let ran = tollgate(&["check", &path]);
    assert_eq!(ran.code, Some(78));
    let expected = format!(
        "tollgate: 2 problems in {path}

rules.yaml: config error, unknown key 'request_per_unit'
  --> {path}/rules.yaml:6:7
   |
 6 |       request_per_unit: 3
   |       ^^^^^^^^^^^^^^^^
   = did you mean `requests_per_unit`?

two.yaml: invalid rate limit unit 'hours'
  --> {path}/two.yaml:4:24 (domain two > descriptors[0].rate_limit)
   |
 4 |     rate_limit: {{unit: hours, requests_per_unit: 3}}
   |                        ^^^^^
   = write one of second, minute, hour, day, week, month, year
"
    );
    assert_eq!(ran.stderr, expected);
}

#[test]
fn check_reports_a_file_that_is_not_utf8_among_others() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, "domain: one\ndescriptor: []\n");
    std::fs::write(
        directory.path().join("broken.yaml"),
        b"domain: d\ndescriptors:\n  - key: caf\xe9\n",
    )
    .expect("a file can be written");
    let ran = tollgate(&["check", &path]);
    let expected = format!(
        "\
tollgate: 2 problems in {path}

broken.yaml: error loading config file: yaml: line 3: this is not UTF-8 text
  --> {path}/broken.yaml:3:13
   |
 3 |   - key: caf\u{fffd}
   |             ^
   = rules are YAML; save the file as UTF-8

rules.yaml: config error, unknown key 'descriptor'
"
    );
    assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
}

#[test]
fn every_subcommand_reads_rules_by_runtime_settings() {
    let root = TempDir::new().expect("a temporary directory");
    write(&root.path().join("app/limits/rules.yaml"), TREE);
    write(&root.path().join("app/limits/..data/old.yaml"), "not rules");
    let path = root.path().join("app/limits").display().to_string();
    let root = root.path().display().to_string();
    let variables = [
        ("RUNTIME_ROOT", &*root),
        ("RUNTIME_SUBDIRECTORY", "app"),
        ("RUNTIME_APPDIRECTORY", "limits"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("CACHE_KEY_FORMAT", "safe"),
    ];
    let check = tollgate_with_env(&["check"], &variables);
    let ok = format!("{path}: ok, 4 limits in 1 domain of 1 file\n");
    assert_eq!((check.code, check.stdout), (Some(0), ok));
    let explain = tollgate_with_env(&["explain", "shop", "user=alice"], &variables);
    explain.assert_printed(0, &[&format!("{path}/rules.yaml:3")]);
    let arguments = ["simulate", "shop", "tenant=a, b", "plan=gold"];
    let simulate = tollgate_with_env(&arguments, &variables);
    simulate.assert_printed(0, &[&format!("shop.tenant.plan at {path}/rules.yaml:")]);
    // A directory on the command line wins, and a control plane has no files.
    let directory = TempDir::new().expect("a temporary directory");
    let other = rules_in(&directory, &limit_of(1));
    let named = tollgate_with_env(&["explain", &other, "d", "k="], &variables);
    assert_eq!(named.code, Some(0), "{named:?}");
    for arguments in [&["check"][..], &["explain", "shop", "user=alice"]] {
        let ran = tollgate_with_env(arguments, &[("CONFIG_TYPE", "GRPC_XDS_SOTW")]);
        ran.assert_failed(78, &["CONFIG_TYPE is GRPC_XDS_SOTW, so the rules are not in files"]);
    }
}

/// Arguments that name no directory, and what the error must contain.
const NO_DIRECTORY: &str = "
explian => read rules from explian: No such file or directory (os error 2); did you mean `tollgate explain`?
serve chekc => did you mean `tollgate check`?
candidate => this was removed: `tollgate replay --compare`
limits => name a directory of rules files, or a subcommand: serve, config, healthcheck, check, trial
/no/such/rules => read rules from /no/such/rules: No such file or directory
check /no/such/directory => /no/such/directory
/dev/null => read rules from /dev/null: it is not a directory
explian shop user=42 => did you mean `tollgate explain`?
";

#[test]
fn a_mistyped_subcommand_does_not_serve() {
    for line in NO_DIRECTORY.trim().lines() {
        let (arguments, expected) = line.split_once(" => ").expect("arguments => an error");
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let is_command = ["did you mean", "was removed"].iter().any(|text| expected.contains(text));
        let code = if is_command { 64 } else { 78 };
        // Should it serve all the same, then on ports that no other test uses.
        let ports = ["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0"));
        let ran = tollgate_with_env(&arguments, &ports);
        assert_eq!(ran.stdout, "", "{line}: {ran:?}");
        ran.assert_failed(code, &[expected]);
    }
}

/// How an image is started whose command was that of envoyproxy/ratelimit, and what is ignored.
const STARTS: &str = r#"
exec "$0" /bin/ratelimit => /bin/ratelimit
exec "$0" /usr/local/bin/ratelimit -config /data/config.yaml => /usr/local/bin/ratelimit -config /data/config.yaml
exec -a /bin/ratelimit "$0" -config /data/ratelimit/config/config.yaml => -config /data/ratelimit/config/config.yaml
exec -a ratelimit "$0" /no/such/rules => /no/such/rules
"#;

#[test]
fn arguments_that_the_reference_ignores_do_not_end_the_start() {
    let root = TempDir::new().expect("a temporary directory");
    fs::create_dir(root.path().join("config")).expect("it is writable");
    fs::write(root.path().join("config/a.yaml"), limit_of(2)).expect("it is writable");
    for line in STARTS.trim().lines() {
        let (start, ignored) = line.split_once(" => ").expect("start => ignored");
        let server =
            TestServer::with_runtime_root(root.path()).run_by(&["bash", "-c", start]).start();
        assert_eq!(server.get("/healthcheck").status, 200, "{start}");
        let rules = server.admin("/rlconfig");
        assert!(rules.contains("requests_per_unit=2"), "{start}: {rules}");
        server.assert_logged_once("ignored arguments");
        server.assert_logged(&format!("ignored arguments: {ignored};"));
    }
}

#[test]
fn a_process_named_ratelimit_has_all_subcommands() {
    let explain = tollgate(&["/bin/ratelimit", "explain", "--help"]);
    assert_eq!(explain.stdout, tollgate(&["explain", "--help"]).stdout);
    assert_eq!(tollgate(&["/bin/ratelimit", "--version"]).code, Some(0));
}

#[test]
fn a_closed_stdout_does_not_panic() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = rules_in(&directory, TREE);
    for arguments in [&["check", &path][..], &["explain", &path, "shop", "user=alice"], &["--help"]]
    {
        let (_, closed) = std::io::pipe().expect("a pipe can be made");
        let ran = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(arguments)
            .env_clear()
            .stdout(closed)
            .output()
            .expect("cargo has built it");
        assert!(ran.status.success(), "{arguments:?}: {ran:?}");
    }
}
