//! Clients without a token that keep operators from writing rules: they send half a text.

use crate::support::http::Connection;
use crate::support::limit_of;
use crate::system::hostile::{UnderAttack, server};

/// Less than an address may have.
const HALVES: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_texts_hold_up_nobody() {
    let server =
        server("1").with_envs(&[("ADMIN_TOKEN", "open-sesame"), ("RULES_WRITABLE", "true")]);
    let attacked = UnderAttack::start(server);
    let admin = attacked.server.admin;
    let path = "/api/v1/rules/rules.yaml";
    let half = |bytes: usize| {
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: test\r\nif-match: *\r\ncontent-length: 1048576\r\n\r\n"
        );
        let mut connection = Connection::open(admin);
        // It may be answered meanwhile.
        let _ = connection.write(format!("{head}{}", "#".repeat(bytes)).as_bytes());
        connection
    };
    let headers = ["authorization: Bearer open-sesame", "if-match: *"];
    for bytes in [1, (1 << 20) - 1] {
        let _halves: Vec<_> = (0..HALVES).map(|_| half(bytes)).collect();
        for requests in 1..5 {
            let text = limit_of(1_000_000_000 + requests);
            let reply = Connection::open(admin).send_with(&headers, "PUT", path, &text);
            let reply = reply.expect("there is a response");
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    }
    attacked.finish().await;
}
