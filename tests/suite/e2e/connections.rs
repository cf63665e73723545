//! Envoy's network filter: a limit on connections, whatever is spoken on them.

use std::io;

use crate::e2e::env::Env;
use crate::e2e::env::http::Request;

#[test]
fn three_connections_are_admitted_and_others_closed() {
    for env in Env::with_every_store("network-filter.yaml") {
        let env = env.start();
        let try_one = || {
            let mut connection = env.connect();
            match Request::get("/").send(&mut connection) {
                Ok(reply) => {
                    assert_eq!((reply.status, &*reply.body), (200, "ok\n"));
                    // The connection was admitted as a whole: its requests are not checked.
                    let again = Request::get("/").send(&mut connection);
                    assert_eq!(again.expect("the connection is open").status, 200);
                    true
                }
                Err(error) => {
                    let closed = [
                        io::ErrorKind::UnexpectedEof,
                        io::ErrorKind::ConnectionReset,
                        io::ErrorKind::BrokenPipe,
                    ];
                    assert!(closed.contains(&error.kind()), "{error}");
                    false
                }
            }
        };
        let let_in: Vec<bool> = (0..7).map(|_| try_one()).collect();
        assert_eq!(let_in, [true, true, true, false, false, false, false]);
        assert_eq!(env.rule_stat("tcp.listener_ingress.total_hits"), 7);
        assert_eq!(env.rule_stat("tcp.listener_ingress.over_limit"), 4);

        // While Tollgate is away, all of them pass.
        env.tollgate.stop();
        assert!(try_one() && try_one());

        let stats = env.envoy.stats();
        let counts =
            ["total", "ok", "over_limit", "cx_closed", "error", "failure_mode_allowed", "active"];
        let counts = counts.map(|name| stats[&format!("ratelimit.net.{name}")]);
        assert_eq!(counts, [9, 3, 4, 4, 2, 2, 0]);
    }
}
