//! How many replicas share the limits, and the rank of this one among them, from heartbeats through
//! Redis.
//!
//! Each process publishes a random name once a second on a channel that all of them subscribe to;
//! nothing is stored. A process that subscribes asks for the heartbeats of the others, which answer
//! at once. A peer that is silent for ten heartbeats is gone, and a process that drains announces
//! it. The rank is the position of the own name in the sorted list. While Redis is unavailable, the
//! last known membership stays: that is when it is needed.
//!
//! ```text
//!  messages   a ?a   b ?b a   a b   a b   a      …      a
//!  replicas   1      2         2     2    2   (10 s)    1
//! ```

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bb8_redis::redis::{self, Cmd, ErrorKind, Pipeline, RedisError, Value};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::shutdown::{Lifecycle, Phase};
use crate::base::time::{self, Clock, Time};
use crate::limits::Share;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::subscription::Subscription;
use crate::store::redis::fallback::change::Change;
use crate::store::redis::fallback::peers::{ASK, HEARTBEAT_INTERVAL, LEAVE, Peers};
use crate::store::redis::topology::node::Node;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// Bytes of a message on the channel. That of a deleted counter has the most: a hash and a time.
// bound heartbeat_bytes_max: the subscription is closed and made again;
// tollgate_store_replies_oversized_total
const HEARTBEAT_BYTES_MAX: usize = 256;
/// Pause after a failed heartbeat, which may last as long as a permission is missing.
// bound heartbeat_reconnect_max: tried again; tollgate_heartbeats_failed_total
const RECONNECT_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// The least time between two answers, each of which all processes receive; it grows like the
/// interval of heartbeats.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of looking for a server to use.
const HOME_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Membership {
    channel: String,
    /// The random name of this process.
    pub(crate) name: String,
    /// REPLICAS, if it is set, until heartbeats say otherwise.
    configured: Option<NonZeroU32>,
    /// Replicas that share the limits, if their number is known; 0 if not.
    replicas: AtomicU32,
    peers: Mutex<Peers>,
    /// Whether all peers have answered, or none will.
    is_settled: watch::Sender<bool>,
    alive: Gauge,
    failed: Counter,
}

impl Membership {
    /// Processes with the same `key_prefix` and database share their limits.
    pub(crate) fn new(
        key_prefix: &str,
        database: i64,
        configured: Option<NonZeroU32>,
        metrics: &Metrics,
    ) -> Self {
        Self {
            channel: format!("{key_prefix}tg:replicas:{database}"),
            name: random_name(),
            configured,
            replicas: AtomicU32::new(configured.map_or(0, NonZeroU32::get)),
            peers: Mutex::default(),
            is_settled: watch::Sender::new(false),
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

    /// This process' share of every limit.
    pub(crate) fn share(&self) -> Share {
        self.peers.lock().known.unwrap_or(self.configured_share())
    }

    /// The number of replicas; `None` until all of them had the time to answer.
    pub(crate) fn replicas(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.replicas.load(Relaxed))
    }

    fn configured_share(&self) -> Share {
        Share::one_of(self.configured.unwrap_or(NonZeroU32::MIN))
    }

    /// Waits until the first share is known, or cannot be.
    pub(crate) async fn settled(&self) {
        // It cannot fail: the sender is here.
        let _ = self.is_settled.subscribe().wait_for(|is| *is).await;
    }

    /// Exchanges heartbeats until the process drains, then announces that it leaves. `home` is the
    /// server to use, if any is healthy; `on_change` is called when an operator has changed a
    /// counter.
    pub(crate) async fn run_heartbeats(
        &self,
        home: impl Fn() -> Option<Arc<Node>>,
        on_change: impl Fn(Change),
        clock: &Clock,
        lifecycle: &Lifecycle,
    ) {
        let exchange = async {
            let mut rejected = 0;
            let mut pauses = Backoff::doubling(HEARTBEAT_INTERVAL, RECONNECT_INTERVAL_MAX);
            loop {
                let Some(node) = home() else {
                    tokio::time::sleep(HOME_INTERVAL).await;
                    continue;
                };
                let failure = self.exchange_heartbeats(&node, &home, &on_change, clock).await.err();
                self.is_settled.send_replace(true);
                if self.peers.lock().unsubscribe(&self.name) {
                    pauses.reset();
                }
                if let Some(error) = failure {
                    self.failed.inc();
                    rejected += u64::from(is_permanent(&error));
                    // Not at once: the first probe finds out about other refused commands, whose
                    // warning names REPLICAS as well.
                    if rejected == 2 && !node.health.refusals.has_any() {
                        let channel = &self.channel;
                        let error = node.address().explain(&error);
                        tracing::warn!(
                            channel,
                            error,
                            "heartbeats rejected; REPLICAS is the replica count during a store outage"
                        );
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
            let leave = format!("{LEAVE}{}", self.name);
            self.announce(&node, std::iter::once(leave)).await;
        }
    }

    /// Publishes messages, which every process receives, this one included.
    pub(crate) async fn announce(&self, node: &Node, messages: impl Iterator<Item = String>) {
        if let Ok(mut connection) = node.connector.connect_background().await {
            let mut commands = Pipeline::new();
            for message in messages {
                commands.add_command(self.publish_command(&message));
            }
            let _ = connection.call(&commands).await;
        }
    }

    /// Returns once another server should be used.
    async fn exchange_heartbeats(
        &self,
        node: &Node,
        home: impl Fn() -> Option<Arc<Node>>,
        on_change: impl Fn(Change),
        clock: &Clock,
    ) -> Result<(), RedisError> {
        let mut messages = node.connector.subscribe(&self.channel).await?;
        let mut connection = node.connector.connect_background().await?;
        self.peers.lock().subscribed_at = Some(clock.now());
        self.ask(&mut connection).await?;
        let mut ticks = time::ticks(HEARTBEAT_INTERVAL);
        ticks.reset();
        let mut tick = 1;
        let mut is_asked = false;
        let mut answered_at = Instant::now();
        loop {
            let answer_at = answered_at + ANSWER_INTERVAL * self.peers.lock().intervals();
            tokio::select! {
                message = self.next(&mut messages, node) => {
                    let message = message?;
                    if let Some(change) = Change::read(&message) {
                        on_change(change);
                        continue;
                    }
                    is_asked |= self.peers.lock().on_message(&message, &self.name, clock.now());
                }
                () = tokio::time::sleep_until(answer_at), if is_asked => {
                    (is_asked, answered_at) = (false, Instant::now());
                    connection.ask(&self.heartbeat()).await?;
                }
                _ = ticks.tick() => {
                    if home().is_none_or(|home| home.id != node.id)
                        || node.relocation.is_outdated(connection.id)
                    {
                        return Ok(());
                    }
                    if tick % self.peers.lock().intervals() == 0 {
                        connection.ask(&self.heartbeat()).await?;
                    }
                    tick = tick.wrapping_add(1);
                    if self.peers.lock().is_isolated(&self.name, clock.now()) {
                        return Err(failure("own heartbeats are not delivered"));
                    }
                }
            }
            self.update(clock.now());
        }
    }

    /// The next message; empty for bytes that are no text.
    async fn next(&self, messages: &mut Subscription, node: &Node) -> Result<String, RedisError> {
        let message = messages.next().await;
        let message = message.ok_or_else(|| failure("the subscription has ended"))?;
        let bytes = message.get_payload_bytes().len();
        if bytes > HEARTBEAT_BYTES_MAX {
            let what = format!("{bytes} bytes on the channel {}", self.channel);
            node.connector.oversized.record(&what);
            return Err(failure("a message is too long (heartbeat_bytes_max)"));
        }
        Ok(message.get_payload().unwrap_or_default())
    }

    /// Sends a heartbeat, and asks for those of the others. The reply has the number of processes
    /// that get the question; on a cluster, of those that subscribe on the same node.
    async fn ask(&self, connection: &mut Connection) -> Result<(), RedisError> {
        let mut commands = self.heartbeat();
        commands.add_command(self.publish_command(&format!("{ASK}{}", self.name)));
        let receivers = match connection.ask(&commands).await?.pop() {
            Some(Value::Int(receivers)) => usize::try_from(receivers).unwrap_or(0),
            _ => 0,
        };
        self.peers.lock().asked = Some(receivers.max(1));
        Ok(())
    }

    fn update(&self, now: Time) {
        let mut peers = self.peers.lock();
        if let Some(share) = peers.update(&self.name, self.configured_share(), now) {
            self.alive.set(share.replicas().get().into());
            if *self.is_settled.borrow() || peers.have_answered() {
                self.replicas.store(share.replicas().get(), Relaxed);
            }
        }
        if peers.have_answered() && !*self.is_settled.borrow() {
            self.is_settled.send_replace(true);
        }
    }

    fn heartbeat(&self) -> Pipeline {
        let mut commands = Pipeline::new();
        commands.add_command(self.publish_command(&self.name));
        commands
    }

    fn publish_command(&self, message: &str) -> Cmd {
        let mut command = redis::cmd("PUBLISH");
        command.arg(&self.channel).arg(message);
        command
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
