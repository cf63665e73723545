//! Counts in Redis, so that replicas share what they count: over-limit cache, breaker, batch. An ask goes through them in that order.
//!
//! A [`Node`] is what a process knows of its server; a [`Remote`] is one runtime's way to it. Whatever happens, an answer is there when
//! the caller's time is over: a verdict, or why there is none.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bb8::ManageConnection as _;
use redis::RedisError;
use smallvec::SmallVec;
use tokio::time::MissedTickBehavior;

use crate::algorithm::fixed_window;
use crate::check::{Ask, Check, Decisions, Hits, StoreError, Verdict, Verdicts};
use crate::limit::Share;
use crate::shutdown::Lifecycle;
use crate::store::full_logs;
use crate::store::redis::address::Address;
use crate::store::redis::batch::{BATCH_SIZE_MAX, Batcher, Told};
use crate::store::redis::clock::RedisClock;
use crate::store::redis::connection::{Connections, Manager};
use crate::store::redis::hand_back::Returned;
use crate::store::redis::health::{Health, Trouble};
use crate::store::redis::last_seen::LastSeen;
use crate::store::redis::over_limit_cache::OverLimitCache;
use crate::store::redis::replicas::Replicas;
use crate::store::redis::script::{Line, Said};
use crate::store::redis::stand_in::{Ended, HAND_BACK_TIME_MAX, StandIn, Undecided};
use crate::telemetry::metric::{Counter, Gauge, Histogram, Metrics};
use crate::time::{Clock, Span, Time};

pub mod address;
pub mod batch;
pub mod breaker;
pub mod clock;
pub mod connection;
pub mod deployment;
pub mod hand_back;
pub mod health;
pub mod last_seen;
pub mod over_limit_cache;
pub mod replicas;
pub mod script;
pub mod settings;
pub mod slots;
pub mod stand_in;
pub mod tls;
pub mod trip;

/// How often what is still owed to a server that serves is handed back.
const HAND_BACK_INTERVAL: Duration = Duration::from_millis(500);

/// What a process needs to know of its server.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Where it is, and how to be let in. Shown without credentials.
    pub address: Address,
    /// How long making a connection may take.
    pub connect_timeout: Span,
    /// How long a call may take.
    pub store_timeout: Span,
    /// The process may only serve while the server can be reached.
    pub required: bool,
    /// The longest time that the key of a window may outlive it, to spread expiry; zero for none.
    pub expiration_jitter_max: Span,
    /// How much memory remembered refusals may take; zero for none.
    pub over_limit_cache_bytes: u64,
    /// How many replicas share the limits, where heartbeats do not say.
    pub replicas: NonZeroU32,
    /// What all keys begin with.
    pub key_prefix: Box<str>,
}

/// One server, for the whole process.
#[derive(Debug)]
pub struct Node {
    manager: Manager,
    store_timeout: Span,
    required: bool,
    expiration_jitter_max: Span,
    over_limit_cache: Option<OverLimitCache>,
    last_seen: LastSeen,
    replicas: Replicas,
    stand_in: StandIn,
    health: Arc<Health>,
    redis_clock: RedisClock,
    clock: Clock,
    metrics: NodeMetrics,
}

#[derive(Debug)]
struct NodeMetrics {
    seconds: Histogram,
    checks: Histogram,
    in_flight: Gauge,
    full: Counter,
    abandoned: Counter,
    ambiguous: Counter,
    unknown_script: Counter,
    full_logs: Counter,
}

/// What the over-limit cache knows of each check.
type Known = SmallVec<[Option<Verdict>; 2]>;

/// One runtime's way to the server.
#[derive(Debug, Clone)]
pub struct Remote {
    node: Arc<Node>,
    batcher: Batcher,
}

impl Node {
    /// Nothing is connected yet. With a clock that is set by hand, Redis is told the time instead of being asked.
    ///
    /// # Errors
    /// An address that the client cannot use.
    pub fn new(options: NodeOptions, clock: Clock, metrics: &Metrics) -> Result<Self, RedisError> {
        let NodeOptions { connect_timeout, store_timeout, .. } = options;
        Ok(Self {
            manager: Manager::new(options.address, connect_timeout.into(), store_timeout.into(), Connections::new(metrics))?,
            store_timeout,
            required: options.required,
            expiration_jitter_max: options.expiration_jitter_max,
            over_limit_cache: (options.over_limit_cache_bytes > 0).then(|| OverLimitCache::new(options.over_limit_cache_bytes, metrics)),
            last_seen: LastSeen::new(metrics),
            replicas: Replicas::new(&options.key_prefix, Share::one_of(options.replicas), metrics),
            stand_in: StandIn::new(metrics),
            health: Arc::new(Health::new(metrics)),
            redis_clock: RedisClock::default(),
            clock,
            metrics: NodeMetrics::new(metrics),
        })
    }

    /// A way to it for the runtime that this is called on.
    pub fn open(self: Arc<Self>) -> Remote {
        Remote { batcher: Batcher::start(self.clone()), node: self }
    }

    /// Probes the server, tells of its troubles, and keeps what is counted in its place in order, for as long as the process lives.
    pub async fn look_after(self: Arc<Self>, lifecycle: Lifecycle) {
        let (node, manager) = (self.clone(), || Some(self.manager.clone()));
        let before_it_is_asked = move || {
            let node = node.clone();
            async move { node.hand_back(HAND_BACK_TIME_MAX).await != Ended::Gone }
        };
        tokio::join!(
            self.health.clone().look_after(self.manager.clone(), self.required, lifecycle.clone(), before_it_is_asked),
            self.replicas.look_after(manager, &self.clock, &lifecycle),
            self.stand_in.look_after(self.clock.clone()),
            self.hand_back_the_rest(),
        );
    }

    /// Whether the server was ever seen to be there.
    pub fn has_come(&self) -> bool {
        self.health.has_come()
    }

    /// Where it is, as it may be shown.
    pub fn address(&self) -> &Address {
        self.manager.address()
    }

    /// Whether the process may only serve while the server can be reached.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// How many hits were in use, and when, as far as the server last said.
    pub fn last_seen(&self, check: &Check) -> Option<(u64, Time)> {
        self.last_seen.recall(self.last_seen.hash(&check.key))
    }

    /// How often the server, once given up, was there again.
    pub fn recoveries(&self) -> u64 {
        self.health.recoveries()
    }

    /// Decides what the server has no verdict on, for the reason that stands beside each check, against this replica's share.
    pub fn count_alone(&self, checks: &[(&Check, StoreError)], together: bool, now: Time) -> Verdicts {
        let undecided = checks.iter().map(|&(check, cause)| Undecided {
            check,
            may_be_counted: cause == StoreError::Late,
            seen: self.last_seen(check).map(|(used, seen)| (used, self.redis_clock.at(seen))),
            epoch: self.recoveries(),
        });
        let undecided: SmallVec<[Undecided<'_>; 2]> = undecided.collect();
        self.stand_in.count(&undecided, self.replicas.share(), together, self.redis_clock.at(now))
    }

    /// Charges the server for what was counted without it.
    async fn hand_back(&self, within: Span) -> Ended {
        if !self.stand_in.owes() {
            return Ended::Paid;
        }
        let Ok(link) = self.manager.connect().await else { return Ended::Gone };
        let (last_seen, clock, redis_clock) = (&self.last_seen, &self.clock, &self.redis_clock);
        let jitter = self.jitter(redis_clock.at(clock.now()));
        let mut returned = Returned { link, owns: |_: &Check| true, last_seen, clock, redis_clock, jitter };
        self.stand_in.hand_back(&mut returned, within).await
    }

    /// What was refused, what came in between, and what there was no time for: handed back while the server serves.
    async fn hand_back_the_rest(&self) {
        let mut interval = tokio::time::interval(HAND_BACK_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if self.health.breaker.is_open() {
                continue;
            }
            if self.hand_back(Span::from_secs(u64::MAX)).await == Ended::Paid && !self.health.breaker.is_open() {
                self.stand_in.forget_before(self.recoveries());
            }
        }
    }

    /// By how much keys of windows outlive them. Any number will do that differs from time to time. In between it stays, so that lines of a
    /// call are alike (see Script::command).
    fn jitter(&self, at: Time) -> Span {
        let any = (at.as_micros() >> 14).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        Span::from_secs(any % self.expiration_jitter_max.ceil_secs().max(1))
    }

    fn line(&self, check: &Check, at: Time, apart: bool) -> Line {
        let hash = self.last_seen.hash(&check.key);
        let jitter = self.jitter(at);
        let mut line = Line::new(check, hash, at, apart, jitter);
        if line.is_window() {
            let window = |at: Time| fixed_window::start(&check.limit, at);
            let seen = self.last_seen.recall(hash);
            line.set_known(seen.is_some_and(|(used, seen)| used > 0 && window(self.redis_clock.at(seen)) == window(at)));
        }
        line
    }

    /// What the server said of these checks means this.
    fn conclude(&self, checks: &[Check], told: &Told) -> Decisions {
        let conclude = |((check, line), said): ((&Check, &Line), &Result<Said, StoreError>)| {
            let said = said.as_ref().map_err(|error| *error)?;
            let verdict = line.verdict(check, told.now, said);
            if let Some(cache) = &self.over_limit_cache {
                let of_one = || line.verdict_of(check, Hits::Add(1).into(), true, told.now, said);
                cache.learn(check, &verdict, of_one, self.clock.now());
            }
            self.metrics.full_logs.inc_by(said.is_of_full_log(check).into());
            Ok(self.as_of_now(verdict, told.now))
        };
        checks.iter().zip(&told.lines).zip(&told.said).map(conclude).collect()
    }

    /// A slot that was booked when it was `redis_now` there begins a little sooner as seen from here: the reply took its time.
    fn as_of_now(&self, verdict: Verdict, redis_now: Time) -> Verdict {
        if verdict.start_after == Span::ZERO {
            return verdict;
        }
        let passed = self.redis_clock.at(self.clock.now()).since(redis_now);
        Verdict { start_after: verdict.start_after.less(passed), ..verdict }
    }
}

impl NodeMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            seconds: metrics.latency("tollgate_store_call_seconds", "How long one call to Redis took, with all of its checks.", &[]),
            checks: metrics.sizes("tollgate_store_batch_checks", "How many checks went out with one call to Redis."),
            in_flight: metrics.gauge("tollgate_store_calls_in_flight", "Calls to Redis that have not been answered yet."),
            full: metrics.counter(
                "tollgate_store_batches_full_total",
                "Calls to Redis that took as many checks as one may have (batch_size_max), so that others had to wait.",
            ),
            full_logs: full_logs("store", metrics),
            abandoned: metrics.counter(
                "tollgate_store_abandoned_total",
                "Requests whose caller stopped waiting before they were sent to Redis; they were not counted.",
            ),
            ambiguous: metrics.counter(
                "tollgate_store_ambiguous_total",
                "Requests of which nobody knows whether Redis has counted them: they were sent, but the reply never came or came too late.",
            ),
            unknown_script: metrics.counter(
                "tollgate_store_script_unknown_total",
                "Calls that had to send the whole script, because Redis had forgotten it: after a restart, a failover or a flush.",
            ),
        }
    }
}

impl Remote {
    /// The server.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Answers every check of an ask, in order, before its deadline and within STORE_TIMEOUT.
    pub async fn decide(&self, ask: &Ask, now: Time) -> Decisions {
        let patience = ask.deadline.map_or(self.node.store_timeout, |deadline| deadline.since(now).min(self.node.store_timeout));
        if let Some(cache) = &self.node.over_limit_cache {
            let known: Known = ask.checks.iter().map(|check| cache.get(check, now)).collect();
            if known.iter().any(Option::is_some) {
                // On the heap, so that calls to which nothing is known are small.
                return Box::pin(self.ask_for_the_rest(ask, known, patience, now)).await;
            }
        }
        self.ask_redis(&ask.checks, ask.together, patience, now).await
    }

    /// Asks for what is not known already.
    async fn ask_for_the_rest(&self, ask: &Ask, known: Known, patience: Span, now: Time) -> Decisions {
        let vetoed = ask.together && ask.checks.iter().zip(&known).any(|(check, known)| check.veto && known.is_some());
        let unknown = ask.checks.iter().zip(&known).filter(|(_, known)| known.is_none());
        let hits = |check: &Check| if vetoed { Hits::Look } else { check.hits };
        let unknown: Vec<Check> = unknown.map(|(check, _)| Check { hits: hits(check), ..check.clone() }).collect();
        let told = self.ask_redis(&unknown, ask.together && !vetoed, patience, now).await;
        let mut told = told.into_iter();
        known.into_iter().map(|known| known.map_or_else(|| told.next().unwrap_or(Err(StoreError::Refused)), Ok)).collect()
    }

    async fn ask_redis(&self, checks: &[Check], together: bool, patience: Span, now: Time) -> Decisions {
        if checks.is_empty() {
            return Decisions::new();
        }
        if checks.len() <= BATCH_SIZE_MAX || together {
            return self.ask_once(checks, together, patience, now).await;
        }
        // One after the other: the same key may come again, and is to see what it did before.
        let mut decisions = Decisions::new();
        for part in checks.chunks(BATCH_SIZE_MAX) {
            let gone = self.node.clock.now().since(now);
            decisions.extend(self.ask_once(part, false, patience.less(gone), now).await);
        }
        decisions
    }

    async fn ask_once(&self, checks: &[Check], together: bool, patience: Span, now: Time) -> Decisions {
        let node = &self.node;
        if node.health.breaker.is_open() {
            return checks.iter().map(|_| Err(StoreError::Unreachable)).collect();
        }
        let at = node.redis_clock.at(now);
        let together = together && checks.len() > 1;
        let lines: Vec<Line> = checks.iter().map(|check| node.line(check, at, !together)).collect();
        let told = match self.told(lines, together, patience).await {
            Ok(told) => told,
            Err(error) => return checks.iter().map(|_| Err(error)).collect(),
        };
        node.conclude(checks, &told)
    }

    async fn told(&self, lines: Vec<Line>, together: bool, patience: Span) -> Result<Told, StoreError> {
        if patience == Span::ZERO {
            return Err(StoreError::Late);
        }
        let asking = self.batcher.ask(lines, together);
        tokio::time::timeout(Duration::from(patience), asking).await.unwrap_or_else(|_| {
            self.node.health.see(Trouble::Slow, "no reply within the caller's time");
            Err(StoreError::Late)
        })
    }
}
