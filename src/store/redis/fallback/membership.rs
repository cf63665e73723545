//! How many replicas share the limits, and the rank of this one among them, from heartbeats through
//! Redis.
//!
//! Each process publishes a random name once a second on a channel that all of them subscribe to, and
//! behind it the address of its admin listener; nothing is stored. A peer that is silent for ten
//! heartbeats is gone, and a process that drains says so. The rank is the position of the own name in the sorted list. While Redis is
//! unavailable, the last known membership stays: that is when it is needed.
//!
//! ```text
//!  heartbeats   a b c   a b c   a b      …       a b
//!  replicas       3       3      3     (10 s)     2
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use parking_lot::{Mutex, MutexGuard};
use redis::{ErrorKind, Pipeline, RedisError};
use tokio::time::MissedTickBehavior;

use crate::backoff::Backoff;
use crate::limit::Share;
use crate::shutdown::{Lifecycle, Phase};
use crate::store::redis::topology::node::Node;
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::time::{Clock, Span, Time};

/// Tollgate processes on one Redis.
// bound replicas_max: the others are not counted, so shares are larger; tollgate_replicas
pub(crate) const REPLICAS_MAX: usize = 1_000;
/// The interval of heartbeats. Each process receives all of them, so it grows by as much for every
/// [`REPLICAS_PER_INTERVAL`].
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
const REPLICAS_PER_INTERVAL: usize = 100;
/// Pause after a failed heartbeat, which may last as long as a permission is missing.
// bound heartbeat_reconnect_max: tried again; tollgate_heartbeats_failed_total
const RECONNECT_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Heartbeats that a replica may miss. A failover or a paused process misses fewer.
// bound heartbeats_missed_max: the replica is gone; tollgate_replicas
const HEARTBEATS_MISSED_MAX: u32 = 10;
/// How many intervals of all peers are awaited before the membership is used.
const HEARTBEATS_AWAITED: u32 = 2;
/// Precedes the name of a process that leaves.
const LEAVE: char = '-';
/// An operator has changed a counter.
const CHANGE: &str = "!";

#[derive(Debug)]
pub(crate) struct Membership {
    channel: String,
    /// The random name of this process.
    name: String,
    /// REPLICAS, until heartbeats say otherwise.
    configured: Share,
    /// The address of the admin listener for peers, if they can know it.
    admin: OnceLock<SocketAddr>,
    peers: Mutex<Peers>,
    alive: Gauge,
    failed: Counter,
}

#[derive(Debug, Default)]
struct Peers {
    /// By name.
    heartbeats: BTreeMap<String, Heartbeat>,
    /// No peer is missed for heartbeats before this time.
    subscribed_at: Option<Time>,
    known: Option<Share>,
}

/// The last heartbeat of a process.
#[derive(Debug, Default)]
struct Heartbeat {
    at: Time,
    admin: Option<SocketAddr>,
}

/// Another process, or this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// The address of its admin listener; `None` if it publishes none.
    pub(crate) admin: Option<SocketAddr>,
}

impl Membership {
    /// Processes with the same `key_prefix` and database share their limits.
    pub(crate) fn new(
        key_prefix: &str,
        database: i64,
        configured: Share,
        metrics: &Metrics,
    ) -> Self {
        Self {
            channel: format!("{key_prefix}tg:replicas:{database}"),
            name: random_name(),
            configured,
            admin: OnceLock::new(),
            peers: Mutex::default(),
            alive: metrics.gauge(
                "tollgate_replicas",
                "Replicas that share the limits, from heartbeats through Redis; 0 before the first.",
            ),
            failed: metrics.counter(
                "tollgate_heartbeats_failed_total",
                "Heartbeats that Redis rejected or did not deliver.",
            ),
        }
    }

    /// The random name of this process.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Publishes the address of the admin listener with each heartbeat.
    pub(crate) fn advertise(&self, admin: SocketAddr) {
        // It is bound once.
        let _ = self.admin.set(admin);
    }

    /// The processes whose heartbeats were received, sorted by name.
    pub(crate) fn known_peers(&self) -> Vec<Peer> {
        let peers = self.peers();
        let peers = peers.heartbeats.iter();
        peers
            .map(|(name, heartbeat)| Peer {
                name: name.clone(),
                admin: heartbeat.admin,
            })
            .collect()
    }

    /// This process' share of every limit.
    pub(crate) fn share(&self) -> Share {
        self.peers().known.unwrap_or(self.configured)
    }

    /// Exchanges heartbeats until the process drains, then announces that it leaves. `home` is the
    /// server to use, if any is healthy; `on_change` is called when an operator has changed a counter.
    pub(crate) async fn run_heartbeats(
        &self,
        home: impl Fn() -> Option<Arc<Node>>,
        on_change: impl Fn(),
        clock: &Clock,
        lifecycle: &Lifecycle,
    ) {
        let exchange = async {
            let mut is_logged = false;
            let mut pauses = Backoff::doubling(HEARTBEAT_INTERVAL, RECONNECT_INTERVAL_MAX);
            loop {
                let failure = self.exchange_heartbeats(&home, &on_change, clock).await;
                let was_subscribed = self.peers().subscribed_at.take().is_some();
                if was_subscribed || failure.is_none() {
                    pauses.reset();
                }
                if let Some(error) = failure {
                    self.failed.inc();
                    if is_permanent(&error) && !std::mem::replace(&mut is_logged, true) {
                        let channel = &self.channel;
                        tracing::warn!(channel, %error, "heartbeats rejected; REPLICAS is the replica count during a store outage");
                    }
                }
                tokio::time::sleep(pauses.pause()).await;
            }
        };
        tokio::select! {
            () = exchange => {}
            () = lifecycle.reached(Phase::Draining) => {}
        }
        // Best effort: peers notice the missing heartbeats otherwise.
        if let Some(node) = home() {
            self.announce(&node, &format!("{LEAVE}{}", self.name)).await;
        }
    }

    /// Has every process decide its next checks without cached verdicts.
    pub(crate) async fn announce_change(&self, node: &Node) {
        self.announce(node, CHANGE).await;
    }

    async fn announce(&self, node: &Node, message: &str) {
        if let Ok(mut connection) = node.connector.connect_background().await {
            let _ = connection.call(&self.publish(&[message])).await;
        }
    }

    /// Returns the error that ends it, or `None` once another server should be used.
    async fn exchange_heartbeats(
        &self,
        home: impl Fn() -> Option<Arc<Node>>,
        on_change: impl Fn(),
        clock: &Clock,
    ) -> Option<RedisError> {
        let node = home()?;
        let opened = async {
            let messages = node.connector.subscribe(&self.channel).await?;
            Ok((messages, node.connector.connect_background().await?))
        };
        let (mut messages, mut connection) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return Some(error),
        };
        self.peers().subscribed_at = Some(clock.now());
        let mut ticks = tokio::time::interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = 0;
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => {
                        let text = message.get_payload::<String>().unwrap_or_default();
                        if text == CHANGE {
                            on_change();
                        }
                        self.peers().on_heartbeat(&text, clock.now());
                    }
                    None => return Some(failure("the subscription has ended")),
                },
                _ = ticks.tick() => {
                    if home().is_none_or(|home| home.id != node.id)
                        || node.relocation.is_outdated(connection.id)
                    {
                        return None;
                    }
                    if tick % self.peers().intervals() == 0 {
                        let replies = connection.call(&self.heartbeat()).await;
                        let error = replies.map(|replies| {
                            replies.into_iter().find_map(|reply| reply.extract_error().err())
                        });
                        if let Some(error) = error.unwrap_or_else(Some) {
                            return Some(error);
                        }
                    }
                    tick = tick.wrapping_add(1);
                    let (share, is_isolated) = {
                        let mut peers = self.peers();
                        let now = clock.now();
                        (peers.update(&self.name, now), peers.is_isolated(&self.name, now))
                    };
                    if let Some(share) = share {
                        self.alive.set(share.replicas().get().into());
                    }
                    if is_isolated {
                        return Some(failure("own heartbeats are not delivered"));
                    }
                }
            }
        }
    }

    /// In two messages: earlier versions ignore the second one, and count the first.
    fn heartbeat(&self) -> Pipeline {
        match self.admin.get() {
            None => self.publish(&[&self.name]),
            Some(admin) => self.publish(&[&self.name, &format!("{} {admin}", self.name)]),
        }
    }

    fn publish(&self, messages: &[&str]) -> Pipeline {
        let mut commands = Pipeline::with_capacity(messages.len());
        for message in messages {
            commands.cmd("PUBLISH").arg(&self.channel).arg(message);
        }
        commands
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock()
    }
}

impl Peers {
    /// How many [`HEARTBEAT_INTERVAL`]s are between two heartbeats of a process.
    fn intervals(&self) -> u32 {
        u32::try_from(1 + self.heartbeats.len() / REPLICAS_PER_INTERVAL).unwrap_or(u32::MAX)
    }

    /// The time of so many heartbeats.
    fn time_of(&self, heartbeats: u32) -> Span {
        Span::from(HEARTBEAT_INTERVAL * self.intervals() * heartbeats)
    }

    /// Any other message is ignored.
    fn on_heartbeat(&mut self, message: &str, now: Time) {
        let is_name = message.len() == 16 && message.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(name) = message.strip_prefix(LEAVE) {
            self.heartbeats.remove(name);
        } else if let Some((name, admin)) = message.split_once(' ') {
            if let Some(heartbeat) = self.heartbeats.get_mut(name) {
                heartbeat.admin = admin.parse().ok();
            }
        } else if is_name
            && (self.heartbeats.len() < REPLICAS_MAX || self.heartbeats.contains_key(message))
        {
            self.heartbeats.entry(message.to_owned()).or_default().at = now;
        }
    }

    /// Whether the process does not receive its own heartbeats.
    fn is_isolated(&self, own: &str, now: Time) -> bool {
        let last = self.heartbeats.get(own).map(|heartbeat| heartbeat.at);
        let last = last.max(self.subscribed_at);
        last.is_some_and(|last| now.since(last) > self.time_of(HEARTBEATS_MISSED_MAX))
    }

    /// Removes peers that are gone, and returns the known share. It changes only after all peers
    /// had the time for a heartbeat, and only if the own one was received.
    fn update(&mut self, own: &str, now: Time) -> Option<Share> {
        if let Some(since) = self.subscribed_at
            && now.since(since) >= self.time_of(HEARTBEATS_AWAITED)
        {
            let silent_max = self.time_of(HEARTBEATS_MISSED_MAX);
            self.heartbeats
                .retain(|_, last| now.since(last.at.max(since)) <= silent_max);
            if let Some(rank) = self.heartbeats.keys().position(|name| name == own) {
                let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
                let replicas = NonZeroU32::new(number(self.heartbeats.len()));
                let replicas = replicas.unwrap_or(NonZeroU32::MIN);
                self.known = Some(Share::ranked(replicas, number(rank)));
            }
        }
        self.known
    }
}

/// A name that no other process has.
pub(crate) fn random_name() -> String {
    format!("{:016x}", fastrand::u64(..))
}

fn failure(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, what))
}

/// Whether an operator has to act, other than for Redis to be available.
fn is_permanent(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOPERM" | "ERR"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "5000000000000000";

    fn at(second: u64) -> Time {
        Time::from_micros(1_700_000_000_000_000).plus(Span::from_secs(second))
    }

    fn name(number: u64) -> String {
        format!("{number}{}", &OWN[1..])
    }

    fn subscribed() -> Peers {
        Peers {
            subscribed_at: Some(at(0)),
            ..Peers::default()
        }
    }

    /// Replica count and rank after heartbeats of these peers.
    fn after(peers: &mut Peers, second: u64, numbers: &[u64]) -> Option<(u32, u32)> {
        for number in numbers {
            peers.on_heartbeat(&name(*number), at(second));
        }
        let share = peers.update(OWN, at(second))?;
        let is_own = |rank: &u32| share == Share::ranked(share.replicas(), *rank);
        Some((share.replicas().get(), (0..9).find(is_own).expect("a rank")))
    }

    #[test]
    fn new_peers_count_at_once_and_silent_ones_for_ten_heartbeats() {
        let mut peers = subscribed();
        assert_eq!(after(&mut peers, 1, &[5]), None, "others may follow");
        assert_eq!(after(&mut peers, 2, &[5, 7, 3]), Some((3, 1)));
        assert_eq!(after(&mut peers, 3, &[5, 7, 1]), Some((4, 2)));
        for second in 4..=12 {
            assert_eq!(after(&mut peers, second, &[5, 7]), Some((4, 2)), "{second}");
        }
        assert_eq!(after(&mut peers, 13, &[5, 7]), Some((3, 1)));
        assert_eq!(after(&mut peers, 14, &[5, 7]), Some((2, 0)));
        peers.on_heartbeat(&format!("-{}", name(7)), at(14));
        assert_eq!(after(&mut peers, 14, &[5]), Some((1, 0)), "it left");
    }

    #[test]
    fn known_share_stays_until_all_peers_had_the_time_for_a_heartbeat() {
        let mut peers = subscribed();
        assert_eq!(after(&mut peers, 5, &[5, 7, 3]), Some((3, 1)));
        peers.subscribed_at = None;
        assert_eq!(after(&mut peers, 100, &[]), Some((3, 1)));
        peers.subscribed_at = Some(at(200));
        for second in 200..=210 {
            assert_eq!(after(&mut peers, second, &[5]), Some((3, 1)), "{second}");
        }
        assert_eq!(after(&mut peers, 211, &[5]), Some((1, 0)));
    }

    #[test]
    fn admin_address_follows_the_heartbeat_of_its_process() {
        let mut peers = subscribed();
        let admin = "10.0.0.7:6070";
        peers.on_heartbeat(&format!("{OWN} {admin}"), at(1));
        assert_eq!(peers.heartbeats.len(), 0, "the heartbeat comes first");
        for (message, expected) in [
            (OWN.to_owned(), None),
            (format!("{OWN} {admin}"), Some(admin)),
            (OWN.to_owned(), Some(admin)),
            (format!("{OWN} [::1]:80"), Some("[::1]:80")),
            (format!("{OWN} localhost:80"), None),
        ] {
            peers.on_heartbeat(&message, at(1));
            let expected = expected.map(|admin| admin.parse().expect("an address"));
            assert_eq!(peers.heartbeats[OWN].admin, expected, "{message}");
        }
    }

    #[test]
    fn foreign_messages_are_ignored_and_names_are_bounded() {
        let mut peers = subscribed();
        for message in ["", "-", "hello", "zzzzzzzzzzzzzzzz", "00000000000000000"] {
            peers.on_heartbeat(message, at(1));
        }
        assert_eq!(peers.heartbeats.len(), 0);
        for number in 0..2 * REPLICAS_MAX {
            peers.on_heartbeat(&format!("{number:016x}"), at(1));
        }
        assert_eq!(
            (peers.heartbeats.len(), peers.intervals()),
            (REPLICAS_MAX, 11)
        );
    }
}
