//! FIFOs in the place of files that settings name. Opening one waits for its other end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{TestServer, limit_of, write};

const REJECTED: &str = "it is not a regular file";

fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("there is mkfifo").success());
}

fn fifo() -> (TempDir, PathBuf) {
    let home = TempDir::new().expect("a temporary directory can be made");
    let path = home.path().join("fifo");
    make_fifo(&path);
    (home, path)
}

#[test]
fn fifo_instead_of_a_file_is_an_error_at_the_start() {
    let (_home, fifo) = fifo();
    // The settings that are needed, those that name the FIFO, and the exit code.
    for (settings, files, code) in [
        ("", "ADMIN_TOKEN_FILE", 78),
        ("REDIS_URL=127.0.0.1:1", "REDIS_AUTH_FILE", 78),
        ("REDIS_URL=127.0.0.1:1 REDIS_TLS=true", "REDIS_TLS_CACERT", 78),
        ("GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY", 78),
    ] {
        let mut builder = TestServer::with_rules(&limit_of(1));
        for setting in settings.split_whitespace() {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            builder = builder.with_env(name, value);
        }
        for name in files.split(' ') {
            builder = builder.with_env(name, fifo.to_str().expect("a plain name"));
        }
        let ran = builder.start_and_fail();
        assert_eq!(ran.code, Some(code), "{files}: {ran:?}");
        assert!(ran.stderr.contains(REJECTED), "{files}: {ran:?}");
    }
}

#[test]
fn fifo_instead_of_an_optional_file_is_logged() {
    let (_home, fifo) = fifo();
    for name in ["TOLLGATE_OVERLAY", "PROMETHEUS_MAPPER_YAML", "TRIAL_ENFORCE_PERCENT_FILE"] {
        let server = TestServer::with_rules(&limit_of(1))
            .with_env("USE_PROMETHEUS", "true")
            .with_env("TRIAL_UPSTREAM", "127.0.0.1:1")
            .with_env(name, fifo.to_str().expect("a plain name"))
            .start();
        let log = server.log_with(REJECTED);
        let line = log.lines().find(|line| line.contains(REJECTED));
        assert!(line.expect("it is there").contains(name), "{log}");
    }
}

#[test]
fn fifo_does_not_stop_reloads() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let file = home.path().join("token");
    write(&file, "first");
    let server = TestServer::with_rules(&limit_of(1))
        .with_env("ADMIN_TOKEN_FILE", file.to_str().expect("a plain name"))
        .start();
    let fifo = home.path().join("fifo");
    make_fifo(&fifo);
    fs::rename(fifo, &file).expect("both are in one directory");
    server.log_with(REJECTED);
    write(&file, "second");
    server.log_with("admin token valid again");
}
