//! Puts the house together, and takes it down.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::admin::{self, Admin};
use crate::api::listen::{self, Doors};
use crate::api::{Api, Running};
use crate::config::Options;
use crate::limiter::fallback::Fallback;
use crate::limiter::{self, Parts};
use crate::rule_source::watch::Watch;
use crate::rule_source::{HealthPolicy, RuleSource};
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::rules::tree::Example;
use crate::rules::{KeyFormat, LiveRules};
use crate::settings::Settings;
use crate::shutdown::{Lifecycle, Phase};
use crate::store::settings::BackendChoice;
use crate::store::{Backend, memory, redis};
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::Traces;
use crate::telemetry::traces::export::{Exporter, Exporting};
use crate::time::{Clock, Span};

/// A service whose ports are bound, and whose rules were looked at.
pub struct App {
    api: Api,
    doors: Doors,
    admin: Admin,
    admin_listener: TcpListener,
    prometheus_listener: Option<TcpListener>,
    prometheus_path: String,
    rule_source: RuleSource,
    backend: Backend,
    limiter: Arc<limiter::Shared>,
    clock: Clock,
    lifecycle: Lifecycle,
    metrics: Metrics,
    exporter: Option<Exporter>,
    http_full: Counter,
    workers: usize,
    drain_period: Span,
    shutdown_timeout: Span,
    summary: Summary,
}

/// What an operator wants to know at the start.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The store, as an operator knows it.
    pub store: String,
    /// It shares what it counts with no other process.
    pub store_is_local: bool,
    /// Where gRPC is served.
    pub grpc: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    /// Where the operators' door is.
    pub admin: SocketAddr,
    /// Where Prometheus has a door of its own.
    pub prometheus: Option<SocketAddr>,
    /// Where the rules come from.
    pub rules_from: PathBuf,
    /// How many limits and domains are in force; `None` if the rules were refused.
    pub rules: Option<(usize, usize)>,
    /// For a first try.
    pub example: Option<Example>,
    /// Threads that serve.
    pub workers: usize,
}

/// What ends a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: drain first, so that load balancers notice.
    Terminate,
    /// SIGINT: somebody sits before it.
    Interrupt,
}

impl App {
    /// Binds every port and loads the rules for the first time. Bad rules are no reason not to start: good ones may come.
    ///
    /// # Errors
    /// A port that cannot be bound.
    pub fn bind(settings: &Settings, rules_argument: Option<PathBuf>) -> anyhow::Result<Self> {
        let clock = Clock::system();
        let metrics = Metrics::new();
        metrics.add_process();
        let lifecycle = Lifecycle::default();

        let doors = Doors::bind((&settings.api.grpc_host, settings.api.grpc_port), (&settings.api.host, settings.api.port))?;
        let admin_listener = listen::bind((&settings.admin.debug_host, settings.admin.debug_port), "DEBUG_HOST and DEBUG_PORT")?;
        let prometheus_listener = settings.telemetry.prometheus_addr().map(bind_prometheus).transpose()?;

        let backend = match settings.backend().map_err(anyhow::Error::msg)? {
            BackendChoice::Memory => Backend::Memory(Arc::new(memory::Counters::new(settings.store.memory_bytes_max, "store", &metrics))),
            BackendChoice::Redis(options) => {
                Backend::Redis(Arc::new(redis::Node::new(*options, clock.clone(), &metrics).context("make a client of Redis")?))
            }
        };
        lifecycle.set_store(backend.is_ready(), backend.to_string());
        let stats = StatsTable::new(METRIC_SERIES_MAX, &metrics);
        let options = Options {
            merge_domains: settings.rules.merge_domain_config,
            key_prefix: settings.rules.cache_key_prefix.as_str().into(),
            // Nobody else reads the keys of a store in memory, so they have the form in which no two counters can share one.
            key_format: if let Backend::Redis(_) = backend { settings.rules.cache_key_format } else { KeyFormat::Safe },
            default_algorithm: settings.rules.default_algorithm.0,
            ..Options::new(stats.clone())
        };
        let health = HealthPolicy {
            without_rules: settings.rules.force_start_without_initial_config,
            needs_a_domain: settings.rules.healthy_with_at_least_one_config_loaded,
        };
        let live = Arc::new(LiveRules::default());
        let directory = settings.rules.directory(rules_argument);
        let overlay = settings.rules.overlay();
        let mut rule_source = RuleSource::new(directory, overlay, options, health, live.clone(), lifecycle.clone(), &metrics);
        rule_source.load();

        let workers = settings.api.workers();
        let summary = Summary {
            store: backend.to_string(),
            store_is_local: matches!(backend, Backend::Memory(_)),
            grpc: doors.grpc_addr().context("ask for the gRPC address")?,
            http: doors.http_addr().context("ask for the HTTP address")?,
            admin: admin_listener.local_addr().context("ask for the admin address")?,
            prometheus: prometheus_listener.as_ref().map(TcpListener::local_addr).transpose().context("ask for the Prometheus address")?,
            rules_from: rule_source.directory().path().to_owned(),
            rules: live.load().as_ref().map(|rules| (rules.rule_count(), rules.domain_count())),
            example: live.load().as_ref().and_then(|rules| rules.example()),
            workers,
        };
        let policy = settings.limiter.policy();
        let admin = Admin { rules: live.clone(), modes: policy.modes, metrics: metrics.clone(), lifecycle: lifecycle.clone() };
        let http_full = crate::http::full_counter(&metrics);
        let fallback = Fallback::new(settings.limiter.on_store_error, settings.limiter.replicas, &metrics);
        let parts = Parts { rules: live, backend: backend.clone(), fallback, clock: clock.clone(), stats, policy };
        let limiter = Arc::new(limiter::Shared::new(parts, &metrics));
        let recording = settings.traces.options().map_err(anyhow::Error::msg)?.map(|options| Traces::new(options, clock.clone(), &metrics));
        let (traces, exporter) = recording.unzip();
        Ok(Self {
            api: Api::new(limiter.clone(), lifecycle.clone(), http_full.clone(), traces.unwrap_or_default(), &metrics)?,
            exporter,
            http_full,
            doors,
            admin,
            admin_listener,
            prometheus_listener,
            prometheus_path: settings.telemetry.prometheus_path.clone(),
            rule_source,
            backend,
            limiter,
            clock,
            lifecycle,
            metrics,
            workers,
            drain_period: settings.api.drain_period,
            shutdown_timeout: settings.api.shutdown_timeout,
            summary,
        })
    }

    /// What was bound and loaded.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Serves until `stop` returns, then drains: health fails at once, calls are answered for the drain period, then connections are
    /// told to go, and what is in flight is finished within the shutdown time-out. A second `stop` ends it at once.
    ///
    /// `reload` returns whenever somebody asks for the rules to be read again.
    ///
    /// # Errors
    /// A thread or a runtime cannot be started.
    pub async fn run(self, mut stop: impl AsyncFnMut() -> Signal, mut reload: impl AsyncFnMut()) -> anyhow::Result<()> {
        let watch = Watch::start(self.rule_source)?;
        let exporting = self.exporter.map(Exporter::start).transpose()?;
        let running = self.api.start(self.doors, self.workers, &self.metrics)?;
        let mut chores = JoinSet::new();
        chores.spawn(self.backend.look_after(self.clock, self.lifecycle.clone()));
        chores.spawn(self.limiter.look_after());
        if let Some(listener) = self.prometheus_listener {
            let (router, lifecycle) = (self.admin.clone().metrics_router(&self.prometheus_path), self.lifecycle.clone());
            let incoming = admin::incoming(listener)?;
            let full = self.http_full.clone();
            chores.spawn(async move { crate::http::serve(incoming, router, &lifecycle, &full).await });
        }
        let (router, incoming, lifecycle) = (self.admin.router(), admin::incoming(self.admin_listener)?, self.lifecycle.clone());
        let full = self.http_full;
        chores.spawn(async move { crate::http::serve(incoming, router, &lifecycle, &full).await });

        let signal = loop {
            tokio::select! {
                signal = stop() => break signal,
                () = reload() => watch.load(),
            }
        };
        // New rules are for the next process. The kernel takes its time to close a watch, seconds where many files change, and no process
        // ends before it has: begun now, that is over when the drain is, and whoever waits for the port does not wait for it.
        drop(watch);
        tokio::select! {
            () = drain(&self.lifecycle, running, exporting, signal, self.drain_period, self.shutdown_timeout) => {}
            _ = stop() => tracing::warn!("a second signal: ending at once"),
        }
        Ok(())
    }
}

async fn drain(
    lifecycle: &Lifecycle,
    running: Running,
    exporting: Option<Exporting>,
    signal: Signal,
    drain_period: Span,
    shutdown_timeout: Span,
) {
    if signal == Signal::Terminate {
        tracing::info!(period = %drain_period, "draining: health says no, calls are answered");
        lifecycle.enter(Phase::Draining);
        tokio::time::sleep(drain_period.into()).await;
    }
    tracing::info!(timeout = %shutdown_timeout, "stopping: finishing what is in flight");
    lifecycle.enter(Phase::Stopping);
    let mut over = pin!(tokio::time::sleep(shutdown_timeout.into()));
    tokio::select! {
        () = running.finished() => {}
        () = &mut over => {
            tracing::warn!(timeout = %shutdown_timeout, "calls were still in flight when SHUTDOWN_TIMEOUT was over");
            return;
        }
    }
    let Some(exporting) = exporting else { return };
    let is_flushed = tokio::select! {
        is_flushed = exporting.flush() => is_flushed,
        () = over => false,
    };
    if !is_flushed {
        tracing::warn!("the collector has not taken the last spans in time: they are lost");
    }
}

/// `host:port`, or `:port` for every address.
fn bind_prometheus(addr: &str) -> anyhow::Result<TcpListener> {
    let (host, port) = addr.rsplit_once(':').context("PROMETHEUS_ADDR is no HOST:PORT")?;
    let port = port.parse().with_context(|| format!("PROMETHEUS_ADDR: {port} is no port"))?;
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    listen::bind((host, port), "PROMETHEUS_ADDR")
}
