//! How many replicas share the limits, and which of them this process is: learnt from heartbeats in Redis.
//!
//! Each process has a number, drawn when it starts, and once a second puts it into one sorted set, with the time by Redis' clock. Whoever
//! was silent for [`SILENT_FOR`] is taken out; whoever drains takes itself out. The place of its number among all of them is the process'
//! rank. While Redis is away, what was last known stays: that is when it is needed.
//!
//! ```text
//!  heard      3  3  3  1  2  3        3  2  2  2  …  2
//!  taken for  3  3  3  3  3  3        3  3  3  3  …  2    (10 s later)
//!                      ^ Redis began anew, and the others have yet to come
//! ```

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bb8::ManageConnection as _;
use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::MissedTickBehavior;

use crate::chance;
use crate::limit::Share;
use crate::shutdown::{Lifecycle, Phase};
use crate::store::redis::clock::RedisClock;
use crate::store::redis::connection::{Link, Manager};
use crate::store::redis::script;
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::time::{Clock, Span, Time};

/// How many replicas are counted. More than a thousand processes on one Redis are counted as a thousand.
pub const REPLICAS_MAX: usize = 1_000;
/// How often a process says that it lives.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Whoever said nothing for so long is gone. Ten beats: a failover, or a process that stood still for a moment, is no reason to count anew.
const SILENT_FOR: Span = Span::from_secs(10);
/// A beat that takes longer is given up: the next one is due.
const BEAT_TIMEOUT: Duration = Duration::from_secs(1);
/// Beats further apart say nothing of the time in between.
const GAP_MAX: Span = Span::from_secs(3);

/// What is known of the other replicas.
#[derive(Debug)]
pub struct Replicas {
    /// Where in Redis they meet.
    key: String,
    /// This process' number there.
    id: String,
    /// Where nothing was ever learnt: REPLICAS.
    configured: Share,
    members: Mutex<Members>,
    /// What time it is at Redis, which need not be the one that any other call goes to.
    redis_clock: RedisClock,
    alive: Gauge,
    failed: Counter,
}

/// How many there are, as far as was heard.
#[derive(Debug, Clone, Copy, Default)]
struct Members {
    known: Option<Share>,
    /// When the last beat was heard.
    heard: Time,
    /// Since when there were fewer, and how many at most.
    fewer: Option<(Time, u32)>,
}

impl Replicas {
    /// Nothing was learnt yet. Keys begin with `key_prefix`; `configured` is how many there are until then.
    pub fn new(key_prefix: &str, configured: Share, metrics: &Metrics) -> Self {
        Self {
            key: format!("{key_prefix}tg:replicas"),
            id: format!("{:016x}", chance::any()),
            configured,
            members: Mutex::default(),
            redis_clock: RedisClock::default(),
            alive: metrics
                .gauge("tollgate_replicas", "Replicas that share the limits, by their heartbeats in Redis; 0 if none was ever heard."),
            failed: metrics.counter("tollgate_heartbeats_failed_total", "Heartbeats that Redis did not take."),
        }
    }

    /// Where in Redis they meet.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// This process' share of every limit.
    pub fn share(&self) -> Share {
        self.members().known.unwrap_or(self.configured)
    }

    /// Beats until the process drains, and then takes itself out. `home` says who connects to where [`Self::key`] lives, if that is known.
    pub async fn look_after(&self, home: impl Fn() -> Option<Manager>, clock: &Clock, lifecycle: &Lifecycle) {
        let beating = async {
            let mut interval = tokio::time::interval(BEAT_INTERVAL);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut link = None;
            loop {
                interval.tick().await;
                link = self.beat(link, &home, clock).await;
            }
        };
        tokio::select! {
            () = beating => {}
            () = lifecycle.reached(Phase::Draining) => {}
        }
        // Whoever is not told of it waits until this one has been silent.
        let _ = tokio::time::timeout(BEAT_TIMEOUT, self.leave(&home)).await;
    }

    /// Says that this process lives. Gives the connection back as long as it is good.
    async fn beat(&self, link: Option<Link>, home: impl Fn() -> Option<Manager>, clock: &Clock) -> Option<Link> {
        let beating = async {
            let mut link = match link {
                Some(link) => link,
                None => self.connect(home, clock).await?,
            };
            let values = link.call(&self.beats(self.redis_clock.at(clock.now()))).await?;
            let (ids, at) = read(values)?;
            Ok::<_, RedisError>((link, ids, at))
        };
        let sent = clock.now();
        let beaten = tokio::time::timeout(BEAT_TIMEOUT, beating).await;
        let received = clock.now();
        match beaten {
            Ok(Ok((link, ids, at))) => {
                self.redis_clock.hear(at, sent, received);
                self.hear(&ids, received);
                Some(link)
            }
            Ok(Err(error)) => {
                self.failed.inc();
                if is_lasting(&error) && self.members().known.is_none() {
                    tracing::warn!(key = self.key, %error, "the number of replicas cannot be learnt; while the store is gone REPLICAS counts");
                }
                None
            }
            Err(_) => {
                self.failed.inc();
                None
            }
        }
    }

    /// A new connection, and what time it is there: the first beat has to say.
    async fn connect(&self, home: impl Fn() -> Option<Manager>, clock: &Clock) -> Result<Link, RedisError> {
        let mut link = home().ok_or_else(nowhere)?.connect().await?;
        let mut time = Pipeline::new();
        time.cmd("TIME");
        let sent = clock.now();
        let values = link.call(&time).await?;
        let at = values.first().and_then(script::time).ok_or_else(strange)?;
        self.redis_clock.hear(at, sent, clock.now());
        Ok(link)
    }

    async fn leave(&self, home: impl Fn() -> Option<Manager>) -> Result<(), RedisError> {
        let mut leaving = Pipeline::new();
        leaving.cmd("ZREM").arg(&self.key).arg(&self.id);
        home().ok_or_else(nowhere)?.connect().await?.call(&leaving).await.map(drop)
    }

    /// All that a beat does, in one trip. Commands and no script: they stand in nobody's way, and need no text to be known.
    fn beats(&self, at: Time) -> Pipeline {
        let millis = at.as_micros() / 1_000;
        let silent = SILENT_FOR.as_micros() / 1_000;
        let mut commands = Pipeline::new();
        commands.cmd("ZREMRANGEBYSCORE").arg(&self.key).arg("-inf").arg(millis.saturating_sub(silent));
        // From the future: the clock of Redis was put back.
        commands.cmd("ZREMRANGEBYSCORE").arg(&self.key).arg(millis + silent).arg("+inf");
        commands.cmd("ZADD").arg(&self.key).arg(millis).arg(&self.id);
        commands.cmd("ZRANGE").arg(&self.key).arg(0).arg(REPLICAS_MAX - 1);
        commands.cmd("PEXPIRE").arg(&self.key).arg(2 * silent);
        commands.cmd("TIME");
        commands
    }

    /// Those who live, at that time.
    fn hear(&self, ids: &[String], now: Time) {
        let rank = ids.iter().filter(|id| **id < self.id).count();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let known = self.members().hear(number(ids.len()).max(1), number(rank), now);
        self.alive.set(known.replicas().get().into());
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// So many were heard, and this one is there in that place. More count at once; fewer, when there were fewer for [`SILENT_FOR`]: a
    /// Redis that began anew, or was away, would else tell whoever comes first that it is alone.
    fn hear(&mut self, count: u32, rank: u32, now: Time) -> Share {
        let is_close = now.since(self.heard) <= GAP_MAX;
        self.heard = now;
        let known = self.known.map_or(0, |share| share.replicas().get());
        let mut replicas = known.max(count);
        if count >= known {
            self.fewer = None;
        } else {
            let (since, most) = self.fewer.filter(|_| is_close).map_or((now, count), |(since, most)| (since, most.max(count)));
            self.fewer = Some((since, most));
            if now.since(since) >= SILENT_FOR {
                replicas = most;
                self.fewer = (count < most).then_some((now, count));
            }
        }
        let share = Share::ranked(NonZeroU32::new(replicas).unwrap_or(NonZeroU32::MIN), rank);
        self.known = Some(share);
        share
    }
}

/// Reads what came back: who lives, and what time it is there.
fn read(values: Vec<Value>) -> Result<(Vec<String>, Time), RedisError> {
    let mut values = values.into_iter().map(Value::extract_error).collect::<Result<Vec<_>, _>>()?;
    let time = values.pop().as_ref().and_then(script::time).ok_or_else(strange)?;
    let ids = values.into_iter().nth(3).ok_or_else(strange)?;
    Ok((redis::from_redis_value(ids)?, time))
}

/// Whether somebody has to do something about it, other than for Redis to work again.
fn is_lasting(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::NoPerm)) || error.code() == Some("WRONGTYPE")
}

fn strange() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "a heartbeat's reply has another shape"))
}

fn nowhere() -> RedisError {
    RedisError::from((ErrorKind::Io, "nobody knows where heartbeats go"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(members: &mut Members, second: u64, count: u32) -> u32 {
        members.hear(count, 0, Time::from_micros(1_700_000_000_000_000).plus(Span::from_secs(second))).replicas().get()
    }

    #[test]
    fn more_count_at_once_and_fewer_when_they_were_fewer_for_ten_seconds() {
        let mut members = Members::default();
        // The second, how many are heard of, and how many count.
        for (second, heard, counted) in [(0, 1, 1), (1, 3, 3), (2, 1, 3), (3, 2, 3)] {
            assert_eq!(hear(&mut members, second, heard), counted, "at {second}");
        }
        for second in 4..12 {
            assert_eq!(hear(&mut members, second, 1), 3, "at {second}");
        }
        assert_eq!(hear(&mut members, 12, 1), 2, "as many as there ever were meanwhile");
        for second in 13..22 {
            assert_eq!(hear(&mut members, second, 1), 2, "at {second}");
        }
        assert_eq!(hear(&mut members, 22, 1), 1);
        assert_eq!(hear(&mut members, 23, 4), 4);
    }

    #[test]
    fn whoever_comes_first_after_an_outage_is_not_alone() {
        let mut members = Members::default();
        hear(&mut members, 0, 3);
        assert_eq!(hear(&mut members, 1, 2), 3);
        // Redis was away for a minute: it has heard of nobody since.
        assert_eq!(hear(&mut members, 61, 1), 3);
        assert_eq!(hear(&mut members, 62, 3), 3);
        assert_eq!(hear(&mut members, 63, 2), 3);
    }

    #[test]
    fn a_rank_is_taken_as_it_is_heard() {
        let mut members = Members::default();
        let two = NonZeroU32::new(2).expect("two is not zero");
        assert_eq!(members.hear(2, 1, Time::default()), Share::ranked(two, 1));
        assert_eq!(members.hear(1, 0, Time::default()), Share::ranked(two, 0));
    }
}
