//! Responses of OVER_LIMIT of all replicas in one stream.
//!
//! ```text
//!  own feed ------------------------------------\
//!  peer  GET /api/v1/replica, /over-limit --------> events of one client
//!  peer  lost: missing, and asked again after 2 s
//! ```
//! Other replicas send values as ADMIN_REDACT says there. An event of them is read into its type and
//! written again: the process at the address of a heartbeat need not be a replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Interval, interval, sleep, timeout};

use crate::admin::api::fleet::{Fleet, Peer};
use crate::base::sampling::PerSecond;
use crate::observe::feed::{EVENTS_PER_SECOND_MAX, Reader};
use crate::report::answer::Replica;
use crate::report::json;
use crate::report::top::{Followed, OverLimitEvent};

/// Replicas whose events a client gets.
// bound fleet_stream_peers_max: the replica is missing; -
const PEERS_MAX: usize = 64;
/// Events of other replicas that wait for a client.
// bound fleet_events_max: nothing more is read of the replica; -
const EVENTS_MAX: usize = 64;
/// Bytes of an event of another replica.
// bound fleet_event_bytes_max: the replica is missing, and asked again; -
const EVENT_BYTES_MAX: usize = 64 << 10;
/// Many proxies close a connection that is silent for a minute.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Time without an event or a comment of another replica.
// bound fleet_silence_max: the replica is missing, and asked again; -
const SILENCE_MAX: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Peers are compared with heartbeats after this time.
const PEERS_INTERVAL: Duration = Duration::from_secs(1);

/// The events of one client.
pub(crate) struct FleetEvents {
    fleet: Arc<Fleet>,
    own: Replica,
    own_events: Reader,
    /// What other replicas are asked for.
    path: Arc<str>,
    /// One for each other replica. They end with the client.
    tasks: JoinSet<()>,
    peers: BTreeMap<String, PeerState>,
    messages: (mpsc::Sender<Message>, mpsc::Receiver<Message>),
    heartbeats: Interval,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerState {
    Followed,
    Lost,
}

/// What the task of a replica reports.
enum Message {
    Event(Arc<str>),
    State(String, PeerState),
    /// It sends no heartbeats any more.
    Gone(String),
}

impl FleetEvents {
    /// `None` if too many other clients follow the fleet.
    pub(crate) fn new(
        fleet: Arc<Fleet>,
        own: Replica,
        own_events: Reader,
        path: String,
    ) -> Option<Self> {
        Some(Self {
            _permit: fleet.streams.clone().try_acquire_owned().ok()?,
            fleet,
            own,
            own_events,
            path: path.into(),
            tasks: JoinSet::new(),
            peers: BTreeMap::new(),
            messages: mpsc::channel(EVENTS_MAX),
            heartbeats: interval(PEERS_INTERVAL),
        })
    }

    /// The next event, or which replicas are followed if that has changed; `None` at the end of the
    /// process.
    pub(crate) async fn next(&mut self) -> Option<Arc<str>> {
        loop {
            let message = tokio::select! {
                event = self.own_events.next() => return event,
                message = self.messages.1.recv() => message?,
                _ = self.heartbeats.tick() => {
                    if self.follow_new_peers() {
                        return Some(self.followed());
                    }
                    continue;
                }
            };
            match message {
                Message::Event(event) => return Some(event),
                Message::State(name, state) => {
                    if self.peers.insert(name, state) != Some(state) {
                        return Some(self.followed());
                    }
                }
                Message::Gone(name) => {
                    self.peers.remove(&name);
                    return Some(self.followed());
                }
            }
        }
    }

    /// Begins to follow replicas with a first heartbeat. Whether there are any, or no task was
    /// there before: a client without other replicas is told so too.
    fn follow_new_peers(&mut self) -> bool {
        let is_first = self.tasks.is_empty() && self.peers.is_empty();
        let mut peers = self.fleet.peers();
        peers.retain(|peer| peer.name != self.own.replica && !self.peers.contains_key(&peer.name));
        peers.truncate(PEERS_MAX.saturating_sub(self.peers.len()));
        let is_changed = is_first || !peers.is_empty();
        for Peer { name, .. } in peers {
            self.peers.insert(name.clone(), PeerState::Lost);
            let (fleet, path) = (self.fleet.clone(), self.path.clone());
            let messages = self.messages.0.clone();
            self.tasks.spawn(async move {
                // It fails when the client has left.
                let _ = follow(&fleet, &name, &path, &messages).await;
            });
        }
        is_changed
    }

    fn followed(&self) -> Arc<str> {
        let own = Replica {
            replica: self.own.replica.clone(),
            pod: self.own.pod.clone(),
        };
        let mut followed = Followed {
            replicas: vec![own],
            missing: Vec::new(),
        };
        for Peer { name, pod, .. } in self.fleet.peers() {
            let list = match self.peers.get(&name) {
                _ if name == self.own.replica => continue,
                Some(PeerState::Followed) => &mut followed.replicas,
                Some(PeerState::Lost) | None => &mut followed.missing,
            };
            list.push(Replica {
                replica: name,
                pod: Some(pod),
            });
        }
        json(&followed).into()
    }
}

/// Follows a replica for as long as it sends heartbeats.
async fn follow(
    fleet: &Fleet,
    name: &str,
    path: &str,
    messages: &mpsc::Sender<Message>,
) -> Result<(), mpsc::error::SendError<Message>> {
    while let Some(peer) = fleet.peers().into_iter().find(|peer| peer.name == name) {
        if let Err(error) = follow_once(fleet, &peer, path, messages).await {
            tracing::debug!(admin = ?peer.admin, name, %error, "replica sends no events");
        }
        let lost = Message::State(name.to_owned(), PeerState::Lost);
        messages.send(lost).await?;
        sleep(RETRY_INTERVAL).await;
    }
    messages.send(Message::Gone(name.to_owned())).await
}

/// Sends the events of a replica, until its connection ends.
async fn follow_once(
    fleet: &Fleet,
    peer: &Peer,
    path: &str,
    messages: &mpsc::Sender<Message>,
) -> anyhow::Result<()> {
    fleet
        .follow(peer, path, async |mut chunks| {
            let followed = Message::State(peer.name.clone(), PeerState::Followed);
            messages.send(followed).await?;
            let (mut text, mut second) = (Vec::new(), PerSecond::default());
            loop {
                let chunk = timeout(SILENCE_MAX, chunks.next()).await?;
                text.extend_from_slice(&chunk.context("the replica has ended the stream")??);
                while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    let Some(event) = line.strip_prefix(b"data: ") else {
                        continue;
                    };
                    if second
                        .admit(fleet.clock.now(), EVENTS_PER_SECOND_MAX)
                        .is_none()
                    {
                        continue;
                    }
                    let event: OverLimitEvent = serde_json::from_slice(event)?;
                    ensure!(event.replica == peer.name, "an event of another replica");
                    messages.send(Message::Event(json(&event).into())).await?;
                }
                if text.len() > EVENT_BYTES_MAX {
                    bail!("an event is too long");
                }
            }
        })
        .await
}
