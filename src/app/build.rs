//! Builds the components from the settings, binds every port, and loads rules for the first time.
//!
//! Invalid rules do not prevent the start: valid ones may follow.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;

use crate::admin::api::token::TokenFile;
use crate::api::certificates::{CertificateSource, Files};
use crate::api::connection::Connections;
use crate::api::descriptors::ConnectionBounds;
use crate::api::listener::Listeners;
use crate::api::tls::Tls;
use crate::api::{Api, bind};
use crate::app::admin;
use crate::app::banner::Summary;
use crate::app::rules::{Candidates, Rules};
use crate::config::metric_mapping;
use crate::console::history::History;
use crate::http::accept::AcceptErrors;
use crate::http::budget::{Bounds, HttpMetrics};
use crate::limiter::fallback::Fallback;
use crate::limiter::{self, Observers, Parts};
use crate::record::writer::Writer;
use crate::record::{self, Recorder};
use crate::rule_source::RuleSource;
use crate::rule_source::candidate::CandidateLoader;
use crate::settings::{Resolved, Settings};
use crate::shutdown::Lifecycle;
use crate::store::redis::connect::credentials::CredentialReloader;
use crate::store::settings::BackendChoice;
use crate::store::{Backend, memory, redis};
use crate::telemetry;
use crate::telemetry::log::Log;
use crate::telemetry::mapper::Mapping;
use crate::telemetry::metric::Metrics;
use crate::telemetry::metric_export;
use crate::telemetry::statsd;
use crate::telemetry::traces::options::Options;
use crate::telemetry::traces::{Traces, export};
use crate::time::Clock;
use crate::top_keys::TopKeys;
use crate::trial::Trial;
use crate::trial::share::PercentFile;

/// A service whose ports are bound and whose components are built, but not started.
pub(crate) struct App {
    pub(super) api: Api,
    pub(super) listeners: Listeners,
    pub(super) settings: Settings,
    pub(super) admin: (Vec<(TcpListener, Router)>, Bounds),
    pub(super) admin_token: Option<TokenFile>,
    pub(super) history: History,
    pub(super) accept_errors: AcceptErrors,
    pub(super) http_metrics: HttpMetrics,
    pub(super) top_keys: TopKeys,
    pub(super) rule_source: RuleSource,
    pub(super) candidate_source: Option<CandidateLoader>,
    pub(super) trial_share: Option<PercentFile>,
    pub(super) certificates: Option<CertificateSource>,
    pub(super) backend: Backend,
    pub(super) credentials: Option<CredentialReloader>,
    pub(super) record: Option<Writer>,
    pub(super) spans: Option<export::Exporter>,
    pub(super) metric_sinks: MetricSinks,
    pub(super) clock: Clock,
    pub(super) lifecycle: Lifecycle,
    pub(super) metrics: Metrics,
    pub(super) summary: Summary,
}

/// Where metrics are sent.
pub(super) struct MetricSinks {
    pub(super) statsd: Option<statsd::Exporter>,
    pub(super) otlp: Option<metric_export::Exporter>,
}

struct Ports {
    /// Of the connections of each.
    bounds: ConnectionBounds,
    listeners: Listeners,
    admin: TcpListener,
    prometheus: Option<TcpListener>,
}

impl App {
    /// # Errors
    /// A port that cannot be bound, or files of TLS that cannot be used.
    pub(crate) fn bind(resolved: Resolved, log: &Log) -> anyhow::Result<Self> {
        let Resolved {
            settings,
            rules_from: origin,
            candidate_from,
            backend,
            grpc_tls,
            trial,
            statsd,
            ..
        } = resolved;
        let (clock, lifecycle) = (Clock::system(), Lifecycle::default());
        let metrics = metrics(&settings.telemetry, log);
        let accept_errors = AcceptErrors::new(&metrics);
        let ports = Ports::bind(&settings, &accept_errors)?;
        let (backend, credentials) = store(backend, &settings, (&clock, &lifecycle), &metrics);
        let rules = Rules::load(origin, &settings, &backend, &clock, &lifecycle, &metrics);
        let summary = summary(&settings, &ports, &backend, &rules, grpc_tls.as_ref())?;
        let view = rules.view(&settings, summary.admin);
        let candidates = Candidates::load(candidate_from, &settings, &backend, &view, &metrics);
        let trial = trial.map(|options| Trial::new(options, &view, &clock, &metrics));
        let (admin, mut observers, admin_token) = admin::routes(
            (&settings, summary.admin),
            (resolved.admin_token, view.redaction),
            (ports.admin, ports.prometheus),
            (&rules, &candidates, trial.as_ref()),
            (&backend, &clock, &lifecycle),
            &metrics,
        );
        let (certificates, tls) = certificates(grpc_tls, &metrics)?;
        let (traces, spans) = open_traces(resolved.traces, &clock, &metrics);
        let (recorder, record) = recording(resolved.record, &metrics)?;
        let top_keys = observers.top_keys.clone();
        observers.recorder = recorder;
        let rules_of = (&rules, &candidates);
        let limiter = limiter(&settings, rules_of, &backend, &clock, observers, &metrics);
        let http_metrics = HttpMetrics::new(&metrics);
        let api = Api::new(
            Arc::new(limiter),
            Connections::new(tls, settings.api.connection_limits(), &metrics),
            lifecycle.clone(),
            http_metrics.clone(),
            traces,
            &metrics,
        );
        Ok(Self {
            top_keys,
            trial_share: trial.as_ref().and_then(Trial::share_file),
            api: api.with_trial(trial).with_bounds(ports.bounds),
            listeners: ports.listeners,
            admin: (admin, ports.bounds.admin),
            admin_token,
            history: rules.history,
            accept_errors,
            http_metrics,
            rule_source: rules.source,
            candidate_source: candidates.source,
            certificates,
            backend,
            credentials,
            record,
            spans,
            metric_sinks: MetricSinks::new(statsd, resolved.metric_export, &clock, &metrics),
            clock,
            lifecycle,
            metrics,
            summary,
            settings,
        })
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl MetricSinks {
    fn new(
        statsd: Option<statsd::Options>,
        otlp: Option<metric_export::settings::Options>,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        Self {
            statsd: statsd.map(|options| statsd::Exporter::new(options, metrics)),
            otlp: otlp.map(|options| metric_export::Exporter::new(options, clock, metrics)),
        }
    }
}

impl Ports {
    fn bind(settings: &Settings, errors: &AcceptErrors) -> anyhow::Result<Self> {
        // First: the limit of file descriptors is raised here.
        let bounds = ConnectionBounds::of_process(settings.api.workers())?;
        let prometheus = settings.telemetry.prometheus_addr();
        Ok(Self {
            bounds,
            listeners: Listeners::bind(&settings.api, errors.clone())?,
            admin: bind::tcp(settings.admin.address(), "DEBUG_HOST and DEBUG_PORT")?,
            prometheus: prometheus.map(bind_prometheus).transpose()?,
        })
    }
}

fn metrics(settings: &telemetry::settings::Settings, log: &Log) -> Metrics {
    let mapping = settings.mapping_file();
    let mapping = mapping.and_then(|path| load_mapping(Path::new(path)));
    let metrics = Metrics::named(settings.naming(mapping));
    metrics.add_process();
    log.register(&metrics);
    metrics
}

fn store(
    choice: BackendChoice,
    settings: &Settings,
    (clock, lifecycle): (&Clock, &Lifecycle),
    metrics: &Metrics,
) -> (Backend, Option<CredentialReloader>) {
    let (backend, credentials) = match choice {
        BackendChoice::Memory => {
            let counters =
                memory::Counters::new(settings.store.memory.memory_bytes_max, "store", metrics);
            (Backend::Memory(Arc::new(counters)), None)
        }
        BackendChoice::Redis(options, secrets) => {
            let redis = redis::Redis::new(*options, clock.clone(), metrics);
            (
                Backend::Redis(Arc::new(redis)),
                CredentialReloader::new(secrets, metrics),
            )
        }
    };
    lifecycle.set_store(backend.is_ready(), backend.to_string());
    (backend, credentials)
}

fn limiter(
    settings: &Settings,
    (rules, candidates): (&Rules, &Candidates),
    backend: &Backend,
    clock: &Clock,
    observers: Observers,
    metrics: &Metrics,
) -> limiter::Shared {
    let parts = Parts {
        rules: rules.live.clone(),
        backend: backend.clone(),
        fallback: Fallback::new(settings.limiter.on_store_error, metrics),
        clock: clock.clone(),
        settings: settings.limiter.clone(),
        observers: Some(Arc::new(observers)),
        candidate: candidates.in_use(),
    };
    limiter::Shared::new(parts, metrics)
}

fn certificates(
    files: Option<Files>,
    metrics: &Metrics,
) -> anyhow::Result<(Option<CertificateSource>, Option<Tls>)> {
    let source = files.map(|files| CertificateSource::new(files, metrics));
    let source = source.transpose()?;
    let tls = source.as_ref().map(|source| source.tls(metrics));
    Ok((source, tls))
}

fn recording(
    options: Option<record::settings::Options>,
    metrics: &Metrics,
) -> anyhow::Result<(Option<Recorder>, Option<Writer>)> {
    let opened = options.map(|options| Recorder::open(&options, metrics));
    Ok(opened.transpose()?.unzip())
}

fn open_traces(
    options: Option<Options>,
    clock: &Clock,
    metrics: &Metrics,
) -> (Traces, Option<export::Exporter>) {
    let traces = options.map(|options| Traces::new(options, clock.clone(), metrics));
    let (traces, spans) = traces.unzip();
    (traces.unwrap_or_default(), spans)
}

fn summary(
    settings: &Settings,
    ports: &Ports,
    backend: &Backend,
    rules: &Rules,
    tls: Option<&Files>,
) -> anyhow::Result<Summary> {
    let listeners = &ports.listeners;
    let prometheus = ports.prometheus.as_ref().map(TcpListener::local_addr);
    Ok(Summary {
        store: backend.to_string(),
        store_is_local: matches!(backend, Backend::Memory(_)),
        grpc: listeners.grpc_addr().context("read the gRPC address")?,
        grpc_security: match tls {
            None => "",
            Some(files) if files.clients.is_none() => "  TLS",
            Some(_) => "  TLS, client certificates required",
        },
        http: listeners.http_addr().context("read the HTTP address")?,
        admin: ports.admin.local_addr().context("read the admin address")?,
        trial: settings.trial.upstream(),
        prometheus: prometheus
            .transpose()
            .context("read the Prometheus address")?,
        rules_from: rules.origin.clone(),
        rules: rules.initial,
        example: rules.live.load().as_ref().and_then(|rules| rules.example()),
        workers: settings.api.workers(),
    })
}

/// Loads a mapping file. Without a valid one metrics keep their usual names: a page that cannot be
/// read would be worse.
fn load_mapping(path: &Path) -> Option<Mapping> {
    match metric_mapping::load(path) {
        Ok(Ok(loaded)) => {
            for warning in loaded.warnings {
                let (at, hint) = (warning.source_location(), warning.hint);
                tracing::warn!(at, hint, "PROMETHEUS_MAPPER_YAML: {}", warning.text);
            }
            return Some(loaded.mapping);
        }
        Ok(Err(problems)) => {
            for problem in problems {
                let (at, hint) = (problem.source_location(), problem.hint);
                tracing::error!(
                    at,
                    hint,
                    "PROMETHEUS_MAPPER_YAML: {}; metrics keep their usual names",
                    problem.text
                );
            }
        }
        // Envoy Gateway sets it in every deployment, and mounts a ConfigMap that may not exist.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::info!(path = %path.display(), "PROMETHEUS_MAPPER_YAML: it is not there; metrics keep their usual names");
        }
        Err(error) => {
            tracing::error!(path = %path.display(), "PROMETHEUS_MAPPER_YAML: it cannot be read: {error}; metrics keep their usual names");
        }
    }
    None
}

/// Binds `host:port`, or `:port` for all addresses.
fn bind_prometheus(addr: &str) -> anyhow::Result<TcpListener> {
    let (host, port) = addr
        .rsplit_once(':')
        .context("PROMETHEUS_ADDR is not HOST:PORT")?;
    let port = port
        .parse()
        .with_context(|| format!("PROMETHEUS_ADDR: {port} is not a port"))?;
    bind::tcp((host, port), "PROMETHEUS_ADDR")
}
