//! Stores of counters: memory and Redis.
//!
//! A [`Backend`] exists once per process, a [`Store`] once per worker. They know keys and limits,
//! and never a rule or a domain.

use std::fmt;
use std::sync::Arc;

use crate::base::shutdown::Lifecycle;
use crate::base::time::{Clock, Time};
use crate::limits::check::{
    Check, CheckError, CheckRequest, Decisions, Hits, Reading, StoreError, Verdicts,
};
pub(crate) use crate::store::redis::status::NodeStatus;
use crate::store::redis::topology::deployment::Deployment;
use crate::store::watch::StoreWatch;
use crate::telemetry::traces::LiveSpan;

pub mod memory;
pub mod redis;
pub mod settings;
pub mod watch;

/// The store of a process.
#[derive(Debug, Clone)]
pub enum Backend {
    /// In this process, for a single replica.
    Memory(Arc<memory::Counters>),
    /// In Redis, shared by replicas.
    Redis(Arc<redis::Redis>),
}

/// The store of a worker.
#[derive(Debug, Clone)]
pub enum Store {
    /// See [`Backend::Memory`].
    Memory(Arc<memory::Counters>),
    /// See [`Backend::Redis`].
    Redis(redis::RedisClient),
}

impl Backend {
    /// A store for the worker that this is called on.
    pub fn open(&self) -> Store {
        match self {
            Self::Memory(counters) => Store::Memory(counters.clone()),
            Self::Redis(redis) => Store::Redis(redis.open()),
        }
    }

    /// Whether counters that are decided in one step have to be in one slot.
    pub(crate) fn has_slots(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Redis(redis) => matches!(redis.main.deployment, Deployment::Cluster(_)),
        }
    }

    /// As BACKEND_TYPE has it.
    pub(crate) const fn type_name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis(_) => "redis",
        }
    }

    /// The name of this process among its peers: in heartbeats, if there are any.
    pub fn replica(&self) -> String {
        match self {
            Self::Memory(_) => redis::fallback::membership::random_name(),
            Self::Redis(redis) => redis.membership.name.clone(),
        }
    }

    /// The servers of the store and whether they reply; none in memory.
    pub(crate) async fn nodes(&self) -> Vec<NodeStatus> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(redis) => redis.status().await,
        }
    }

    /// The number of processes that share the store, by their heartbeats.
    pub(crate) fn replicas(&self) -> u32 {
        match self {
            Self::Memory(_) => 1,
            Self::Redis(redis) => redis.membership.share().replicas().get(),
        }
    }

    /// Whether the process may report SERVING at once. [`Self::maintain`] reports it later on
    /// Redis.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Why the store has never been reachable, with its address; `None` if it was.
    pub(crate) fn never_reached(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => redis.never_reached(),
        }
    }

    /// Sends what must not be lost when the process ends. All workers have ended before.
    pub async fn finish(&self) {
        if let Self::Redis(redis) = self {
            redis.finish().await;
        }
    }

    /// Runs the background work of the store, for as long as the process lives.
    /// `has_long_periods` returns whether counters of a day or more are in use, `scripted` the
    /// names of the rules that Redis decides by its script.
    pub async fn maintain(
        self,
        clock: Clock,
        lifecycle: Lifecycle,
        watch: StoreWatch,
        has_long_periods: impl Fn() -> bool,
        scripted: impl Fn() -> Vec<String>,
    ) {
        match self {
            Self::Memory(counters) => counters.sweep_on(clock).await,
            Self::Redis(redis) => {
                let watch = watch.run(redis.clone(), lifecycle.clone(), scripted);
                let durability = redis.watch_durability(has_long_periods);
                tokio::join!(redis.clone().maintain(lifecycle), watch, durability);
            }
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => formatter.write_str("memory"),
            Self::Redis(redis) => write!(formatter, "{redis}"),
        }
    }
}

impl Store {
    /// Decides every check of a request, in order. Memory never waits. `parent` is the span of the
    /// request, if it is traced.
    pub async fn decide(
        &self,
        request: &CheckRequest,
        now: Time,
        parent: Option<&LiveSpan>,
    ) -> Decisions {
        match self {
            Self::Memory(counters) => counters.decide(request, now).into_iter().map(Ok).collect(),
            Self::Redis(client) => client.decide(request, now, parent).await,
        }
    }

    /// Why the caller of a request that was received at this time gave up `now`. `None` if the
    /// store may still have decided in time.
    pub(crate) fn cause_of_cancel(
        &self,
        request: &CheckRequest,
        received: Time,
        now: Time,
    ) -> Option<StoreError> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(client) => {
                let lateness = &client.shared.lateness;
                lateness.cause_of_cancel(received, request.deadline, now)
            }
        }
    }

    /// Reads one counter, without a change of its value or lifetime.
    ///
    /// # Errors
    /// Redis gave no verdict.
    pub async fn peek(&self, check: &Check, now: Time) -> Result<Reading, CheckError> {
        match self {
            Self::Memory(counters) => Ok(counters.peek(check, now)),
            Self::Redis(client) => client.peek(check, now).await,
        }
    }

    /// Hits of a counter that this process holds ahead and has not handed out.
    pub(crate) fn leased(&self, check: &Check) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(client) => client.leased(check),
        }
    }

    /// Deletes one counter, its holders included.
    ///
    /// # Errors
    /// Redis gave no verdict.
    pub async fn reset(&self, check: &Check, now: Time) -> Result<(), CheckError> {
        match self {
            Self::Memory(counters) => {
                counters.forget(&check.key);
                Ok(())
            }
            Self::Redis(client) => client.reset(check, now).await,
        }
    }

    /// Gives back hits, and all units over the limit: an exhausted counter admits that many hits
    /// afterwards, up to its capacity.
    ///
    /// # Errors
    /// Redis gave no verdict.
    pub async fn grant(&self, check: &Check, hits: u64, now: Time) -> Result<(), CheckError> {
        match self {
            Self::Memory(counters) => {
                counters.grant(&check.with_hits(Hits::Refund(hits)), now);
                Ok(())
            }
            Self::Redis(client) => client.grant(check, hits, now).await,
        }
    }

    /// Decides checks without a verdict in this process, against this replica's share of each
    /// limit.
    pub fn decide_locally(&self, checks: &[(&Check, CheckError)], now: Time) -> Verdicts {
        match self {
            // Memory always gives a verdict.
            Self::Memory(_) => Verdicts::new(),
            Self::Redis(client) => client.shared.decide_locally(checks, now),
        }
    }
}
