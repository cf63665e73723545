//! The service as a worker has it, on a socket pair.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tollgate::api::Api;
use tollgate::api::connection::{ConnectionLimits, Connections};
use tollgate::api::socket::{Accepted, OpenGuard};
use tollgate::base::http::budget::HttpMetrics;
use tollgate::base::shutdown::Lifecycle;
use tollgate::base::time::{Clock, Span, Time};
use tollgate::limiter::fallback::Fallback;
use tollgate::limiter::{Observers, Parts, Settings, Shared};
use tollgate::operator::observe::feed::OverLimitFeed;
use tollgate::operator::observe::redact::Values;
use tollgate::rules::config::{self, CompileOptions, Source};
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::rules::{LiveRules, OnStoreError};
use tollgate::store::Backend;
use tollgate::store::memory::Counters;
use tollgate::store::redis::connect::dialer::Dialer;
use tollgate::store::redis::connect::parse;
use tollgate::store::redis::topology::deployment::{Deployment, PoolOptions};
use tollgate::store::redis::{Options, Redis};
use tollgate::telemetry::metric::Metrics;
use tollgate::telemetry::traces::Traces;

use crate::socket::Socket;

/// When everything happens: on no edge of any unit.
pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);
/// A limit that is never reached, and one that a second hit exceeds.
pub(crate) const RULES: &str = "
domain: bench
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
- {key: once, rate_limit: {unit: hour, requests_per_unit: 1}}
";
/// The defaults of MEMORY_STORE_BYTES, STORE_TIMEOUT and REDIS_TIMEOUT.
const MEMORY_BYTES_MAX: u64 = 256 << 20;
const STORE_TIMEOUT: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where it counts.
#[derive(Clone, Copy)]
pub(crate) enum Store {
    Memory,
    Redis { over_limit_cache_bytes: u64 },
}

/// A worker that is not started yet, with one connection.
pub(crate) struct Service {
    api: Api,
    accepted: Accepted,
}

impl Store {
    pub(crate) const REDIS: Self = Self::Redis { over_limit_cache_bytes: 0 };
    pub(crate) const REDIS_AND_CACHE: Self = Self::Redis { over_limit_cache_bytes: 1 << 26 };

    fn open(self, dialer: Dialer, clock: &Clock, metrics: &Metrics) -> Backend {
        match self {
            Self::Memory => {
                Backend::Memory(Arc::new(Counters::new(MEMORY_BYTES_MAX, "store", metrics)))
            }
            Self::Redis { over_limit_cache_bytes } => {
                let address =
                    parse::address(parse::SERVER_PORT, "127.0.0.1:6379").expect("an address");
                let options = Options {
                    main: PoolOptions {
                        deployment: Deployment::Single(address.address),
                        connect_timeout: CONNECT_TIMEOUT.into(),
                    },
                    per_second: None,
                    store_timeout: STORE_TIMEOUT.into(),
                    required: false,
                    expiration_jitter_max: Span::ZERO,
                    over_limit_cache_bytes,
                    replicas: Some(NonZeroU32::MIN),
                    key_prefix: Box::default(),
                    dialer,
                };
                Backend::Redis(Arc::new(Redis::new(options, clock.clone(), metrics)))
            }
        }
    }
}

impl Service {
    /// One with default settings, and the client's end of its connection.
    pub(crate) fn new(store: Store, dialer: Dialer) -> (Self, Socket) {
        let metrics = Metrics::new();
        let clock = Clock::starting_at(START);
        let stats = StatsTable::new(METRIC_SERIES_MAX, &metrics);
        let source = Source { name: "bench".into(), path: "bench.yaml".into(), text: RULES.into() };
        let rules = Arc::new(LiveRules::default());
        rules.replace(
            config::load(&[source], &CompileOptions::new(stats.clone()))
                .expect("valid rules")
                .rules,
        );
        // As the service has them; no reader follows the feed.
        let (settings, feed) =
            (Settings::default(), OverLimitFeed::new("bench", Values::Clear, &metrics));
        let observers = Observers::new(stats, feed, &settings, &clock, &metrics);
        let parts = Parts {
            rules,
            backend: store.open(dialer, &clock, &metrics),
            fallback: Fallback::new(OnStoreError::Local, &metrics),
            clock,
            settings,
            observers: Some(Arc::new(observers)),
        };
        let limits = ConnectionLimits { max_age: None, grace: None };
        let api = Api::new(
            Arc::new(Shared::new(parts, &metrics)),
            Connections::new(None, limits, &metrics),
            Lifecycle::default(),
            HttpMetrics::new(&metrics),
            Traces::default(),
            &metrics,
        );
        let (client, there) = Socket::pair();
        let open = metrics.gauge("bench_connections", "Open connections.");
        let accepted = Accepted {
            socket: there.into(),
            peer: None,
            open: OpenGuard::new(Arc::default(), open),
        };
        (Self { api, accepted }, client)
    }

    pub(crate) async fn serve(self) {
        let (grpc, incoming) = mpsc::channel(1);
        let (_http, http_incoming) = mpsc::channel(1);
        grpc.send(self.accepted).await.expect("an empty queue");
        self.api.serve(incoming, http_incoming).await;
    }
}
