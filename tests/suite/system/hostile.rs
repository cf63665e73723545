//! Clients that attack the process over its ports. It stays below [`RESIDENT_MAX_KIB`], and a
//! well-behaved client loses no call. One test at a time: beside others, how soon the allocator
//! returns pages depends on the machine.
//!
//! Each file attacks one part. The clients of `grpc.rs` and `json.rs` send what the fleet's clients
//! never send: `support/raw_grpc.rs` and bytes on a socket, not a gRPC library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::{
    Builder, Code, TestServer, forget_resident_peak, limit_of, resident_peak_kib,
};

mod admin;
mod admin_api;
mod budgets;
mod callers;
mod descriptors;
mod editor;
mod end;
mod files;
mod grpc;
mod json;
mod log;
mod outage;
mod readers;
mod redis;
mod texts;
mod tls;
mod trial;

/// Resident memory of a process under attack: half of what the chart gives a pod.
const RESIDENT_MAX_KIB: u64 = 256 << 10;
/// What any input may add to the resident memory of an idle process.
const GROWTH_MAX_KIB: u64 = 96 << 10;

/// A server with one rule.
fn server(workers: &str) -> Builder {
    TestServer::with_rules(&limit_of(1_000_000_000)).with_env("WORKERS", workers)
}

/// A server in a memory cgroup of [`RESIDENT_MAX_KIB`], with a well-behaved client beside the attack.
struct UnderAttack {
    server: TestServer,
    client: WellBehaved,
    idle_kib: u64,
}

impl UnderAttack {
    /// Starts both. The rules need a limit for `k` in domain `d` that the client does not reach.
    fn start(builder: Builder) -> Self {
        Self::beside(builder.with_memory_max(RESIDENT_MAX_KIB << 10).start())
    }

    /// The same of a server without a cgroup, because loading its rules takes more.
    fn beside(server: TestServer) -> Self {
        // What loading the rules took is no effect of the attack.
        forget_resident_peak(server.pid());
        Self {
            idle_kib: resident_peak_kib(server.pid()),
            client: WellBehaved::start(&server),
            server,
        }
    }

    /// Checks that no call was lost, and that the process never had more memory than it may.
    async fn finish(self) {
        self.client.finish(&self.server).await;
        let grown = resident_peak_kib(self.server.pid()).saturating_sub(self.idle_kib);
        assert!(grown < GROWTH_MAX_KIB, "grew by {grown} KiB");
    }
}

/// What a connection of the client beside an attack waits between two calls. Without it, the client
/// takes most of a processor, and each attack as much longer.
const CALL_INTERVAL: Duration = Duration::from_millis(10);

/// A client that calls on four connections, while others attack.
struct WellBehaved {
    calls: JoinSet<u64>,
    stop: Arc<AtomicBool>,
}

impl WellBehaved {
    /// Starts calling. A call that fails panics, and so does [`Self::finish`] then.
    fn start(server: &TestServer) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut calls = JoinSet::new();
        for _ in 0..4 {
            let addr = server.grpc;
            let stop = stop.clone();
            calls.spawn(async move {
                let mut client = crate::support::Client::connect(addr).await;
                let mut answered = 0;
                while !stop.load(Relaxed) || answered == 0 {
                    assert_eq!(
                        client.ask("d", &[("k", "")]).await,
                        Code::Ok,
                        "after {answered} calls"
                    );
                    answered += 1;
                    tokio::time::sleep(CALL_INTERVAL).await;
                }
                answered
            });
        }
        Self { calls, stop }
    }

    /// Ends, and checks that no call was lost and that a new connection is served.
    async fn finish(self, server: &TestServer) {
        self.stop.store(true, Relaxed);
        let answered: u64 = self.calls.join_all().await.into_iter().sum();
        assert!(answered > 0, "it has called");
        assert_eq!(server.client().await.ask("d", &[("k", "")]).await, Code::Ok);
    }
}
