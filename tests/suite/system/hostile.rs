//! Clients that attack the process over its ports. It stays below [`RESIDENT_MAX_KIB`], and a
//! well-behaved client loses no call. One test at a time: beside others, how soon the allocator
//! returns pages depends on the machine.
//!
//! Each file attacks one part. The clients of `grpc.rs` and `json.rs` send what the fleet's clients
//! never send: `support/raw_grpc.rs` and bytes on a socket, not a gRPC library.

use crate::support::traffic::{Calls, Traffic};
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

/// A client that calls, while others attack.
struct WellBehaved(Traffic<1>);

impl WellBehaved {
    fn start(server: &TestServer) -> Self {
        Self(Traffic::start(server, [Calls { key: "k", values: 1, deadline: None }]))
    }

    /// Ends, and checks that no call was lost and that a new connection is served.
    async fn finish(self, server: &TestServer) {
        self.0.wait_for_answers(1);
        let [answers] = self.0.finish();
        assert_eq!((answers.errors.len(), answers.over_limit()), (0, 0), "{:?}", answers.errors);
        assert_eq!(server.client().await.ask("d", &[("k", "")]).await, Code::Ok);
    }
}
