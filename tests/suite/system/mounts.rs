//! Rules on a read-only mount: Linux mount namespaces, as root or with user namespaces.

use crate::support::http::{self, Connection};
use crate::support::{TestServer, limit_of};
use crate::system::namespaces::unshare_shell;

/// Runs `PROGRAM serve DIR` with a directory that only this process finds read-only.
const READ_ONLY: &str =
    "mount --bind \"$2\" \"$2\" && mount -o remount,bind,ro \"$2\" && exec \"$0\" \"$@\"";

#[test]
fn rules_on_a_read_only_mount_are_not_changed() {
    let server = TestServer::with_rules(&limit_of(1))
        .with_env("ADMIN_TOKEN", "token")
        .with_env("RULES_WRITABLE", "true")
        .run_by(&unshare_shell(&["--mount"], READ_ONLY))
        .start();
    let list = server.admin_json("/api/v1/rules");
    assert_eq!(list["writable"], false);
    let headers = ["authorization: Bearer token", "if-match: *"];
    let reply = Connection::open(server.admin)
        .send_with(&headers, "PUT", "/api/v1/rules/rules.yaml", &limit_of(2))
        .expect("there is a response");
    assert_eq!(reply.status, 409, "{reply:?}");
    for text in [&reply.body, &list["reason"].to_string()] {
        assert!(text.contains("is on a read-only mount"), "{text}");
    }
    // The mount is the same folder.
    server.write("rules.yaml", &limit_of(3));
    let text = http::get(server.admin, "/api/v1/rules/rules.yaml").body;
    assert_eq!(text, limit_of(3));
}
