//! Where counters live.

use std::fmt;
use std::sync::Arc;

use crate::check::{Check, CheckError, CheckRequest, Decisions, Verdicts};
use crate::shutdown::Lifecycle;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::LiveSpan;
use crate::time::{Clock, Time};

pub mod memory;
pub mod redis;
pub mod settings;

/// A place that counts, for the whole process.
#[derive(Debug, Clone)]
pub enum Backend {
    /// In this process: nothing to install, one instance.
    Memory(Arc<memory::Counters>),
    /// In Redis, which replicas share.
    Redis(Arc<redis::Redis>),
}

/// One runtime's way to the place that counts. It knows keys and limits, and never a rule or a
/// domain.
#[derive(Debug, Clone)]
pub enum Store {
    /// See [`Backend::Memory`].
    Memory(Arc<memory::Counters>),
    /// See [`Backend::Redis`].
    Redis(redis::RedisClient),
}

impl Backend {
    /// A way to it for the runtime that this is called on.
    pub fn open(&self) -> Store {
        match self {
            Self::Memory(counters) => Store::Memory(counters.clone()),
            Self::Redis(redis) => Store::Redis(redis.clone().open()),
        }
    }

    /// Whether the process may serve before the store was ever reached.
    pub fn is_ready(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(redis) => !redis.is_required(),
        }
    }

    /// Whether the store was ever seen to be there.
    pub fn was_reachable(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(redis) => redis.was_reachable(),
        }
    }

    /// Keeps it in order for as long as the process lives.
    pub async fn look_after(self, clock: Clock, lifecycle: Lifecycle) {
        match self {
            Self::Memory(counters) => counters.sweep_on(clock).await,
            Self::Redis(redis) => redis.look_after(lifecycle).await,
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

/// The metric of logs that are full, by what counters are for.
fn full_logs(use_of: &str, metrics: &Metrics) -> Counter {
    metrics.counter_with(
        "tollgate_log_entries_full_total",
        "Calls to a sliding_log with as many entries as it may have (log_entries_max), so that their hits went to the newest of them.",
        &[("use", use_of)],
    )
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
            Self::Redis(client) => {
                let span = parent.map(|parent| redis::trace::start(client, parent, request));
                let decisions = client.decide(request, now).await;
                if let Some(span) = span {
                    redis::trace::end(span, &decisions);
                }
                decisions
            }
        }
    }

    /// Decides checks on which it gave no verdict, each with its failure: in this process, against
    /// this replica's share.
    pub fn decide_locally(
        &self,
        checks: &[(&Check, CheckError)],
        all_or_nothing: bool,
        now: Time,
    ) -> Verdicts {
        match self {
            // It always has a verdict. Had it none, it would be its own replica.
            Self::Memory(counters) => {
                let checks = checks.iter().map(|(check, _)| (*check).clone()).collect();
                counters.decide(
                    &CheckRequest {
                        checks,
                        all_or_nothing,
                        deadline: None,
                    },
                    now,
                )
            }
            Self::Redis(remote) => remote.redis().decide_locally(checks, all_or_nothing, now),
        }
    }
}
