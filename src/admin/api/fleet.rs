//! Asks the other replicas, whose names and addresses are in their heartbeats.
//!
//! A client that can publish heartbeats can name any address. So only plausible ones are asked, and
//! first for their name: a process that answers with another one gets no further request.
//!
//! ```text
//!  heartbeat NAME ADDRESS    GET /api/v1/replica -> NAME    GET /api/v1/top?... -> hits
//!                                                           GET /api/v1/status  -> status
//! ```
//! All of them have the same deadline, so one that hangs delays the answer up to a bound; its name
//! is then among those that are missing.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::body::{Body, Bytes};
use futures_util::StreamExt as _;
use futures_util::stream;
use http::{Request, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use crate::admin::api::fleet::reply::Reply;
use crate::net::client::{self, Connection};
use crate::report::answer::Replica;
use crate::store::Backend;
use crate::telemetry::metric::{Counter, Metrics};

pub mod reply;

/// Time for all replicas together. The answer is due within 500 ms.
// bound fleet_timeout: the replica is missing in the answer; -
const TIMEOUT: Duration = Duration::from_millis(400);
/// Replicas that are asked at a time.
// bound fleet_calls_max: the next one waits; -
const CALLS_MAX: usize = 64;
/// Requests of clients that ask the fleet at a time: each is one to every replica.
// bound fleet_queries_max: the next one waits; tollgate_fleet_queries_full_total
const QUERIES_MAX: usize = 1;
/// Time that a request waits for others that ask the fleet.
// bound fleet_wait_max: the request is answered with 503; tollgate_fleet_queries_full_total
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Bytes of the reply of a replica.
// bound fleet_reply_bytes_max: the replica is missing in the answer; -
const REPLY_BYTES_MAX: usize = 2 << 20;
/// Bytes of the replies to one request, of which each replica has the same part.
// bound fleet_replies_bytes_max: the replica is missing in the answer; -
const REPLIES_BYTES_MAX: usize = 8 << 20;
/// Entries of keys, or rules, in the replies to one request.
// bound fleet_entries_max: the replica is missing in the answer; -
const ENTRIES_MAX: usize = 200_000;
/// Bytes of the answer with a name.
const NAME_BYTES_MAX: usize = 1 << 10;

/// The other replicas.
#[derive(Debug)]
pub(crate) struct Fleet {
    backend: Backend,
    /// The admin listener of this one, by its address for peers if it has one.
    own: SocketAddr,
    queries: Semaphore,
    full: Counter,
    /// Names of pods by those in heartbeats, of peers that answered once.
    pods: Mutex<HashMap<String, String>>,
}

/// A replica by its heartbeats: another one, or this one.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The name in heartbeats.
    pub(crate) name: String,
    /// The name of its pod; that in heartbeats until it answers for the first time.
    pub(crate) pod: String,
    /// The address of its admin port.
    pub(crate) admin: Option<SocketAddr>,
    /// Whether that is plausible.
    pub(crate) may_be_asked: bool,
}

/// The replies of other replicas.
#[derive(Debug)]
pub(crate) struct Replies<R> {
    /// Sorted by name.
    pub(crate) answers: Vec<R>,
    /// The names of those without a reply.
    pub(crate) missing: Vec<String>,
}

impl Fleet {
    /// Registers the metric.
    pub(crate) fn new(backend: Backend, own: SocketAddr, metrics: &Metrics) -> Self {
        Self {
            backend,
            own,
            queries: Semaphore::new(QUERIES_MAX),
            full: metrics.counter(
                "tollgate_fleet_queries_full_total",
                "Requests with scope=fleet that were rejected with 503 because others asked the fleet for 2 s (fleet_queries_max, fleet_wait_max).",
            ),
            pods: Mutex::default(),
        }
    }

    /// The replicas by their heartbeats, with names of pods as far as they are known, and with the
    /// admin ports that may be asked.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        let peers = self.backend.peers();
        let mut pods = self.pods.lock();
        pods.retain(|name, _| peers.iter().any(|peer| peer.name == *name));
        let peers = peers.into_iter().map(|peer| Peer {
            pod: pods.get(&peer.name).unwrap_or(&peer.name).clone(),
            admin: peer.admin,
            may_be_asked: peer
                .admin
                .is_some_and(|admin| may_be_asked(admin, self.own)),
            name: peer.name,
        });
        peers.collect()
    }

    /// Replies of which each is missing.
    pub(crate) fn without_replies<R>(&self, own: &str) -> Replies<R> {
        let names = self.backend.peers().into_iter().map(|peer| peer.name);
        Replies {
            answers: Vec::new(),
            missing: names.filter(|name| name != own).collect(),
        }
    }

    /// Gets a path of every replica but `own`. `None` if other requests do for too long.
    pub(crate) async fn ask<R: Reply>(&self, path: &str, own: &str) -> Option<Replies<R>> {
        let Ok(Ok(_permit)) = timeout(WAIT_MAX, self.queries.acquire()).await else {
            self.full.inc();
            return None;
        };
        let deadline = Instant::now() + TIMEOUT;
        let mut peers = self.peers();
        peers.retain(|peer| peer.name != own);
        let bytes_max = REPLY_BYTES_MAX.min(REPLIES_BYTES_MAX / peers.len().max(1));
        let calls = peers.into_iter().map(|peer| async move {
            let called = self.call(&peer, path, bytes_max);
            let reply = timeout_at(deadline, called).await;
            let reply = reply.unwrap_or_else(|late| Err(late.into()));
            let reply = reply.inspect_err(|error| {
                tracing::debug!(admin = ?peer.admin, name = peer.name, %error, "replica did not reply");
            });
            (peer.name, reply.ok())
        });
        let mut replies = Replies {
            answers: Vec::new(),
            missing: Vec::new(),
        };
        let mut entries = 0;
        let mut calls = stream::iter(calls).buffer_unordered(CALLS_MAX);
        while let Some((name, reply)) = calls.next().await {
            // On another thread, and one at a time: this one answers liveness probes.
            let read = spawn_blocking(move || R::read(&reply?).ok()).await;
            let reply = read.ok().flatten().filter(|reply| reply.replica() == name);
            let reply = reply.filter(|reply| entries + reply.entries() <= ENTRIES_MAX);
            match reply {
                Some(reply) => {
                    entries += reply.entries();
                    replies.answers.push(reply);
                }
                None => replies.missing.push(name),
            }
        }
        let by_name = |one: &R, other: &R| one.replica().cmp(other.replica());
        replies.answers.sort_by(by_name);
        replies.missing.sort();
        Some(replies)
    }

    /// The answer of a replica that has the name of its heartbeat. Keeps that of its pod.
    async fn call(&self, peer: &Peer, path: &str, bytes_max: usize) -> anyhow::Result<Bytes> {
        let admin = peer.admin.filter(|_| peer.may_be_asked);
        let admin = admin.context("no address that may be asked")?;
        client::connected(admin, async |connection| {
            let named = get(connection, admin, "/api/v1/replica", NAME_BYTES_MAX).await?;
            let Replica { replica, pod } = serde_json::from_slice(&named)?;
            ensure!(replica == peer.name, "it has another name");
            self.pods.lock().extend(pod.map(|pod| (replica, pod)));
            get(connection, admin, path, bytes_max).await
        })
        .await
    }
}

/// Whether an address of a heartbeat may be that of a replica's admin listener: on the port of this
/// one, or on the same machine.
fn may_be_asked(peer: SocketAddr, own: SocketAddr) -> bool {
    let [ip, own_ip] = [peer, own].map(|address| address.ip().to_canonical());
    let is_never_a_replica = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_never_a_replica || ip.is_unspecified() || ip.is_multicast())
        && (!ip.is_loopback() || own_ip.is_loopback())
        && (peer.port() == own.port() || ip == own_ip)
}

async fn get(
    connection: &mut Connection,
    admin: SocketAddr,
    path: &str,
    bytes_max: usize,
) -> anyhow::Result<Bytes> {
    let request = Request::get(path).header(header::HOST, admin.to_string());
    let (status, body) = connection
        .send(request.body(Body::empty())?, bytes_max)
        .await?;
    ensure!(status == StatusCode::OK, "{status}");
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plausible_addresses_are_asked() {
        for (own, peer, expected) in [
            ("10.0.0.1:6070", "10.0.0.2:6070", true),
            ("[fd00::1]:6070", "[fd00::2]:6070", true),
            ("0.0.0.0:6070", "10.0.0.2:6070", true),
            ("10.0.0.1:6070", "10.0.0.1:6071", true),
            ("127.0.0.1:6070", "127.0.0.1:6071", true),
            ("127.0.0.1:6070", "127.0.0.2:6070", true),
            ("10.0.0.1:6070", "10.0.0.2:80", false),
            ("10.0.0.1:6070", "127.0.0.1:6070", false),
            ("10.0.0.1:6070", "[::1]:6070", false),
            ("10.0.0.1:6070", "[::ffff:127.0.0.1]:6070", false),
            ("0.0.0.0:6070", "127.0.0.1:6070", false),
            ("10.0.0.1:6070", "169.254.169.254:6070", false),
            ("10.0.0.1:6070", "[fe80::1]:6070", false),
            ("10.0.0.1:6070", "0.0.0.0:6070", false),
            ("0.0.0.0:6070", "0.0.0.0:6070", false),
            ("10.0.0.1:6070", "224.0.0.1:6070", false),
            ("10.0.0.1:6070", "255.255.255.255:6070", false),
            ("10.0.0.1:6070", "[ff02::1]:6070", false),
        ] {
            let [own_address, peer_address] =
                [own, peer].map(|text| text.parse().expect("an address"));
            assert_eq!(
                may_be_asked(peer_address, own_address),
                expected,
                "{peer} by {own}"
            );
        }
    }
}
