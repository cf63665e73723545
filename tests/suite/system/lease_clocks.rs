//! Leases on a Redis whose clock is set.

use crate::support::redis::RedisProcess;
use crate::support::versions::VALKEY_9_1;
use crate::support::{TestServer, eventually, request};
use crate::system::leases::fleet::{Fleet, HELD, leased, replica};

const HOUR: i64 = 3_600;

/// A Redis whose clock is set over the end of a window, and back.
struct Windows {
    fleet: Fleet,
    /// The end of the first window, in seconds by the clock of Redis.
    end: i64,
    /// How far that clock is ahead.
    offset: i64,
    /// Counters that were read to learn the time.
    reads: u64,
}

impl Windows {
    /// Two processes.
    async fn start() -> Self {
        let redis = RedisProcess::builder().of(VALKEY_9_1).with_own_clock();
        let redis = redis.start();
        let rules = leased("rate_limit: {unit: hour, requests_per_unit: 3000}", ", lease: 60s");
        let start = || replica(TestServer::with_rules(&rules), &redis.url()).start();
        let services = vec![start(), start()];
        let fleet = Fleet::on(redis, services).await;
        let mut windows = Self { fleet, end: 0, offset: 0, reads: 0 };
        windows.end = (windows.now() / HOUR + 1) * HOUR;
        windows
    }

    /// The time of Redis in seconds.
    fn now(&self) -> i64 {
        let (seconds, _): (i64, i64) = self.fleet.redis.command(&["TIME"]);
        seconds
    }

    /// Hits that are charged to the window that begins then.
    fn charged(&self, start: i64) -> u64 {
        let key = format!("d_key_hot_{start}");
        self.fleet.redis.command::<Option<u64>>(&["GET", &key]).unwrap_or(0)
    }

    /// Sets the clock of Redis to these seconds after the end of the first window, or before it, and
    /// waits until every process knows.
    async fn set(&mut self, seconds: i64) {
        self.offset += self.end + seconds - self.now();
        self.fleet.redis.clock().set(self.offset);
        for service in &self.fleet.services {
            let mut client = service.client().await;
            eventually("the process knows the time", async || {
                self.reads += 1;
                // Without leases, so that Redis is asked.
                let value = format!("read-{}", self.reads);
                let answer = client.answer(request("d", &[&[("key", &value)]])).await;
                let reset = answer.statuses[0].duration_until_reset.as_ref();
                let is_first = reset.expect("a reset").seconds < HOUR / 2;
                is_first == (seconds < 0)
            })
            .await;
        }
    }
}

#[tokio::test]
async fn hits_are_used_in_their_window_though_the_clock_of_redis_is_set() {
    let mut windows = Windows::start().await;
    let start = windows.end - HOUR;
    let end = windows.end;
    windows.set(-600).await;
    let first = windows.fleet.in_turn("hot", 150).await;
    assert_eq!(first, 300);
    eventually("no take is in flight", async || {
        windows.charged(start) == first + windows.fleet.sum(HELD)
    })
    .await;
    let held = windows.fleet.sum(HELD);
    assert!(held > 0, "nothing is held");

    windows.set(600).await;
    let second = windows.fleet.in_turn("hot", 100).await;
    assert_eq!(second, 200);
    eventually("each hit is charged to the second window", async || {
        windows.charged(end) == second + windows.fleet.sum(HELD)
    })
    .await;
    assert_eq!(windows.charged(start), first + held);
    assert_eq!(windows.fleet.hits("stranded"), held);

    windows.set(-600).await;
    let third = windows.fleet.use_up("hot").await;
    assert!(third > 0 && first + third <= 3_000, "{first} and {third}");
    eventually("each hit is charged to one window", async || {
        let fleet = &windows.fleet;
        let unused = fleet.hits("stranded") + fleet.sum(HELD);
        windows.charged(start) + windows.charged(end) == first + second + third + unused
    })
    .await;
}
