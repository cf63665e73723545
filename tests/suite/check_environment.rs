//! `tollgate check --environment`: what a deployment of envoyproxy/ratelimit means to Tollgate.

use std::fs;

use tempfile::TempDir;

use crate::support::{assert_has, limit_of, tollgate_with_env, tollgate_with_stdin};

/// The environment of a pod, with a folder of rules below `root`.
fn environment(root: &str) -> String {
    format!(
        "PATH=/bin
RUNTIME_ROOT={root}
RUNTIME_SUBDIRECTORY=/ratelimit
RUNTIME_WATCH_ROOT=false
REDIS_SOCKET_TYPE=tcp
REDIS_URL=redis://:s3cret@redis:6379
REDIS_USE_TLS=true
REDIS_POOL_SIZE=20
XDS_CLIENT_BACKOFF_JITTER=true
XDS_CLIENT_BACKOFF_MAX_INTERVAL=60s
STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true
HOSTNAME=pod-1
"
    )
}

#[test]
fn each_variable_is_the_same_different_or_ignored() {
    let root = TempDir::new().expect("a temporary directory");
    let folder = root.path().join("ratelimit/config");
    fs::create_dir_all(&folder).expect("it is writable");
    fs::write(folder.join("a.yaml"), limit_of(1)).expect("it is writable");
    let path = root.path().to_str().expect("a plain name");
    let ran = tollgate_with_stdin(&["check", "--environment", "-"], &environment(path));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let verdict = |name: &str| {
        let mut lines = ran.stdout.lines();
        let line = lines.find(|line| line.split_whitespace().nth(1) == Some(name));
        line.unwrap_or_else(|| panic!("no {name}: {}", ran.stdout))
    };
    for (name, expected) in [
        ("RUNTIME_ROOT", "same"),
        ("RUNTIME_WATCH_ROOT", "same"),
        ("REDIS_URL", "same"),
        ("XDS_CLIENT_BACKOFF_JITTER", "same"),
        ("REDIS_SOCKET_TYPE", "different"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "different"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "different"),
        ("REDIS_POOL_SIZE", "ignored"),
        ("REDIS_USE_TLS", "ignored"),
    ] {
        let line = verdict(name);
        assert!(line.starts_with(expected), "{line}");
        let has_note = line.split_whitespace().count() > 2;
        assert_eq!(has_note, expected != "same", "{line}");
    }
    assert!(verdict("REDIS_USE_TLS").ends_with("is not a setting; did you mean REDIS_TLS?"));
    assert!(verdict("REDIS_POOL_SIZE").contains("one connection per worker"));
    for unexpected in ["s3cret", "HOSTNAME", "PATH ", "ROLE", "CLUSTER"] {
        assert!(!ran.stdout.contains(unexpected), "{unexpected}: {}", ran.stdout);
    }
    // Below the root, as Go joins paths.
    let file = format!("{path}/ratelimit/config/a.yaml");
    for expected in [
        &*format!("rules in {path}/ratelimit/config: 1 file\n  {file}\n"),
        "commands that the user of Redis must be allowed",
        "PING",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}: {}", ran.stdout);
    }
}

#[test]
fn commands_are_those_of_the_deployment() {
    for (redis, expected, other) in [
        ("REDIS_TYPE=cluster\nREDIS_URL=127.0.0.1:7000", "CLUSTER SLOTS", "ROLE"),
        ("REDIS_TYPE=SENTINEL\nREDIS_URL=m,127.0.0.1:26379", "ROLE", "CLUSTER SLOTS"),
        ("BACKEND_TYPE=memory", "store: memory", "commands that"),
    ] {
        let ran = tollgate_with_stdin(&["check", "--environment", "-"], redis);
        ran.assert_printed(0, &[expected]);
        assert!(!ran.stdout.contains(other), "{redis}: {}", ran.stdout);
    }
}

#[test]
fn invalid_settings_are_all_named_without_their_values() {
    let variables = "USE_STATSD=maybe\nPORT=99999\nBACKEND_TYPE=memcache\nADMIN_TOKEN=s3cret\nREDIS_URL=redis:6379";
    let ran = tollgate_with_stdin(&["check", "--environment", "-"], variables);
    assert_eq!(ran.code, Some(78));
    let expected = [
        "invalid  BACKEND_TYPE  memcached cannot count exactly",
        "invalid  PORT ",
        "invalid  USE_STATSD    write true or false",
    ];
    assert_has(&ran.stdout, &expected);
    assert!(!ran.stdout.contains("maybe") && !ran.stdout.contains("s3cret"));
    assert!(ran.stderr.contains("3 settings invalid: serve would not start"));
    // Of settings that contradict each other.
    let variables = "REDIS_URL=one:1,two:1";
    let ran = tollgate_with_stdin(&["check", "--environment", "-"], variables);
    assert_eq!(ran.code, Some(78));
    assert!(ran.stdout.contains("invalid  together"), "{}", ran.stdout);
}

#[test]
fn the_environment_of_the_process_or_a_file_is_read() {
    let own = tollgate_with_env(&["check", "--environment"], &[("LOG_LEVEL", "info")]);
    assert!(own.stdout.contains("LOG_LEVEL"), "{own:?}");
    let folder = TempDir::new().expect("a temporary directory");
    let file = folder.path().join("old.env");
    fs::write(&file, "# a comment\nLOG_FORMAT=json\nEMPTY=\n").expect("it is writable");
    let file = file.to_str().expect("a plain name");
    let ran = tollgate_with_env(&["check", "--environment", file], &[("LOG_LEVEL", "info")]);
    assert!(ran.stdout.contains("LOG_FORMAT") && !ran.stdout.contains("LOG_LEVEL"), "{ran:?}");
    let missing = tollgate_with_env(&["check", "--environment", "/nowhere"], &[]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("read /nowhere"));
}
