//! Every command of README, in order, on a machine of its own, so that each port is the real one.
//!
//! The commands run as they are pasted. What takes minutes, or needs a cluster, a registry or a
//! container engine, is a script of the same name, which checks what it can ([`STANDINS`]). A
//! command that is neither fails.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::e2e::system::deployments::machine::{Machine, on_its_own};
use crate::support::process::{Process, look_until};

/// Programs, and what runs instead. The charts and manifests are tested with the real programs by
/// `tests/helm`, `deploy/image/check.py` and the modules beside this one.
const STANDINS: [(&str, &str); 7] = [
    // It was built before.
    (
        "cargo",
        r#"case "$*" in
"run --profile quick-release") exec "$BUILT" ;;
"install --locked --path . --profile quick-release") ln -s "$BUILT" "$STANDINS/tollgate" ;;
*) echo "cargo $*: not expected" >&2; exit 1 ;;
esac"#,
    ),
    // The message is a request. Calls are tested with clients of their own.
    (
        "grpcurl",
        r#"test "$1 $2 $4" = "-plaintext -d 127.0.0.1:8081"
test "$5" = envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit
exec curl -sf -d "$3" 127.0.0.1:8080/json"#,
    ),
    (
        "ghz",
        r#"test "$1 $2 $4 $6 $8" = "--insecure -n --call -d 127.0.0.1:8081"
test "$5" = envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit
exec curl -sf -d "$7" 127.0.0.1:8080/json"#,
    ),
    // Targets and variables exist.
    ("make", r#"exec "$MAKE" --dry-run "$@""#),
    // The mounted folder exists.
    ("docker", r#"for word; do case "$word" in *:ro) test -d "${word%%:*}" ;; esac; done"#),
    // Each file exists.
    (
        "kubectl",
        r#"test "$1" = apply; shift
while [ $# -gt 0 ]; do test "$1" = -f; test -f "$2"; shift 2; done"#,
    ),
    // Our chart is rendered with the real Helm. Envoy Gateway's is on its registry.
    (
        "helm",
        r#"case "$*" in
"upgrade eg oci://"*) ;;
"install "*) shift; exec "$HELM" template "$@" ;;
*) echo "helm $*: not expected" >&2; exit 1 ;;
esac"#,
    ),
];

struct Block {
    commands: String,
    /// What is between it and the block before.
    text_before: String,
}

#[test]
fn every_command_of_readme_works() {
    on_its_own(&[], |machine| {
        let path = with_standins(machine);
        let page = fs::read_to_string(root().join("README.md")).expect("it is there");
        let blocks = blocks(&page, "sh");
        assert!(blocks.len() >= 8, "{} blocks", blocks.len());

        let mut started = None;
        for block in &blocks {
            if block.commands.starts_with("cargo run ") {
                // So that a signal is for the command.
                let command = format!("exec {}", block.commands);
                let log = machine.home.join("service");
                let mut service = Process::start("tollgate", shell(&command, &path), log.clone());
                let announced = || fs::read_to_string(&log).unwrap_or_default();
                service.wait_until_ready(|| announced().contains("try it:\n"));
                try_it(&announced(), &path);
                started = Some(service);
                continue;
            }
            if block.text_before.contains("(Ctrl-C)") {
                let mut service = started.take().expect("a service runs in another terminal");
                service.signal("INT");
                assert!(service.wait_until_ended().success());
            }
            let Some((_, requests)) = block.commands.split_once("\nfor ") else {
                run(&block.commands, &path);
                continue;
            };
            // The fourth, unless the machine is so busy that Envoy did not wait for verdicts. In
            // the same shell, which Envoy ends with.
            let repeated = format!("{}\nfor {requests}\nfor {requests}", block.commands);
            let output = run(&repeated, &path);
            for status in ["HTTP/1.1 200 OK", "429 Too Many Requests"] {
                assert!(output.contains(status), "{output}");
            }
        }
        assert!(started.is_none(), "README stops what it started");
    });
}

/// The printed command, twice, as README says.
fn try_it(announced: &str, path: &str) {
    let (_, curl) = announced.split_once("try it:\n").expect("it was awaited");
    let page = fs::read_to_string(root().join("README.md")).expect("it is there");
    assert!(page.contains(curl.trim_end()), "README has {curl}");
    assert!(
        announced.contains("http://127.0.0.1:6070/\n") && page.contains("<http://127.0.0.1:6070/>")
    );
    let once = run(curl, path);
    assert!(once.contains(r#""overallCode":"OK""#), "{once}");
    look_until("the limit is reached", || run(curl, path).contains("OVER_LIMIT"));
}

/// Blocks of a language.
fn blocks(page: &str, language: &str) -> Vec<Block> {
    let mut parts = page.split("```");
    let mut text_before = parts.next().expect("there is always a first");
    let mut blocks = Vec::new();
    while let (Some(block), Some(text_after)) = (parts.next(), parts.next()) {
        if let Some(commands) = block.strip_prefix(&format!("{language}\n")) {
            blocks
                .push(Block { commands: commands.to_owned(), text_before: text_before.to_owned() });
        }
        text_before = text_after;
    }
    blocks
}

/// PATH, with the stand-ins first.
fn with_standins(machine: &Machine) -> String {
    let folder = machine.directory("programs");
    let path = env::var("PATH").expect("there is one");
    let tool = |name: &str| crate::support::tools::tool(name).display().to_string();
    let make = env::split_paths(&path).map(|folder| folder.join("make"));
    let make = make.into_iter().find(|path| path.exists()).expect("make is installed");
    let values = [
        ("BUILT", env!("CARGO_BIN_EXE_tollgate").to_owned()),
        ("STANDINS", folder.display().to_string()),
        ("MAKE", make.display().to_string()),
        ("HELM", tool("helm")),
    ];
    let values: String = values.map(|(name, value)| format!("{name}='{value}'\n")).concat();
    for (name, script) in STANDINS {
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\nset -e\n{values}{script}\n")).expect("it is ours");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    format!("{}:{path}", folder.display())
}

/// Runs a block; each command must succeed.
fn run(commands: &str, path: &str) -> String {
    let log = tempfile::tempdir().expect("a folder");
    let log = log.path().join("output");
    // A file, because services in the background would keep a pipe open.
    let file = fs::File::create(&log).expect("it is ours");
    let errors = file.try_clone().expect("it is open");
    let ran = shell(commands, path).stdin(Stdio::null()).stdout(file).stderr(errors).status();
    let output = fs::read_to_string(&log).expect("it is text");
    assert!(ran.expect("sh runs").success(), "{commands}\n{output}");
    output
}

fn shell(commands: &str, path: &str) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", commands])
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/nonexistent")
        .current_dir(root());
    shell
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
