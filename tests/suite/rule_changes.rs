//! Changes of rules files by `/api/v1/rules`: who may make them, and when they are in force.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rule_files::{etag_of, get, names};
use crate::support::http::{Connection, Reply, bearer};
use crate::support::volume::Volume;
use crate::support::{Builder, TestServer, limit_of, request, tollgate_with_env, write};

const TOKEN: &str = "s3cret-of-admins";

fn writable(builder: Builder) -> Builder {
    builder.with_env("ADMIN_TOKEN", TOKEN).with_env("RULES_WRITABLE", "true")
}

fn service() -> TestServer {
    writable(TestServer::with_rules(&limit_of(1))).start()
}

fn send(server: &TestServer, headers: &[String], method: &str, path: &str, body: &str) -> Reply {
    Connection::open(server.admin)
        .send_with(headers, method, &format!("/api/v1/rules{path}"), body)
        .expect("there is a response")
}

/// Replaces `rules.yaml`, if it has this ETag.
fn put(server: &TestServer, etag: &str, text: &str) -> Reply {
    let headers = [bearer(TOKEN), format!("if-match: {etag}")];
    send(server, &headers, "PUT", "/rules.yaml", text)
}

fn etag(server: &TestServer) -> String {
    etag_of(&get(server, "/rules.yaml"))
}

/// Replaces `rules.yaml` by rules with this limit.
fn limit_to(server: &TestServer, requests: u32) -> Value {
    let reply = put(server, &etag(server), &limit_of(requests));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn actions(server: &TestServer, action: &str, outcome: &str) -> Option<f64> {
    let labels = format!(r#"{{action="{action}",outcome="{outcome}"}}"#);
    server.metric(&format!("tollgate_admin_actions_total{labels}"))
}

#[tokio::test]
async fn a_change_is_in_force_when_it_is_answered() {
    let server = service();
    let mut client = server.client().await;
    for requests in 2..12 {
        let answer = limit_to(&server, requests);
        let reply = client.answer(request("d", &[&[("k", "")]])).await;
        assert_eq!(
            reply.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit),
            Some(requests)
        );
        assert_eq!(answer["rules"], json!({"domains": 1, "limits": 1}));
        assert_eq!(answer["file"], "rules.yaml");
        assert_eq!(answer["etag"], etag(&server));
        assert!(answer["replica"].is_string(), "{answer}");
        let text = fs::read_to_string(server.path("rules.yaml")).expect("it exists");
        assert_eq!(text, limit_of(requests));
    }
    assert_eq!(actions(&server, "put_rules", "done"), Some(10.0));
    let again = limit_to(&server, 11);
    assert_eq!(again["etag"], etag(&server), "the same text is no change");
}

#[test]
fn changes_are_off_by_default() {
    for (name, value, missing) in [
        ("ADMIN_TOKEN", TOKEN, "set RULES_WRITABLE=true"),
        ("RULES_WRITABLE", "true", "set ADMIN_TOKEN"),
    ] {
        let server = TestServer::with_rules(&limit_of(1)).with_env(name, value).start();
        let list = get(&server, "").json();
        assert_eq!(list["writable"], false);
        assert!(list["reason"].to_string().contains(missing), "{list}");
        let reply = put(&server, "*", &limit_of(2));
        assert_eq!(reply.status, 403, "{reply:?}");
        assert!(reply.body.contains(missing), "{reply:?}");
        assert_eq!(actions(&server, "put_rules", "forbidden"), Some(1.0));
        assert!(!server.path(".tollgate").exists());
    }
}

#[test]
fn changes_need_the_token() {
    let server = service();
    let any = "if-match: *".to_owned();
    let wrong = "authorization: Bearer wrong".to_owned();
    for headers in [vec![any.clone()], vec![any, wrong.clone()], vec![wrong]] {
        let reply = send(&server, &headers, "PUT", "/rules.yaml", &limit_of(2));
        assert_eq!(reply.status, 401, "{reply:?}");
        assert!(reply.has_header("www-authenticate: Bearer"), "{reply:?}");
    }
    assert_eq!(actions(&server, "put_rules", "unauthorized"), Some(3.0));
    let guess = |guess| {
        let headers = [bearer(&format!("guess-{guess}"))];
        send(&server, &headers, "PUT", "/rules.yaml", "{}").status
    };
    let guesses: Vec<u16> = (0..12).map(guess).collect();
    assert!(guesses.contains(&429), "{guesses:?}");
    let text = fs::read_to_string(server.path("rules.yaml")).expect("it exists");
    assert_eq!(text, limit_of(1));
}

/// A method and a path below `/api/v1/rules`, If-Match, a body, the status and a text of the answer.
const REJECTED: &str = r#"
PUT /rules.yaml | | domain: d | 428 | as If-Match
PUT /rules.yaml | "other" | domain: d | 412 | its ETag is
PUT /rules.yaml | W/"other", "another" | domain: d | 412 | its ETag is
PUT /rules.yaml | * | domain: [ | 422 | nothing is written
PUT /rules.yaml | * | | 422 | nothing is written
PUT /rules.yaml | * | domain: e | 422 | duplicate domain 'e'
PUT /new.yaml | * | domain: d | 404 | no rules file new.yaml
PUT /below%2Fc.yaml | * | domain: d | 400 | without a slash
PUT /.hidden.yaml | * | domain: d | 400 | begin with a dot
PUT /.tollgate | * | domain: d | 400 | begin with a dot
PUT /cases.test.yaml | * | domain: d | 400 | test cases
POST /rules.yaml/check | | domain: d | 404 | run `tollgate check`
POST /rules.yaml/simulate | | domain: d | 404 | run `tollgate simulate`
POST /rules.yaml/rollback | | {"version": 1} | 404 | in git
GET /rules.yaml/history | | | 404 | in git
"#;

#[test]
fn rejected_changes_write_nothing() {
    let files = [("rules.yaml", &*limit_of(1)), ("e.yaml", "domain: e\n")];
    let server = writable(TestServer::with_files(files)).start();
    let before = fs::metadata(server.path("rules.yaml")).expect("it exists");
    for line in REJECTED.trim().lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (method, path) = cells[0].split_once(' ').expect("a method and a path");
        let mut headers = vec![bearer(TOKEN)];
        headers.extend(
            Some(cells[1]).filter(|tag| !tag.is_empty()).map(|tag| format!("if-match: {tag}")),
        );
        let reply = send(&server, &headers, method, path, cells[2]);
        assert_eq!(reply.status.to_string(), cells[3], "{line}: {reply:?}");
        assert!(reply.body.contains(cells[4]), "{line}: {reply:?}");
        assert!(reply.json()["replica"].is_string(), "{reply:?}");
    }
    let large = put(&server, "*", &"#".repeat((8 << 20) + 1));
    assert_eq!(large.status, 413, "{large:?}");
    let after = fs::metadata(server.path("rules.yaml")).expect("it exists");
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    assert_eq!(server.metric("ratelimit_service_config_load_success"), Some(1.0));
    assert_eq!(actions(&server, "put_rules", "rejected"), Some(12.0));
}

#[test]
fn invalid_rules_are_answered_with_their_lines() {
    let server = service();
    let text = limit_of(1).replace("year", "fortnight");
    let reply = put(&server, &etag(&server), &text);
    assert_eq!(reply.status, 422, "{reply:?}");
    let error = &reply.json()["errors"][0];
    assert_eq!((&error["file"], &error["line"]), (&json!("rules.yaml"), &json!(4)), "{error}");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("invalid rate limit unit 'fortnight'"), "{error}");
    assert!(error["column"].is_u64(), "{error}");
    server.assert_metric("tollgate_rules_rejected", 0.0);
}

#[test]
fn of_two_changes_at_once_one_is_made() {
    let server = service();
    let before = etag(&server);
    let (server, before) = (&server, &before);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let puts = (2..6)
            .map(|requests| scope.spawn(move || put(server, before, &limit_of(requests)).status));
        let puts: Vec<_> = puts.collect();
        puts.into_iter().map(|put| put.join().expect("no panic")).collect()
    });
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    assert_eq!((count(200), count(412)), (1, 3), "{statuses:?}");
}

/// Also with RUNTIME_IGNOREDOTFILES=false, as envoyproxy/ratelimit has it by default, and what a process that was killed left.
#[test]
fn files_that_are_being_written_are_no_rules() {
    let root = TempDir::new().expect("a temporary directory");
    write(&root.path().join("config/rules.yaml"), &limit_of(1));
    write(&root.path().join("config/.tollgate/left"), "no rules");
    let server = writable(TestServer::with_runtime_root(root.path())).start();
    limit_to(&server, 2);
    limit_to(&server, 3);
    let loads = server.metric("ratelimit_service_config_load_success");
    assert_eq!(loads, Some(3.0), "what is written causes no load");
    server.assert_metric("tollgate_rules", 1.0);
    server.assert_metric("tollgate_rules_rejected", 0.0);
    let folder = server.path("");
    let own = fs::read_dir(folder.join(".tollgate")).expect("it is a folder");
    assert_eq!(own.count(), 1, "nothing else is left");
    for variable in [("RUNTIME_IGNOREDOTFILES", "false"), ("RUNTIME_IGNOREDOTFILES", "true")] {
        let folder = folder.display().to_string();
        let checked = tollgate_with_env(&["check", &folder], &[variable]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        assert!(checked.stdout.contains("1 limit in 1 domain of 1 file"), "{checked:?}");
    }
}

#[test]
fn files_of_a_config_map_are_read_and_not_replaced() {
    let root = TempDir::new().expect("a temporary directory");
    Volume::new(root.path().join("config"), &[("rules.yaml", &limit_of(1))]);
    let server = writable(TestServer::with_runtime_root(root.path()))
        .with_env("RUNTIME_IGNOREDOTFILES", "true")
        .start();
    let list = get(&server, "").json();
    assert_eq!((names(&list), &list["writable"]), (vec!["rules.yaml"], &json!(false)));
    assert_eq!(get(&server, "/rules.yaml").body, limit_of(1));
    let reply = put(&server, "*", &limit_of(2));
    assert_eq!(reply.status, 409, "{reply:?}");
    assert!(reply.body.contains("ConfigMap"), "{reply:?}");
}

#[test]
fn links_are_not_replaced() {
    // A file that is a link, a folder that is one, and one above the folder.
    let files = TempDir::new().expect("a temporary directory");
    write(&files.path().join("real/config/rules.yaml"), &limit_of(1));
    let real = files.path().join("real");
    let folder = files.path().join("linked");
    symlink(real.join("config"), &folder).expect("it is not there");
    let file = files.path().join("file");
    fs::create_dir(&file).expect("it is not there");
    symlink(real.join("config/rules.yaml"), file.join("rules.yaml")).expect("it is not there");
    let root = files.path().join("root");
    symlink(&real, &root).expect("it is not there");
    for builder in [
        TestServer::with_directory(&folder),
        TestServer::with_directory(&file),
        TestServer::with_runtime_root(&root),
    ] {
        let server = writable(builder).start();
        let reply = put(&server, "*", &limit_of(2));
        assert_eq!(reply.status, 409, "{reply:?}");
        assert!(reply.body.contains("is a link"), "{reply:?}");
        assert_eq!(get(&server, "/rules.yaml").body, limit_of(1));
    }
}

#[test]
fn a_folder_without_permission_is_not_written() {
    let files = TempDir::new().expect("a temporary directory");
    let folder = files.path().join("rules");
    write(&folder.join("rules.yaml"), &limit_of(1));
    let mode =
        |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("it is ours");
    mode(0o555);
    // Root is not bound by permissions while it has this capability. Others have none to give up.
    let started = thread::spawn({
        let folder = folder.clone();
        move || {
            let _ = remove_capability_from_bounding_set(CapabilitySet::DAC_OVERRIDE);
            writable(TestServer::with_directory(&folder)).start()
        }
    });
    let server = started.join().expect("it starts");
    let reply = put(&server, "*", &limit_of(2));
    let list = get(&server, "").json();
    mode(0o755);
    assert_eq!(reply.status, 409, "{reply:?}");
    assert!(reply.body.contains("is not writable for this process"), "{reply:?}");
    assert_eq!(list["writable"], false);
    assert_eq!(put(&server, "*", &limit_of(2)).status, 200);
}

#[test]
fn rules_of_a_control_plane_are_no_files() {
    let server = writable(TestServer::with_xds("127.0.0.1:1")).start();
    let put = put(&server, "*", &limit_of(2));
    for (reply, status) in [(put, 409), (get(&server, ""), 404), (get(&server, "/rules.yaml"), 404)]
    {
        assert_eq!(reply.status, status, "{reply:?}");
        assert!(reply.body.contains("from a control plane"), "{reply:?}");
    }
}

/// Readers, such as other replicas, find the old text or the new one, with the same permissions.
#[test]
fn a_file_is_replaced_in_one_step() {
    let server = service();
    let path = server.path("rules.yaml");
    let padded = |requests| format!("{}{}", limit_of(requests), "# comment\n".repeat(20_000));
    fs::write(&path, padded(1)).expect("it is written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut texts = HashSet::new();
            while !is_done.load(Relaxed) {
                texts.insert(fs::read_to_string(&path).expect("it is always there"));
            }
            texts
        });
        for requests in 2..8 {
            assert_eq!(put(&server, &etag(&server), &padded(requests)).status, 200);
        }
        is_done.store(true, Relaxed);
        for text in reader.join().expect("no panic") {
            assert!((1..8).any(|requests| text == padded(requests)), "{} bytes", text.len());
        }
    });
    let mode = fs::metadata(&path).expect("it exists").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
}

#[test]
fn a_killed_process_leaves_a_whole_file() {
    let files = TempDir::new().expect("a temporary directory");
    let folder = files.path().join("rules");
    let padded = |requests| format!("{}{}", limit_of(requests), "# comment\n".repeat(20_000));
    write(&folder.join("rules.yaml"), &padded(1));
    for requests in 2..8 {
        let server = writable(TestServer::with_directory(&folder)).start();
        let before = fs::read_to_string(folder.join("rules.yaml")).expect("it exists");
        let text = padded(requests);
        let headers = format!(
            "PUT /api/v1/rules/rules.yaml HTTP/1.1\r\nhost: test\r\n{}\r\nif-match: *\r\ncontent-length: {}\r\n\r\n",
            bearer(TOKEN),
            text.len()
        );
        let mut connection = Connection::open(server.admin);
        connection.write(headers.as_bytes()).expect("it reads");
        connection.write(text.as_bytes()).expect("it reads");
        // At another moment of the change in each round.
        let looks = 1 << requests;
        for _ in 0..looks {
            let _ = fs::metadata(folder.join(".tollgate"));
        }
        drop(server);
        let after = fs::read_to_string(folder.join("rules.yaml")).expect("it exists");
        assert!(after == before || after == text, "{} bytes", after.len());
        let server = writable(TestServer::with_directory(&folder)).start();
        server.assert_metric("tollgate_rules", 1.0);
        assert_eq!(put(&server, "*", &text).status, 200);
    }
}

#[test]
fn each_change_is_logged_once() {
    let server =
        writable(TestServer::with_rules(&limit_of(1))).with_env("LOG_LEVEL", "error").start();
    let before = server.log();
    let was = etag(&server);
    limit_to(&server, 2);
    let log = server.log_with("action=put_rules");
    let lines: Vec<&str> = log[before.len()..].lines().collect();
    assert_eq!(lines.len(), 1, "{log}");
    let expected = "admin action action=put_rules remote=127.0.0.1 file=rules.yaml before=";
    assert!(lines[0].contains(expected), "{log}");
    for hash in [was, etag(&server)] {
        assert!(lines[0].contains(hash.trim_matches('"')), "{hash}: {log}");
    }
    put(&server, "\"other\"", &limit_of(3));
    server.assert_not_logged(TOKEN);
}

#[test]
fn the_command_that_rolled_back_names_git() {
    let ran = tollgate_with_env(&["rules", "rollback", "rules.yaml"], &[]);
    assert_eq!(ran.code, Some(64), "{ran:?}");
    assert!(ran.stderr.contains("keep them in git"), "{ran:?}");
}
