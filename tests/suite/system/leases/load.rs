//! Clients that keep asking for one leased counter while something happens to the services.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prost::Message as _;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse;

use crate::support::raw_grpc::{Connection, Ended, frame};
use crate::support::{Code, TestServer, eventually, request};

/// Clients of each service, each with a connection of its own and one call in flight.
const CLIENTS: usize = 4;
/// Between two calls of a client, so that the machine has time for everything else.
const PAUSE: Duration = Duration::from_millis(3);

/// Running clients. Each asks one service, until that takes no more calls or all are stopped.
#[derive(Default)]
pub(super) struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    is_stopped: AtomicBool,
    admitted: AtomicU64,
    over: AtomicU64,
    failed: AtomicU64,
}

/// How calls ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers {
    pub(super) admitted: u64,
    pub(super) over: u64,
    /// With an error, or without an answer.
    pub(super) failed: u64,
}

impl Load {
    /// Starts clients of these services, which ask for this value.
    pub(super) async fn on(services: &[TestServer], value: &'static str) -> Self {
        let mut load = Self::default();
        for service in services {
            load.add(service, value).await;
        }
        load
    }

    /// Starts clients of another service.
    pub(super) async fn add(&mut self, service: &TestServer, value: &'static str) {
        for _ in 0..CLIENTS {
            let connection = Connection::open(service.grpc).await;
            let client = self.shared.clone().run(connection, value);
            self.clients.spawn(client);
        }
    }

    /// The answers so far.
    pub(super) fn answers(&self) -> Answers {
        Answers {
            admitted: self.shared.admitted.load(Relaxed),
            over: self.shared.over.load(Relaxed),
            failed: self.shared.failed.load(Relaxed),
        }
    }

    /// Waits until this many more calls are admitted.
    pub(super) async fn admits(&self, calls: u64) {
        let enough = self.answers().admitted + calls;
        eventually("calls are admitted", async || self.answers().admitted >= enough).await;
    }

    /// Waits until this many more calls are over limit.
    pub(super) async fn is_over_limit(&self, calls: u64) {
        let enough = self.answers().over + calls;
        eventually("calls are over limit", async || self.answers().over >= enough).await;
    }

    /// Stops all clients after their current call.
    pub(super) async fn finish(mut self) -> Answers {
        self.shared.is_stopped.store(true, Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no client panics");
        }
        self.answers()
    }
}

impl Shared {
    async fn run(self: Arc<Self>, mut connection: Connection, value: &'static str) {
        let message = frame(&request("d", &[&[("key", value)]]));
        while !self.is_stopped.load(Relaxed) {
            let Some(call) = connection.try_begin().await else {
                // It drains, or has ended between two calls.
                return;
            };
            let ended = call.try_finish(&message).await;
            let count = match ended.as_ref().map(code) {
                Some(Some(Code::Ok)) => &self.admitted,
                Some(Some(Code::OverLimit)) => &self.over,
                _ => &self.failed,
            };
            count.fetch_add(1, Relaxed);
            sleep(PAUSE).await;
        }
    }
}

/// `None` if the call failed.
fn code(ended: &Ended) -> Option<Code> {
    let message = ended.message.clone()?;
    let answer = RateLimitResponse::decode(message).expect("the message is a response");
    Some(answer.overall_code())
}
