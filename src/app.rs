//! Puts the house together, and takes it down.

use std::future::pending;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context as _, bail};

use crate::admin::explain::Explainer;
use crate::admin::{self, Admin, Common, Pages};
use crate::api::certificates::CertificateSource;
use crate::api::connection::Connections;
use crate::api::listener::{GrpcAddr, Listeners};
use crate::api::messages::Messages;
use crate::api::{Api, Running, bind};
use crate::config::metric_mapping::{self, MappingError};
use crate::file_watch::FileWatch;
use crate::http::accept::AcceptErrors;
use crate::http::budget::HttpMetrics;
use crate::limiter::fallback::Fallback;
use crate::limiter::{self, Parts};
use crate::rule_source::publisher::{HealthPolicy, RulePublisher};
use crate::rule_source::{Origin, RuleSource};
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::rules::tree::Example;
use crate::rules::{KeyFormat, LiveRules};
use crate::runtime::Thread;
use crate::settings::Settings;
use crate::shutdown::{Lifecycle, Phase};
use crate::store::redis::connect::credentials::CredentialReloader;
use crate::store::settings::BackendChoice;
use crate::store::{Backend, memory, redis};
use crate::telemetry::mapper::Mapping;
use crate::telemetry::metric::{Metrics, Naming};
use crate::telemetry::statsd::{self, StatsdTask};
use crate::telemetry::traces;
use crate::telemetry::traces::Traces;
use crate::telemetry::traces::export::SpanExporterTask;
use crate::time::{Clock, Span};

/// A service whose ports are bound, and whose rules were looked at.
pub struct App {
    api: Api,
    listeners: Listeners,
    admin: Admin,
    admin_listener: TcpListener,
    prometheus_listener: Option<TcpListener>,
    prometheus_path: String,
    statsd: Option<statsd::Exporter>,
    rule_source: RuleSource,
    certificates: Option<CertificateSource>,
    backend: Backend,
    secrets: Option<CredentialReloader>,
    store_must_come_within: Option<Span>,
    clock: Clock,
    lifecycle: Lifecycle,
    metrics: Metrics,
    spans: Option<traces::export::Exporter>,
    http_metrics: HttpMetrics,
    accept_errors: AcceptErrors,
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
    pub grpc: GrpcAddr,
    /// What protects it.
    pub grpc_security: Security,
    /// Where HTTP is served.
    pub http: SocketAddr,
    /// Where the operators' door is.
    pub admin: SocketAddr,
    /// Where Prometheus has a door of its own.
    pub prometheus: Option<SocketAddr>,
    /// Where the rules come from.
    pub rules_from: String,
    /// The rules at the start.
    pub rules: InitialRules,
    /// For a first try.
    pub example: Option<Example>,
    /// Threads that serve.
    pub workers: usize,
}

/// What protects a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// Nothing.
    PlainText,
    /// Clients know who serves them.
    Tls,
    /// And we know who they are.
    MutualTls,
}

/// The rules at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialRules {
    /// They serve.
    Loaded {
        /// How many limits.
        limits: usize,
        /// In how many domains.
        domains: usize,
    },
    /// They are no good.
    Rejected,
    /// They are asked for once the listeners are open.
    Pending,
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
    /// Binds every port and loads rules that are there for the first time. Bad rules are no reason
    /// not to start: good ones may come.
    ///
    /// # Errors
    /// A port that cannot be bound.
    pub fn bind(settings: &Settings, rules_from: Origin) -> anyhow::Result<Self> {
        let clock = Clock::system();
        let mapping = settings
            .telemetry
            .mapping_file()
            .and_then(|path| load_mapping(Path::new(path)));
        let naming = Naming {
            mapping,
            tags: settings.telemetry.extra_tags.clone(),
            time_unit: settings.telemetry.time_unit(),
        };
        let metrics = Metrics::named(naming);
        metrics.add_process();
        let lifecycle = Lifecycle::default();

        let accept_errors = AcceptErrors::new(&metrics);
        let listeners = Listeners::bind(
            settings.api.grpc(),
            settings.api.http(),
            accept_errors.clone(),
        )?;
        let admin_listener = bind::tcp(settings.admin.debug(), "DEBUG_HOST and DEBUG_PORT")?;
        let prometheus_listener = settings
            .telemetry
            .prometheus_addr()
            .map(bind_prometheus)
            .transpose()?;

        let (backend, secrets) = match settings.backend().map_err(anyhow::Error::msg)? {
            BackendChoice::Memory => (
                Backend::Memory(Arc::new(memory::Counters::new(
                    settings.store.memory_bytes_max,
                    "store",
                    &metrics,
                ))),
                None,
            ),
            BackendChoice::Redis(options, secrets) => {
                let redis = redis::Redis::new(*options, clock.clone(), &metrics)
                    .context("make a client of Redis")?;
                (
                    Backend::Redis(Arc::new(redis)),
                    CredentialReloader::new(secrets, &metrics),
                )
            }
        };
        let statsd = settings
            .statsd()
            .map_err(anyhow::Error::msg)?
            .map(|options| statsd::Exporter::new(options, &metrics));
        lifecycle.set_store(backend.is_ready(), backend.to_string());
        let stats = StatsTable::new(METRIC_SERIES_MAX, &metrics);
        let mut options = settings.rules.reading.options(stats.clone());
        if let Backend::Memory(_) = backend {
            // No other process reads the keys of a store in memory, so they have the form in which
            // no two counters can share one.
            options.key_format = KeyFormat::Safe;
        }
        let health = HealthPolicy {
            without_rules: settings.rules.force_start_without_initial_config,
            needs_a_domain: settings.rules.healthy_with_at_least_one_config_loaded,
        };
        let live = Arc::new(LiveRules::default());
        let publisher = RulePublisher::new(
            options,
            settings.rules.reading.overlay(),
            health,
            live.clone(),
            lifecycle.clone(),
            &metrics,
        );
        let rules_from_text = rules_from.to_string();
        let rule_source = RuleSource::open(rules_from, publisher, clock.clone(), &metrics);
        let first_rules = match (&*live.load(), &rule_source) {
            (Some(rules), _) => InitialRules::Loaded {
                limits: rules.rule_count(),
                domains: rules.domain_count(),
            },
            (None, RuleSource::Files(_)) => InitialRules::Rejected,
            (None, RuleSource::Xds(_)) => InitialRules::Pending,
        };

        let files = settings.api.tls().map_err(anyhow::Error::msg)?;
        let grpc_security = match &files {
            None => Security::PlainText,
            Some(files) if files.clients.is_none() => Security::Tls,
            Some(_) => Security::MutualTls,
        };
        let certificates = files
            .map(|files| CertificateSource::new(files, &metrics))
            .transpose()?;
        let tls = certificates
            .as_ref()
            .map(|certificates| certificates.tls(&metrics));
        let connections = Connections::new(tls, settings.api.connection_limits(), &metrics);

        let workers = settings.api.workers();
        let summary = Summary {
            store: backend.to_string(),
            store_is_local: matches!(backend, Backend::Memory(_)),
            grpc: listeners.grpc_addr().context("ask for the gRPC address")?,
            grpc_security,
            http: listeners.http_addr().context("ask for the HTTP address")?,
            admin: admin_listener
                .local_addr()
                .context("ask for the admin address")?,
            prometheus: prometheus_listener
                .as_ref()
                .map(TcpListener::local_addr)
                .transpose()
                .context("ask for the Prometheus address")?,
            rules_from: rules_from_text,
            rules: first_rules,
            example: live.load().as_ref().and_then(|rules| rules.example()),
            workers,
        };
        let policy = settings.limiter.policy();
        let (modes, on_store_error) = (policy.modes, settings.limiter.on_store_error);
        let explainer = Explainer::new(live.clone(), modes, Messages::new()?);
        let (pages, http_metrics) = (Pages::new(&metrics), HttpMetrics::new(&metrics));
        let admin = Admin {
            rules: live.clone(),
            explainer,
            on_store_error,
            metrics: metrics.clone(),
            pages,
            lifecycle: lifecycle.clone(),
        };
        let fallback = Fallback::new(on_store_error, &metrics);
        let parts = Parts {
            rules: live,
            backend: backend.clone(),
            fallback,
            clock: clock.clone(),
            stats,
            policy,
        };
        let limiter = Arc::new(limiter::Shared::new(parts, &metrics));
        let recording = settings
            .traces
            .options()
            .map_err(anyhow::Error::msg)?
            .map(|options| Traces::new(options, clock.clone(), &metrics));
        let (traces, spans) = recording.unzip();
        Ok(Self {
            api: Api::new(
                limiter.clone(),
                connections,
                lifecycle.clone(),
                http_metrics.clone(),
                traces.unwrap_or_default(),
                &metrics,
            )?,
            spans,
            http_metrics,
            accept_errors,
            listeners,
            admin,
            admin_listener,
            prometheus_listener,
            prometheus_path: settings.telemetry.prometheus_path().to_owned(),
            statsd,
            rule_source,
            certificates,
            backend,
            secrets,
            store_must_come_within: settings.store.must_come_within(),
            clock,
            lifecycle,
            metrics,
            workers,
            drain_period: settings.api.drain_period(),
            shutdown_timeout: settings.api.shutdown_timeout(),
            summary,
        })
    }

    /// What was bound and loaded.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Serves until `stop` returns, then drains: health fails at once, calls are answered for the
    /// drain period, then connections are told to go, and what is in flight is finished, and
    /// the last metrics and spans are sent, within the shutdown time-out. A second `stop`
    /// ends it at once.
    ///
    /// `reload` returns whenever somebody asks for rules and certificates to be read again.
    ///
    /// # Errors
    /// A thread or a runtime cannot be started, or the store did not come in the time that was set.
    pub async fn run(
        self,
        mut stop: impl AsyncFnMut() -> Signal,
        mut reload: impl AsyncFnMut(),
    ) -> anyhow::Result<()> {
        let running_source = self.rule_source.start()?;
        let certificates = self.certificates.map(FileWatch::start).transpose()?;
        let secrets = self.secrets.map(FileWatch::start).transpose()?;
        let exporting = self
            .spans
            .map(traces::export::Exporter::start)
            .transpose()?;
        let running = self
            .api
            .start(self.listeners, self.workers, &self.metrics)?;
        // Threads of their own: whatever clients of the admin listener do, it delays neither the
        // store nor signals.
        let maintain_store = self
            .backend
            .clone()
            .maintain(self.clock, self.lifecycle.clone());
        let _store_thread = Thread::spawn("store", maintain_store)?;
        let _admin_thread = {
            let common = Common {
                lifecycle: self.lifecycle.clone(),
                errors: self.accept_errors,
                metrics: self.http_metrics,
            };
            let prometheus = self.prometheus_listener.zip(Some(
                self.admin.clone().metrics_router(&self.prometheus_path),
            ));
            let listeners = [Some((self.admin_listener, self.admin.router())), prometheus];
            Thread::spawn(
                "admin",
                admin::serve(listeners.into_iter().flatten().collect(), common),
            )?
        };
        let sending = self.statsd.map(statsd::Exporter::start);

        let mut store_is_missed = pin!(missed(&self.backend, self.store_must_come_within));
        let signal = loop {
            tokio::select! {
                signal = stop() => break signal,
                () = reload() => {
                    running_source.load();
                    certificates.iter().chain(&secrets).for_each(FileWatch::load);
                }
                within = &mut store_is_missed => {
                    bail!("{} was not reached within {within} (REDIS_STARTUP_MAX_ELAPSED_TIME)", self.backend);
                }
            }
        };
        // New rules and certificates are for the next process. The kernel takes its time to close a
        // watch, seconds where many files change, and no process ends before it has: begun
        // now, that is over when the drain is, and whoever waits for the port does not wait for it.
        drop((running_source, certificates, secrets));
        tokio::select! {
            () = drain(&self.lifecycle, running, (exporting, sending), signal, self.drain_period, self.shutdown_timeout) => {}
            _ = stop() => tracing::warn!("a second signal: ending at once"),
        }
        Ok(())
    }
}

/// Returns when the store has not come in time; never, if it has, or may take as long as it takes.
async fn missed(backend: &Backend, within: Option<Span>) -> Span {
    let Some(within) = within else {
        return pending().await;
    };
    tokio::time::sleep(within.into()).await;
    if backend.was_reachable() {
        pending().await
    } else {
        within
    }
}

async fn drain(
    lifecycle: &Lifecycle,
    running: Running,
    (exporting, sending): (Option<SpanExporterTask>, Option<StatsdTask>),
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
    let flush_spans = async {
        match exporting {
            Some(exporting) => exporting.flush().await,
            None => true,
        }
    };
    let flush_metrics = async {
        if let Some(sending) = sending {
            sending.finish().await;
        }
    };
    let are_spans_flushed = tokio::select! {
        (are_flushed, ()) = async { tokio::join!(flush_spans, flush_metrics) } => are_flushed,
        () = over => {
            tracing::warn!(timeout = %shutdown_timeout, "SHUTDOWN_TIMEOUT was over before the last metrics and spans were sent");
            return;
        }
    };
    if !are_spans_flushed {
        tracing::warn!("the collector has not taken the last spans in time: they are lost");
    }
}

/// What a mapping file says. Without a good one metrics have the names that they have by default: a
/// page that nobody can read is worse than one that somebody has to get used to.
fn load_mapping(path: &Path) -> Option<Mapping> {
    match metric_mapping::load(path) {
        Ok(loaded) => {
            for warning in loaded.warnings {
                tracing::warn!(path = %path.display(), "PROMETHEUS_MAPPER_YAML: {warning}");
            }
            Some(loaded.mapping)
        }
        // Envoy Gateway sets it in every deployment, and mounts a ConfigMap that need not be there.
        Err(error @ MappingError::Absent) => {
            tracing::info!(path = %path.display(), "PROMETHEUS_MAPPER_YAML: {error}; metrics have their usual names");
            None
        }
        Err(error) => {
            tracing::error!(path = %path.display(), "PROMETHEUS_MAPPER_YAML: {error}; metrics have their usual names");
            None
        }
    }
}

/// `host:port`, or `:port` for every address.
fn bind_prometheus(addr: &str) -> anyhow::Result<TcpListener> {
    let (host, port) = addr
        .rsplit_once(':')
        .context("PROMETHEUS_ADDR is no HOST:PORT")?;
    let port = port
        .parse()
        .with_context(|| format!("PROMETHEUS_ADDR: {port} is no port"))?;
    bind::tcp((host, port), "PROMETHEUS_ADDR")
}
