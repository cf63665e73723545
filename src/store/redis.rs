//! Counts in Redis, so that replicas share what they count: over-limit cache, breaker, batch. An
//! ask goes through them in that order.
//!
//! [`Redis`] is what a process knows of its servers; a [`RedisClient`] is one runtime's way to them.
//! Whatever happens, an answer is there when the caller's time is over: a verdict, or why there is
//! none.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use redis::RedisError;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::algorithm::Counter;
use crate::algorithm::charge::Charge;
use crate::check::{Check, CheckError, CheckRequest, Hits, Verdict, Verdicts};
use crate::limit::{Algorithm, Limit, Share};
use crate::shutdown::Lifecycle;
use crate::store::full_logs;
use crate::store::redis::connect::connection::{ConnectionMetrics, Timeouts};
use crate::store::redis::connect::dialer::Dialer;
use crate::store::redis::fallback::local::{
    LocalFallback, Undecided, WRITE_BACK_TIME_MAX, WriteBackResult,
};
use crate::store::redis::fallback::membership::Membership;
use crate::store::redis::fallback::usage_cache::UsageCache;
use crate::store::redis::fallback::write_back::ServerTarget;
use crate::store::redis::lifetimes::UnconfirmedLifetimes;
use crate::store::redis::over_limit_cache::OverLimitCache;
use crate::store::redis::script::{CheckReply, EncodedCheck, Mode, WindowCommand};
use crate::store::redis::topology::deployment::PoolOptions;
use crate::store::redis::topology::health::{HealthMetrics, PROBE_INTERVAL};
use crate::store::redis::topology::node::{Node, NodeParts};
use crate::store::redis::topology::pool::{NodePool, TopologyMetrics};
use crate::store::redis::topology::snapshot::Topology;
use crate::telemetry::metric::{self, Gauge, Histogram, Metrics};
use crate::time::{Clock, Span, Time};

pub use remote::RedisClient;

pub mod batch;
pub mod clock;
pub mod connect;
pub mod direct_mapped;
pub mod fallback;
pub(crate) mod lifetimes;
pub mod over_limit_cache;
pub(crate) mod relocation;
pub mod remote;
pub mod script;
pub mod settings;
pub mod topology;
pub mod trace;
pub(crate) mod trip;

/// The period of limits that may have a Redis of their own.
const PER_SECOND: Span = Span::from_secs(1);

/// How often pending hits of servers that serve are written back.
const WRITE_BACK_INTERVAL: Duration = Duration::from_millis(500);

/// What a process needs to know of its Redis.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to count.
    pub main: PoolOptions,
    /// Where to count limits whose period is a second, if not there.
    pub per_second: Option<PoolOptions>,
    /// How long a call may take.
    pub store_timeout: Span,
    /// The process may only serve while Redis can be reached.
    pub required: bool,
    /// The longest time that the key of a window may outlive it, to spread expiry; zero for none.
    pub expiration_jitter_max: Span,
    /// How much memory remembered refusals may take; zero for none.
    pub over_limit_cache_bytes: u64,
    /// How many replicas share the limits, where heartbeats do not say.
    pub replicas: NonZeroU32,
    /// What all keys begin with.
    pub key_prefix: Box<str>,
    /// How connections are opened.
    pub dialer: Dialer,
}

/// Redis, for the whole process.
#[derive(Debug)]
pub struct Redis {
    main: NodePool,
    per_second: Option<NodePool>,
    store_timeout: Span,
    required: bool,
    expiration_jitter_max: Span,
    over_limit_cache: Option<OverLimitCache>,
    last_seen: UsageCache,
    replicas: Membership,
    local: LocalFallback,
    lifetimes: UnconfirmedLifetimes,
    clock: Clock,
    metrics: RedisMetrics,
}

#[derive(Debug)]
struct RedisMetrics {
    seconds: Histogram,
    checks: Histogram,
    in_flight: Gauge,
    full: metric::Counter,
    abandoned: metric::Counter,
    ambiguous: metric::Counter,
    unknown_script: metric::Counter,
    full_logs: metric::Counter,
    redirects: [metric::Counter; 3],
}

impl Redis {
    /// Nothing is connected yet. With a clock that is set by hand, Redis is told the time instead
    /// of being asked.
    ///
    /// # Errors
    /// An address that the client cannot use.
    pub fn new(options: Options, clock: Clock, metrics: &Metrics) -> Result<Self, RedisError> {
        let (health, topology) = (HealthMetrics::new(metrics), TopologyMetrics::new(metrics));
        let pool = |pool: PoolOptions, connections: ConnectionMetrics| {
            let timeouts = Timeouts {
                connect: pool.connect_timeout.into(),
                reply: options.store_timeout.into(),
            };
            let parts = NodeParts {
                timeouts,
                dialer: options.dialer.clone(),
                clock: clock.clone(),
                connections,
                health: health.clone(),
                refresh: Arc::new(Notify::new()),
            };
            NodePool::new(pool.deployment, parts, topology.clone())
        };
        let database = options.main.deployment.database();
        Ok(Self {
            main: pool(options.main, ConnectionMetrics::new(metrics))?,
            per_second: options
                .per_second
                .map(|per_second| pool(per_second, ConnectionMetrics::per_second(metrics)))
                .transpose()?,
            store_timeout: options.store_timeout,
            required: options.required,
            expiration_jitter_max: options.expiration_jitter_max,
            over_limit_cache: (options.over_limit_cache_bytes > 0)
                .then(|| OverLimitCache::new(options.over_limit_cache_bytes, metrics)),
            last_seen: UsageCache::new(metrics),
            replicas: Membership::new(
                &options.key_prefix,
                database,
                Share::one_of(options.replicas),
                metrics,
            ),
            local: LocalFallback::new(metrics),
            lifetimes: UnconfirmedLifetimes::new(metrics),
            clock,
            metrics: RedisMetrics::new(metrics),
        })
    }

    /// A way to it for the runtime that this is called on.
    pub fn open(self: Arc<Self>) -> RedisClient {
        RedisClient::new(self)
    }

    /// Probes servers, finds out where they are, tells of their troubles, and keeps what is counted
    /// in their place in order, for as long as the process lives.
    pub async fn look_after(self: Arc<Self>, lifecycle: Lifecycle) {
        let redis: &Self = &self;
        let pools = redis.pools().map(|pool| {
            topology::maintain(pool, move |node| async move {
                redis.write_back(pool, &node, WRITE_BACK_TIME_MAX).await
                    != WriteBackResult::Unreachable
            })
        });
        // Whichever server it is: what is published on one node of a cluster is heard on all.
        let home = || {
            self.main
                .topology()
                .nodes()
                .iter()
                .find(|node| !node.health.breaker.is_open())
                .cloned()
        };
        tokio::join!(
            join_all(pools),
            self.replicas.run_heartbeats(home, &self.clock, &lifecycle),
            self.local.sweep(self.clock.clone()),
            self.write_back_the_rest(),
            self.tell(lifecycle.clone()),
        );
    }

    /// Keeps the process' lifecycle up to date.
    async fn tell(&self, lifecycle: Lifecycle) {
        let mut told = None;
        let mut rounds = tokio::time::interval(PROBE_INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_reachable = self.pools().all(NodePool::is_reachable);
            let (is_ready, note) = (
                !self.required || is_reachable,
                self.pools()
                    .map(NodePool::summary)
                    .collect::<Vec<_>>()
                    .join("; "),
            );
            if told.as_ref() != Some(&(is_ready, note.clone())) {
                lifecycle.set_store(is_ready, note.clone());
                told = Some((is_ready, note));
            }
            rounds.tick().await;
        }
    }

    fn pools(&self) -> impl Iterator<Item = &NodePool> {
        std::iter::once(&self.main).chain(&self.per_second)
    }

    /// Where a check is counted.
    fn pool_of(&self, check: &Check) -> &NodePool {
        self.per_second
            .as_ref()
            .filter(|_| is_per_second(&check.limit))
            .unwrap_or(&self.main)
    }

    /// How many checks of a request go to the per-second Redis.
    pub(crate) fn per_second_checks(&self, request: &CheckRequest) -> usize {
        let is_per_second =
            |check: &&Check| self.per_second.is_some() && is_per_second(&check.limit);
        request.checks.iter().filter(is_per_second).count()
    }

    /// Whether all servers were seen to be there, or one of each cluster.
    pub fn was_reachable(&self) -> bool {
        self.pools().all(NodePool::was_reachable)
    }

    /// Whether the process may only serve while it can be reached.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// How many hits were in use, and when, as far as a server last said.
    pub fn last_seen(&self, check: &Check) -> Option<(u64, Time)> {
        self.last_seen.get(self.last_seen.hash(&check.key))
    }

    /// How often a server, once given up, was there again.
    fn recoveries(&self) -> u64 {
        self.pools().map(NodePool::recoveries).sum()
    }

    /// Decides checks on which no server gave a verdict, against this replica's share.
    pub fn decide_locally(
        &self,
        checks: &[(&Check, CheckError)],
        all_or_nothing: bool,
        now: Time,
    ) -> Verdicts {
        // By the clock that windows are cut by. Those of several nodes rarely differ by more than a
        // moment.
        let home = checks.first().and_then(|(check, _)| {
            self.pool_of(check)
                .topology()
                .owner(check.key.as_bytes())
                .cloned()
        });
        let redis_time = |time: Time| home.as_ref().map_or(time, |node| node.clock.at(time));
        let undecided = checks.iter().map(|&(check, failure)| Undecided {
            check,
            effect: failure.effect,
            seen: self
                .last_seen(check)
                .map(|(used, seen)| (used, redis_time(seen))),
            epoch: self.home(check).map_or(0, |node| node.epoch()),
        });
        let undecided: SmallVec<[Undecided<'_>; 2]> = undecided.collect();
        let verdicts = self.local.decide(
            &undecided,
            self.replicas.share(),
            all_or_nothing,
            redis_time(now),
        );
        for (check, _) in checks {
            if let Hits::Refund(hits) = check.hits {
                self.last_seen.refund(self.last_seen.hash(&check.key), hits);
            }
        }
        verdicts
    }

    /// Writes pending hits back to a server, and sets the lifetimes of keys that it did not
    /// confirm.
    async fn write_back(&self, pool: &NodePool, node: &Node, within: Span) -> WriteBackResult {
        let mut target = ServerTarget::new(self, pool, node);
        let lifetimes = self.lifetimes.take(node.id());
        if !lifetimes.is_empty() && !target.repair(&lifetimes).await {
            self.lifetimes.add(node.id(), lifetimes);
            return WriteBackResult::Unreachable;
        }
        if self.local.has_pending() {
            self.local.write_back(&mut target, within).await
        } else {
            WriteBackResult::Done
        }
    }

    /// Writes back to servers that serve: what they rejected, what became pending meanwhile, what
    /// there was no time for, and what another server has taken over.
    async fn write_back_the_rest(&self) {
        let mut interval = tokio::time::interval(WRITE_BACK_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                _ = select_all(self.pools().map(|pool| Box::pin(pool.topology_changed()))) => {}
            }
            let mut all_serve = true;
            for pool in self.pools() {
                let topology = Arc::clone(&pool.topology());
                for node in topology.nodes() {
                    if node.health.breaker.is_open() {
                        all_serve = false;
                    } else {
                        self.write_back(pool, node, Span::from_secs(u64::MAX)).await;
                    }
                }
            }
            if all_serve {
                self.local.forget_before(self.recoveries());
            }
        }
    }

    /// The server that has a check's counter, if anybody has.
    fn home(&self, check: &Check) -> Option<Arc<Node>> {
        let topology = self.pool_of(check).topology();
        if topology.has_slots() {
            // The start of a window is part of the key.
            let line = self.line(check, &topology, Mode::Independent, self.clock.now());
            return topology.owner(line.key().as_bytes()).cloned();
        }
        topology.owner(check.key.as_bytes()).cloned()
    }

    /// A check as a server gets it, by the clock of the node that would have its key if that held
    /// no time: all replicas go by the same one then, whatever the clocks of other nodes say.
    fn line(&self, check: &Check, topology: &Topology, mode: Mode, now: Time) -> EncodedCheck {
        self.line_charging(
            check,
            Counter::charge(&check.limit, check.call()),
            topology,
            mode,
            now,
        )
    }

    /// The same of a check that takes something else than its hits.
    fn line_charging(
        &self,
        check: &Check,
        charge: Charge,
        topology: &Topology,
        mode: Mode,
        now: Time,
    ) -> EncodedCheck {
        let node = topology.owner(check.key.as_bytes());
        let redis_time = |time: Time| node.map_or(time, |node| node.clock.at(time));
        let (at, hash) = (redis_time(now), self.last_seen.hash(&check.key));
        // Any number will do that differs from time to time. In between it stays, so that lines of
        // a call are alike (see Script::command).
        let any = (at.as_micros() >> 14).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let jitter = Span::from_secs(any % self.expiration_jitter_max.ceil_secs().max(1));
        let mut line = EncodedCheck::charging(check, charge, hash, at, mode, jitter);
        if line.is_window() {
            let window = |at: Time| check.limit.window(at).index;
            let seen = self.last_seen.get(hash);
            let is_known =
                seen.is_some_and(|(used, seen)| used > 0 && window(redis_time(seen)) == window(at));
            line.set_command(match is_known {
                true => WindowCommand::Incr,
                false if topology.has_slots() => WindowCommand::SetNxIncr,
                false => WindowCommand::Script,
            });
        }
        line
    }

    /// What a server said of a check means this.
    fn conclude(
        &self,
        (check, line): (&Check, &EncodedCheck),
        said: &CheckReply,
        asked: Time,
        redis_now: Time,
        node: &Node,
    ) -> Verdict {
        let verdict = line.verdict(check, redis_now, said);
        if let Some(cache) = &self.over_limit_cache {
            let of_one = || line.verdict_of(check, Hits::Add(1).into(), true, redis_now, said);
            cache.learn(check, &verdict, of_one, asked, self.clock.now());
        }
        self.metrics
            .full_logs
            .inc_by(said.is_of_full_log(check).into());
        self.as_of_now(verdict, redis_now, node)
    }

    /// A slot that was booked when it was `redis_now` there begins a little sooner as seen from
    /// here: the reply took its time.
    fn as_of_now(&self, verdict: Verdict, redis_now: Time, node: &Node) -> Verdict {
        if verdict.start_after == Span::ZERO {
            return verdict;
        }
        let passed = node.clock.at(self.clock.now()).since(redis_now);
        Verdict {
            start_after: verdict.start_after.less(passed),
            ..verdict
        }
    }
}

/// Whether it may be counted on the second Redis. A lease is no period.
fn is_per_second(limit: &Limit) -> bool {
    limit.period() == PER_SECOND && limit.algorithm() != Algorithm::Concurrency
}

impl fmt::Display for Redis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.main.deployment())?;
        match &self.per_second {
            Some(pool) => write!(
                formatter,
                ", and {} for limits of a second",
                pool.deployment()
            ),
            None => Ok(()),
        }
    }
}

impl RedisMetrics {
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
            redirects: ["moved", "ask", "again"].map(|kind| {
                let help = "Checks that a node of a cluster sent elsewhere, because their slot had moved or was about to.";
                metrics.counter_with("tollgate_store_redirects_total", help, &[("kind", kind)])
            }),
            unknown_script: metrics.counter(
                "tollgate_store_script_unknown_total",
                "Calls that had to send the whole script, because Redis had forgotten it: after a restart, a failover or a flush.",
            ),
        }
    }
}
