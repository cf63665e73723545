//! A real Redis that closes idle connections: limits hold, and nothing is reported as an outage.

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, limit_of, look_until};

const LIMIT: u32 = 5;

fn redis() -> RedisProcess {
    RedisProcess::start()
}

/// By address, by Unix socket, and of the second Redis.
#[tokio::test]
async fn connections_that_redis_closed_are_replaced_without_an_outage() {
    let cases = [
        ("TCP", "REDIS_URL", "main"),
        ("Unix socket", "REDIS_URL", "main"),
        ("REDIS_PERSECOND", "REDIS_PERSECOND_URL", "per_second"),
    ];
    for (name, variable, pool) in cases {
        let (redis, other) = (redis(), redis());
        let url = match name {
            "Unix socket" => format!("unix://{}", redis.socket().display()),
            _ => redis.url(),
        };
        let is_second = pool == "per_second";
        let rules = if is_second {
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: second, requests_per_unit: 1000}\n".to_owned()
        } else {
            limit_of(LIMIT)
        };
        let mut server = TestServer::with_rules(&rules).with_env("REDIS_URL", &other.url());
        if is_second {
            server = server.with_env("REDIS_PERSECOND", "true");
        }
        let server = server.with_env(variable, &url).start();
        let mut client = server.client().await;
        let mut admitted = 0;
        for round in 1..=2 * LIMIT {
            admitted += u32::from(client.ask("d", &[("k", "v")]).await == Code::Ok);
            let series = format!("tollgate_store_connections_closed_idle_total{{pool=\"{pool}\"}}");
            let closed = server.metric(&series).unwrap_or_default();
            let killed: u32 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            assert!(killed > 0, "{name}, round {round}");
            look_until(&format!("{name}: a close that is counted"), || {
                server.metric(&series).is_some_and(|now| now > closed)
            });
        }
        let expected = if is_second { 2 * LIMIT } else { LIMIT };
        assert_eq!(admitted, expected, "{name}");
        server.assert_not_logged("unreachable");
        let metrics = server.admin("/metrics");
        let fallbacks = metrics
            .lines()
            .filter(|line| line.starts_with("tollgate_store_fallbacks_total"));
        assert!(
            fallbacks.clone().all(|line| line.ends_with(" 0")),
            "{name}: {:?}",
            fallbacks.collect::<Vec<_>>()
        );
    }
}
