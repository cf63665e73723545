//! Asks the other replicas, whose names and addresses are in their heartbeats.
//!
//! All of them have the same deadline, so one that hangs delays the answer up to a bound; its name is
//! then among those that are missing. A reply with another name is of a process that has the address
//! now.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::{Request, StatusCode, header};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::http::client;
use crate::store::Backend;
use crate::telemetry::metric::{Counter, Metrics};

/// Time for the replies of all replicas to a request with scope=fleet. The answer is due within 500
/// ms.
// bound fleet_timeout_max: the replica is `missing`; -
const TIMEOUT: Duration = Duration::from_millis(400);
/// Replicas that are asked at a time.
// bound fleet_calls_max: the others are asked after them; -
const CALLS_MAX: usize = 64;
/// Requests of clients that ask the fleet at a time: each is one to every replica.
// bound fleet_queries_max: 503; tollgate_fleet_queries_full_total
const QUERIES_MAX: usize = 4;
/// Bytes of the reply of one replica.
// bound fleet_reply_bytes_max: the replica is `missing`; -
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Bytes of the replies of all replicas to one request.
// bound fleet_replies_bytes_max: the replica is `missing`; -
const REPLIES_BYTES_MAX: usize = 32 << 20;

/// The other replicas.
#[derive(Debug)]
pub(crate) struct Fleet {
    backend: Backend,
    queries: Semaphore,
    full: Counter,
}

/// What other replicas replied.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// By name.
    pub(crate) answers: Vec<(String, Value)>,
    /// The names of those without a reply.
    pub(crate) missing: Vec<String>,
}

impl Fleet {
    /// Registers the metric.
    pub(crate) fn new(backend: Backend, metrics: &Metrics) -> Self {
        Self {
            backend,
            queries: Semaphore::new(QUERIES_MAX),
            full: metrics.counter(
                "tollgate_fleet_queries_full_total",
                "Requests with scope=fleet that were rejected with 503 because others asked the fleet at that moment (fleet_queries_max).",
            ),
        }
    }

    /// Gets a path of every replica but `own`. `None` if too many requests do.
    pub(crate) async fn ask(&self, path: &str, own: &str) -> Option<Replies> {
        let Ok(_permit) = self.queries.try_acquire() else {
            self.full.inc();
            return None;
        };
        let deadline = Instant::now() + TIMEOUT;
        let mut peers = self.backend.peers();
        peers.retain(|peer| peer.name != own);
        let bytes_max = REPLY_BYTES_MAX.min(REPLIES_BYTES_MAX / peers.len().max(1));
        let calls = peers.into_iter().map(|peer| async move {
            let reply = match peer.admin {
                Some(admin) => {
                    let called = call(admin, path, &peer.name, bytes_max);
                    timeout_at(deadline, called).await.ok().flatten()
                }
                None => None,
            };
            (peer.name, reply)
        });
        let mut replies = Replies::default();
        let mut calls = stream::iter(calls).buffer_unordered(CALLS_MAX);
        while let Some((name, reply)) = calls.next().await {
            match reply {
                Some(answer) => replies.answers.push((name, answer)),
                None => replies.missing.push(name),
            }
        }
        replies.answers.sort_by(|one, other| one.0.cmp(&other.0));
        replies.missing.sort();
        Some(replies)
    }
}

/// The answer of the replica with this name.
async fn call(admin: SocketAddr, path: &str, name: &str, bytes_max: usize) -> Option<Value> {
    let request = Request::get(path).header(header::HOST, admin.to_string());
    let request = request.body(Body::empty()).ok()?;
    let (status, body) = match client::exchange(admin, request, bytes_max).await {
        Ok(reply) => reply,
        Err(error) => {
            tracing::debug!(%admin, name, %error, "replica did not reply");
            return None;
        }
    };
    let answer: Value = serde_json::from_slice(&body).ok()?;
    (status == StatusCode::OK && answer["replica"] == name).then_some(answer)
}
