//! `/api/v1/rules`: which files can be named, and what is read of them.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::{self, Reply};
use crate::support::{TestServer, limit_of, write};

pub(crate) fn get(server: &TestServer, path: &str) -> Reply {
    http::get(server.admin, &format!("/api/v1/rules{path}"))
}

pub(crate) fn etag_of(reply: &Reply) -> String {
    let etag = reply.headers.iter().find_map(|line| line.strip_prefix("etag: "));
    etag.unwrap_or_else(|| panic!("{reply:?}")).to_owned()
}

pub(crate) fn names(list: &Value) -> Vec<&str> {
    let files = list["files"].as_array().expect("a list");
    files.iter().map(|file| file["file"].as_str().expect("a name")).collect()
}

#[test]
fn rules_files_are_listed_and_read() {
    let server = TestServer::with_files([
        ("b.yaml", &*limit_of(1)),
        ("a.yaml", "domain: \u{fc}\n"),
        ("cases.test.yaml", "no rules"),
        (".hidden.yaml", "no rules"),
        ("below/c.yaml", "domain: c\n"),
    ])
    .start();
    let list = get(&server, "").json();
    assert_eq!(names(&list), ["a.yaml", "b.yaml"]);
    assert!(list["replica"].is_string(), "{list}");
    for file in list["files"].as_array().expect("a list") {
        let name = file["file"].as_str().expect("a name");
        let reply = get(&server, &format!("/{name}"));
        assert_eq!(reply.status, 200);
        assert!(reply.has_header("content-type: application/yaml"), "{reply:?}");
        let text = fs::read_to_string(server.path(name)).expect("it exists");
        assert_eq!((&reply.body, json!(text.len())), (&text, file["bytes"].clone()));
        assert_eq!(file["etag"], etag_of(&reply));
    }
    let before = etag_of(&get(&server, "/b.yaml"));
    server.write("b.yaml", &limit_of(2));
    let after = etag_of(&get(&server, "/b.yaml"));
    server.write("b.yaml", &limit_of(1));
    assert_ne!(before, after);
    assert_eq!(before, etag_of(&get(&server, "/b.yaml")), "equal bytes");
}

/// A path below `/api/v1/rules`, the status, and a text of the answer.
const UNREADABLE: &str = "
/missing.yaml | 404 | no rules file missing.yaml
/below | 404 | no rules file below
/below%2Fc.yaml | 400 | without a slash
/below/c.yaml | 404 | unknown path
/..%2Foutside.yaml | 400 | without a slash
/.. | 400 | begin with a dot
/%2e%2e | 400 | begin with a dot
/.hidden.yaml | 400 | begin with a dot
/cases.test.yaml | 400 | test cases
/%ff.yaml | 400 | UTF-8
/a%00.yaml | 400 | control characters
";

#[test]
fn only_files_directly_in_the_folder_are_read() {
    let server = TestServer::with_files([
        ("a.yaml", &*limit_of(1)),
        ("cases.test.yaml", "secret"),
        (".hidden.yaml", "secret"),
        ("below/c.yaml", "secret"),
    ]);
    write(&server.rules().join("../outside.yaml"), "secret");
    let server = server.start();
    for line in UNREADABLE.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let reply = get(&server, cells[0]);
        assert_eq!(reply.status.to_string(), cells[1], "{line}: {reply:?}");
        assert!(reply.body.contains(cells[2]), "{line}: {reply:?}");
        assert!(!reply.body.contains("secret"), "{line}: {reply:?}");
        assert!(reply.json()["replica"].is_string(), "{reply:?}");
    }
}

#[test]
fn a_missing_folder_is_the_reason_for_an_empty_list() {
    let root = TempDir::new().expect("a temporary directory");
    let server = TestServer::with_runtime_root(root.path()).start();
    let list = get(&server, "").json();
    assert_eq!(list["files"], json!([]));
    let reason = list["reason"].as_str().expect("a text");
    assert!(reason.contains("read rules from"), "{list}");
    assert_eq!(get(&server, "/rules.yaml").status, 404);
}
