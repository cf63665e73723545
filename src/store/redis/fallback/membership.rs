//! How many replicas share the limits, and which of them this process is: learnt from heartbeats
//! through Redis.
//!
//! Each process draws a name when it starts, and publishes it once a second on a channel to which
//! all of them listen; Redis keeps nothing of it, so its keys stay what they are without us.
//! Whoever was silent for ten beats is gone; whoever drains says so. The place of its name
//! among all of them is the process' rank. While Redis is away, what was last known stays: that is
//! when it is needed.
//!
//! ```text
//!  heard        a b c   a b c   a b      …       a b
//!  taken for      3       3      3     (10 s)     2
//! ```

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
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

/// How many replicas are counted. More than a thousand processes on one Redis are counted as a
/// thousand.
pub const REPLICAS_MAX: usize = 1_000;
/// How often a process says that it lives. Everybody hears everybody, so a hundred of them say it
/// half as often, and a thousand every ten seconds or so.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
const REPLICAS_PER_INTERVAL: usize = 100;
/// How long to pause between attempts to meet that fail, at most. They may fail for as long as a
/// permission is missing.
const RECONNECT_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Whoever has missed so many beats is gone: a failover, or a process that stood still for a
/// moment, is no reason to count anew.
const BEATS_MISSED_MAX: u32 = 10;
/// So many beats of everybody else are heard before what was heard counts.
const BEATS_FIRST: u32 = 2;
/// What stands before the name of somebody who leaves.
const LEAVE: char = '-';

/// What is known of the other replicas.
#[derive(Debug)]
pub struct Membership {
    /// Where they meet.
    channel: String,
    /// What this process is called there.
    name: String,
    /// Where nothing was ever learnt: REPLICAS.
    configured: Share,
    peers: Mutex<Peers>,
    alive: Gauge,
    failed: Counter,
}

/// Who was heard.
#[derive(Debug, Default)]
struct Peers {
    /// When each of them last said something.
    heard: BTreeMap<String, Time>,
    /// Since when this process listens; nobody is missed for what they said while it did not.
    listening_since: Option<Time>,
    known: Option<Share>,
}

impl Membership {
    /// Nothing was learnt yet. Whoever has the same `key_prefix` and counts in the same database
    /// meets; `configured` is how many there are until then.
    pub fn new(key_prefix: &str, database: i64, configured: Share, metrics: &Metrics) -> Self {
        Self {
            channel: format!("{key_prefix}tg:replicas:{database}"),
            name: format!("{:016x}", fastrand::u64(..)),
            configured,
            peers: Mutex::default(),
            alive: metrics
                .gauge("tollgate_replicas", "Replicas that share the limits, by their heartbeats in Redis; 0 if none was ever heard."),
            failed: metrics.counter("tollgate_heartbeats_failed_total", "Heartbeats that Redis did not take, or did not pass on."),
        }
    }

    /// This process' share of every limit.
    pub fn share(&self) -> Share {
        self.peers().known.unwrap_or(self.configured)
    }

    /// Beats and listens until the process drains, and then says that it leaves. `home` is the
    /// server by which that is done, if there is one.
    pub async fn run_heartbeats(
        &self,
        home: impl Fn() -> Option<Arc<Node>>,
        clock: &Clock,
        lifecycle: &Lifecycle,
    ) {
        let meeting = async {
            let mut is_told = false;
            let mut pauses = Backoff::doubling(BEAT_INTERVAL, RECONNECT_INTERVAL_MAX);
            loop {
                let failure = self.exchange_heartbeats(&home, clock).await;
                let has_met = self.peers().listening_since.take().is_some();
                if has_met || failure.is_none() {
                    pauses.reset();
                }
                if let Some(error) = failure {
                    self.failed.inc();
                    if is_lasting(&error) && !std::mem::replace(&mut is_told, true) {
                        let channel = &self.channel;
                        tracing::warn!(channel, %error, "the number of replicas cannot be learnt; while the store is gone REPLICAS counts");
                    }
                }
                tokio::time::sleep(pauses.pause()).await;
            }
        };
        tokio::select! {
            () = meeting => {}
            () = lifecycle.reached(Phase::Draining) => {}
        }
        // Whoever is not told of it waits until this one has been silent.
        if let Some(node) = home()
            && let Ok(mut connection) = node.connector().connect_background().await
        {
            let _ = connection
                .call(&self.says(&format!("{LEAVE}{}", self.name)))
                .await;
        }
    }

    /// Beats and listens until that no longer works, or is to be done elsewhere.
    async fn exchange_heartbeats(
        &self,
        home: impl Fn() -> Option<Arc<Node>>,
        clock: &Clock,
    ) -> Option<RedisError> {
        let node = home()?;
        let opened = async {
            let heard = node.connector().listen(&self.channel).await?;
            Ok::<_, RedisError>((heard, node.connector().connect_background().await?))
        };
        let (mut heard, mut connection) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return Some(error),
        };
        self.peers().listening_since = Some(clock.now());
        let mut beat = tokio::time::interval(BEAT_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0;
        loop {
            tokio::select! {
                message = heard.next() => match message {
                    Some(message) => self.on_heartbeat(&message.get_payload::<String>().unwrap_or_default(), clock.now()),
                    None => return Some(RedisError::from((ErrorKind::Io, "the connection to listen on has ended"))),
                },
                _ = beat.tick() => {
                    if home().is_none_or(|home| home.id() != node.id()) || node.relocation.is_outdated(connection.id()) {
                        return None;
                    }
                    if ticks % self.peers().interval() == 0 {
                        let said = connection.call(&self.says(&self.name)).await;
                        if let Err(error) = said.and_then(|values| values.into_iter().try_for_each(|value| value.extract_error().map(drop))) {
                            return Some(error);
                        }
                    }
                    ticks = ticks.wrapping_add(1);
                    self.learn(clock.now());
                    if self.peers().is_isolated(&self.name, clock.now()) {
                        return Some(RedisError::from((ErrorKind::Io, "what is published does not come back")));
                    }
                }
            }
        }
    }

    fn says(&self, what: &str) -> Pipeline {
        let mut commands = Pipeline::with_capacity(1);
        commands.cmd("PUBLISH").arg(&self.channel).arg(what);
        commands
    }

    fn on_heartbeat(&self, said: &str, now: Time) {
        self.peers().on_heartbeat(said, now);
    }

    fn learn(&self, now: Time) {
        if let Some(share) = self.peers().learn(&self.name, now) {
            self.alive.set(share.replicas().get().into());
        }
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock()
    }
}

impl Peers {
    /// So many [`BEAT_INTERVAL`]s are between two beats.
    fn interval(&self) -> u32 {
        u32::try_from(1 + self.heard.len() / REPLICAS_PER_INTERVAL).unwrap_or(u32::MAX)
    }

    fn beats(&self, count: u32) -> Span {
        Span::from(BEAT_INTERVAL * self.interval() * count)
    }

    /// A name, or what is said by one who leaves. Anything else is nobody's.
    fn on_heartbeat(&mut self, said: &str, now: Time) {
        let is_name =
            |name: &str| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        match said.strip_prefix(LEAVE) {
            Some(name) => drop(self.heard.remove(name)),
            None if is_name(said)
                && (self.heard.len() < REPLICAS_MAX || self.heard.contains_key(said)) =>
            {
                self.heard.insert(said.to_owned(), now);
            }
            None => {}
        }
    }

    /// Whether it should have heard itself by now.
    fn is_isolated(&self, own: &str, now: Time) -> bool {
        let heard = self
            .heard
            .get(own)
            .into_iter()
            .chain(&self.listening_since)
            .max();
        heard.is_some_and(|heard| now.since(*heard) > self.beats(BEATS_MISSED_MAX))
    }

    /// Who is there at this time: what was heard, once everybody had the time to be. Whoever does
    /// not hear itself hears nobody.
    fn learn(&mut self, own: &str, now: Time) -> Option<Share> {
        if let Some(since) = self.listening_since
            && now.since(since) >= self.beats(BEATS_FIRST)
        {
            let silent = self.beats(BEATS_MISSED_MAX);
            self.heard
                .retain(|_, heard| now.since((*heard).max(since)) <= silent);
            if let Some(rank) = self.heard.keys().position(|name| name == own) {
                let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
                let replicas = NonZeroU32::new(number(self.heard.len())).unwrap_or(NonZeroU32::MIN);
                self.known = Some(Share::ranked(replicas, number(rank)));
            }
        }
        self.known
    }
}

/// Whether somebody has to do something about it, other than for Redis to work again.
fn is_lasting(error: &RedisError) -> bool {
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

    /// Everybody says something, and this is what is learnt.
    fn hear(peers: &mut Peers, second: u64, numbers: &[u64]) -> Option<(u32, u32)> {
        for number in numbers {
            peers.on_heartbeat(&name(*number), at(second));
        }
        peers.learn(OWN, at(second)).map(|share| {
            (
                share.replicas().get(),
                (0..9)
                    .find(|rank| share == Share::ranked(share.replicas(), *rank))
                    .expect("a rank"),
            )
        })
    }

    #[test]
    fn more_count_at_once_and_fewer_when_they_were_silent_for_ten_beats() {
        let mut peers = Peers {
            listening_since: Some(at(0)),
            ..Peers::default()
        };
        assert_eq!(
            hear(&mut peers, 1, &[5]),
            None,
            "others may be about to speak"
        );
        assert_eq!(hear(&mut peers, 2, &[5, 7, 3]), Some((3, 1)));
        assert_eq!(hear(&mut peers, 3, &[5, 7, 1]), Some((4, 2)));
        for second in 4..=12 {
            assert_eq!(
                hear(&mut peers, second, &[5, 7]),
                Some((4, 2)),
                "at {second}"
            );
        }
        assert_eq!(hear(&mut peers, 13, &[5, 7]), Some((3, 1)));
        assert_eq!(hear(&mut peers, 14, &[5, 7]), Some((2, 0)));
        peers.on_heartbeat(&format!("-{}", name(7)), at(14));
        assert_eq!(
            hear(&mut peers, 14, &[5]),
            Some((1, 0)),
            "it said that it leaves"
        );
    }

    #[test]
    fn what_was_known_stays_while_nobody_can_be_heard_and_until_everybody_had_the_time_to_speak() {
        let mut peers = Peers {
            listening_since: Some(at(0)),
            ..Peers::default()
        };
        assert_eq!(hear(&mut peers, 5, &[5, 7, 3]), Some((3, 1)));
        peers.listening_since = None;
        assert_eq!(hear(&mut peers, 100, &[]), Some((3, 1)));
        peers.listening_since = Some(at(200));
        for second in 200..=210 {
            assert_eq!(hear(&mut peers, second, &[5]), Some((3, 1)), "at {second}");
        }
        assert_eq!(hear(&mut peers, 211, &[5]), Some((1, 0)));
    }

    #[test]
    fn what_nobody_of_us_says_is_not_listened_to() {
        let mut peers = Peers {
            listening_since: Some(at(0)),
            ..Peers::default()
        };
        for said in ["", "-", "hello", "zzzzzzzzzzzzzzzz", "00000000000000000"] {
            peers.on_heartbeat(said, at(1));
        }
        assert_eq!(peers.heard.len(), 0);
        for number in 0..2 * REPLICAS_MAX {
            peers.on_heartbeat(&format!("{number:016x}"), at(1));
        }
        assert_eq!((peers.heard.len(), peers.interval()), (REPLICAS_MAX, 11));
    }
}
