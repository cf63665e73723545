//! Clients that keep others from trying and writing rules: they send half a text, or write the same file.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::support::http::{self, Connection};
use crate::support::{TestServer, limit_of, look_until};
use crate::system::hostile::{UnderAttack, server};

/// More than there are places for texts that are compiled, and less than an address may have.
const HALVES: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_texts_hold_up_nobody() {
    let attacked = UnderAttack::start(server("1"));
    let admin = attacked.server.admin;
    let path = "/api/v1/rules/rules.yaml/check";
    let half = |bytes: usize| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 1048576\r\n\r\n");
        let mut connection = Connection::open(admin);
        // It may be given up meanwhile.
        let _ = connection.write(format!("{head}{}", "#".repeat(bytes)).as_bytes());
        connection
    };
    for bytes in [1, (1 << 20) - 1] {
        let _halves: Vec<_> = (0..HALVES).map(|_| half(bytes)).collect();
        for _ in 0..5 {
            let reply = http::post(admin, path, &limit_of(5));
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
    let given_up = r#"tollgate_rule_texts_given_up_total{request="check"}"#;
    look_until("texts are given up", || {
        attacked.server.metric(given_up) > Some(0.0)
    });
    attacked.finish().await;
}

/// An editor replaces the file beside PUTs that name what they read. What is in the file after a write of
/// the editor is that write, or a text of a PUT that has read it.
#[test]
fn no_write_of_an_editor_is_replaced_unseen() {
    let server = TestServer::with_rules(&limit_of(1))
        .with_env("ADMIN_TOKEN", "open-sesame")
        .with_env("RULES_WRITABLE", "true")
        .start();
    let file = server.path("rules.yaml");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let editor = scope.spawn(|| {
            for number in 0.. {
                let text = format!("{}# write {number} of the editor\n", limit_of(2));
                server.write("rules.yaml", &text);
                if stop.load(Relaxed) {
                    break;
                }
                // A PUT that is too late takes its own text back.
                let write = format!("# write {number} ");
                look_until("the write is there, or was read", || {
                    let found = fs::read_to_string(&file).expect("it exists");
                    found.contains(&write)
                });
            }
        });
        let mut connection = Connection::open(server.admin);
        for _ in 0..60 {
            let read = connection.send("GET", "/api/v1/rules/rules.yaml", "");
            let read = read.expect("there is a response");
            let number = read.body.split("# write ").nth(1).unwrap_or("none");
            let number = number.split(' ').next().unwrap_or_default();
            let etag = read
                .headers
                .iter()
                .find_map(|line| line.strip_prefix("etag: "));
            let headers = [
                "authorization: Bearer open-sesame".to_owned(),
                format!("if-match: {}", etag.expect("an ETag")),
            ];
            let text = format!("{}# write {number} was read\n", limit_of(3));
            let path = "/api/v1/rules/rules.yaml";
            let reply = connection.send_with(&headers, "PUT", path, &text);
            let status = reply.expect("there is a response").status;
            assert!([200, 409, 412, 504].contains(&status), "{status}");
        }
        stop.store(true, Relaxed);
        editor.join().expect("no write is lost");
    });
}
