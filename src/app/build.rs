//! Builds the components from the settings, binds every port, and loads rules for the first time.
//!
//! Invalid rules do not prevent the start: valid ones may follow.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};

use crate::api::certificates::{self, Files};
use crate::api::connection::Connections;
use crate::api::descriptors::ConnectionBounds;
use crate::api::listener::Listeners;
use crate::api::{Api, bind};
use crate::app::admin::{self, AdminPort, Shown};
use crate::app::background::Background;
use crate::app::banner::Summary;
use crate::app::core::Core;
use crate::app::port_holder;
use crate::app::rules::Rules;
use crate::app::settings::Resolved;
use crate::base::http::accept::AcceptErrors;
use crate::base::http::budget::HttpMetrics;
use crate::limiter::fallback::Fallback;
use crate::limiter::{self, Parts};
use crate::operator::observe::redact::DescriptorView;
use crate::rules::source::RuleSource;
use crate::store::Backend;
use crate::telemetry::log::Log;
use crate::telemetry::statsd::{self, StatsdTask};
use crate::telemetry::traces::Traces;
use crate::telemetry::traces::export;
use crate::trial::Trial;

/// A service whose ports are bound and whose components are built, but not started.
pub(crate) struct App {
    pub(super) core: Core,
    pub(super) api: Api,
    pub(super) listeners: Listeners,
    pub(super) background: Background,
    pub(super) summary: Summary,
}

struct Ports {
    /// Bounds of the connections of each port.
    bounds: ConnectionBounds,
    listeners: Listeners,
    admin: TcpListener,
    prometheus: Option<TcpListener>,
    errors: AcceptErrors,
}

impl App {
    /// # Errors
    /// A port that cannot be bound, or files of TLS that cannot be used.
    pub(crate) fn bind(resolved: Resolved, log: &Log) -> anyhow::Result<Self> {
        let mut background = Background::default();
        let core = Core::new(resolved.settings, resolved.backend, log, &mut background);
        let ports = Ports::bind(&core).map_err(|error| in_use(error, &core))?;
        let rules = Rules::load(resolved.rules_from, &core);
        core.maintain_store(rules.live.clone(), &mut background);
        let summary = summary(&core, &ports, &rules, resolved.grpc_tls.as_ref())?;
        let values = core.settings.admin.values(summary.admin);
        let view = DescriptorView { values, rules: rules.live.clone() };
        let trial = resolved.trial;
        let trial = trial.map(|options| Trial::new(options, &view, &core.clock, &core.metrics));
        let http_metrics = HttpMetrics::new(&core.metrics);
        let port = AdminPort {
            listener: ports.admin,
            prometheus: ports.prometheus,
            bounds: ports.bounds.admin,
            errors: ports.errors,
            metrics: http_metrics.clone(),
        };
        let local = core.settings.admin.local_values(summary.admin, &rules.origin);
        let shown = Shown { rules: &rules, trial: trial.as_ref(), values, local };
        let observers = admin::build(&core, port, resolved.admin_tokens, &shown, &mut background);
        let files = resolved.grpc_tls;
        let tls = files.map(|files| certificates::open(files, &core.metrics)).transpose()?;
        let (tls, certificates) = tls.unzip();
        background.watch(certificates);
        let traces = resolved.traces;
        let traces = traces.map(|options| Traces::new(&options, &core.metrics)).transpose()?;
        let (traces, spans) = traces.unzip();
        background.finish(spans, Ok, export::LastSpans::send);
        let settings = core.settings.limiter.clone();
        let limiter = Parts {
            rules: rules.live.clone(),
            backend: core.backend.clone(),
            fallback: Fallback::new(settings.on_store_error, &core.metrics),
            clock: core.clock.clone(),
            settings,
            observers: Some(Arc::new(observers)),
        };
        let mut api = Api::new(
            Arc::new(limiter::Shared::new(limiter, &core.metrics)),
            Connections::new(tls, core.settings.api.connection_limits(), &core.metrics),
            core.lifecycle.clone(),
            http_metrics,
            traces.unwrap_or_default(),
            &core.metrics,
        );
        background.reload(Some(rules.source), RuleSource::start, |load| load());
        background.watch(trial.as_ref().and_then(Trial::share_file));
        (api.trial, api.bounds) = (trial, ports.bounds);
        let statsd = resolved.statsd;
        let statsd = statsd.map(|options| statsd::Exporter::new(options, &core.metrics));
        background.finish(statsd, |statsd| Ok(statsd.start()), StatsdTask::finish);
        Ok(Self { core, api, listeners: ports.listeners, background, summary })
    }
}

impl Ports {
    fn bind(core: &Core) -> anyhow::Result<Self> {
        let settings = &core.settings;
        // First: the limit of file descriptors is raised here.
        let bounds = ConnectionBounds::of_process(settings.api.workers())?;
        let errors = AcceptErrors::new(&core.metrics);
        let prometheus = settings.telemetry.prometheus_addr();
        Ok(Self {
            bounds,
            listeners: Listeners::bind(&settings.api, errors.clone())?,
            admin: bind::tcp(settings.admin.address(), "DEBUG_HOST and DEBUG_PORT")?,
            prometheus: prometheus.map(bind_prometheus).transpose()?,
            errors,
        })
    }
}

fn summary(
    core: &Core,
    ports: &Ports,
    rules: &Rules,
    tls: Option<&Files>,
) -> anyhow::Result<Summary> {
    let listeners = &ports.listeners;
    let prometheus = ports.prometheus.as_ref().map(TcpListener::local_addr);
    Ok(Summary {
        store: core.backend.to_string(),
        store_is_local: matches!(core.backend, Backend::Memory(_)),
        grpc: listeners.grpc_addr().context("read the gRPC address")?,
        grpc_security: match tls {
            None => "",
            Some(files) if files.clients.is_none() => "  TLS",
            Some(_) => "  TLS, client certificates required",
        },
        http: listeners.http_addr().context("read the HTTP address")?,
        admin: ports.admin.local_addr().context("read the admin address")?,
        trial: core.settings.trial.upstream(),
        prometheus: prometheus.transpose().context("read the Prometheus address")?,
        rules_from: rules.origin.to_string(),
        rules: rules.initial,
        example: rules.live.load().as_ref().and_then(|rules| rules.example()),
        workers: core.settings.api.workers(),
    })
}

/// An error of a port that is in use says what to do.
fn in_use(error: anyhow::Error, core: &Core) -> anyhow::Error {
    let cause = error.downcast_ref::<io::Error>().map(io::Error::kind);
    if cause != Some(io::ErrorKind::AddrInUse) {
        return error;
    }
    anyhow!("{error:#}; {}", port_holder::advice(core.settings.admin.address()))
}

/// Binds `host:port`, or `:port` for all addresses.
fn bind_prometheus(addr: &str) -> anyhow::Result<TcpListener> {
    let (host, port) = addr.rsplit_once(':').context("PROMETHEUS_ADDR is not HOST:PORT")?;
    let port = port.parse().with_context(|| format!("PROMETHEUS_ADDR: {port} is not a port"))?;
    bind::tcp((host, port), "PROMETHEUS_ADDR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_is_bound_at_one_address_or_all() {
        for (addr, is_ipv4) in [("127.0.0.1:0", true), ("[::]:0", false), (":0", false)] {
            let listener = bind_prometheus(addr).expect("any port will do");
            let bound = listener.local_addr().expect("it is bound");
            assert_eq!(bound.is_ipv4(), is_ipv4, "{addr}");
        }
        for invalid in ["9090", "127.0.0.1", ":http"] {
            assert!(bind_prometheus(invalid).is_err(), "{invalid}");
        }
    }
}
