//! Runs the components until a signal, then drains them.
//!
//! ```text
//! SIGTERM        DRAIN_PERIOD            SHUTDOWN_TIMEOUT
//!    |---- NOT_SERVING, still serving ----|---- no new connections; requests in flight, ----|
//!                                              then the last metrics, spans and records
//! ```
//! SIGINT skips the first part, and a second signal ends both.

use std::future::pending;
use std::pin::pin;

use anyhow::bail;

use crate::admin;
use crate::api::Running;
use crate::app::build::App;
use crate::file_watch::FileWatch;
use crate::record::writer::{Writer, WriterTask};
use crate::runtime::Thread;
use crate::shutdown::{Lifecycle, Phase};
use crate::store::Backend;
use crate::telemetry::metric_export::{self, MetricExporterTask};
use crate::telemetry::statsd::{self, StatsdTask};
use crate::telemetry::traces::export::{self, SpanExporterTask};
use crate::time::Span;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM: drain first, so that load balancers notice.
    Terminate,
    /// SIGINT: an operator waits at a terminal.
    Interrupt,
}

/// What is left to do once a signal has come.
struct Draining {
    lifecycle: Lifecycle,
    requests: Running,
    backend: Backend,
    record: Option<WriterTask>,
    spans: Option<SpanExporterTask>,
    metric_export: Option<MetricExporterTask>,
    statsd: Option<StatsdTask>,
    period: Span,
    timeout: Span,
}

impl App {
    /// Serves until `stop` returns, then drains; if it returns again, stops at once.
    ///
    /// Rules, certificates and credentials are reloaded whenever `reload` returns.
    ///
    /// # Errors
    /// A thread or a runtime cannot be started, or Redis was not reached in time.
    pub(crate) async fn run(
        self,
        mut stop: impl AsyncFnMut() -> Signal,
        mut reload: impl AsyncFnMut(),
    ) -> anyhow::Result<()> {
        let rules = self.rule_source.start()?;
        let candidates = self.candidate_source.map(FileWatch::start).transpose()?;
        let trial_share = self.trial_share.map(FileWatch::start).transpose()?;
        let admin_token = self.admin_token.map(FileWatch::start).transpose()?;
        let certificates = self.certificates.map(FileWatch::start).transpose()?;
        let credentials = self.credentials.map(FileWatch::start).transpose()?;
        let sinks = self.metric_sinks;
        let draining = Draining {
            record: self.record.map(Writer::start).transpose()?,
            spans: self.spans.map(export::Exporter::start).transpose()?,
            metric_export: sinks.otlp.map(metric_export::Exporter::start).transpose()?,
            requests: self
                .api
                .start(self.listeners, self.settings.api.workers(), &self.metrics)?,
            statsd: sinks.statsd.map(statsd::Exporter::start),
            backend: self.backend.clone(),
            lifecycle: self.lifecycle.clone(),
            period: self.settings.api.drain_period,
            timeout: self.settings.api.shutdown_timeout,
        };
        // In threads of their own: requests to the admin listener delay neither the store nor
        // signals.
        let admin = admin::serve(
            self.admin,
            self.lifecycle.clone(),
            self.accept_errors,
            self.http_metrics,
        );
        let (history, top_keys) = (self.history.run(), self.top_keys.run());
        let admin = async {
            tokio::select! {
                () = admin => {}
                () = history => {}
                () = top_keys => {}
            }
        };
        let store = self.backend.clone().maintain(self.clock, self.lifecycle);
        let _store_thread = Thread::spawn("store", store)?;
        let _admin_thread = Thread::spawn("admin", admin)?;

        let startup_timeout = self.settings.store.redis.startup_max();
        let mut unreachable = pin!(unreachable(&self.backend, startup_timeout));
        let signal = loop {
            tokio::select! {
                signal = stop() => break signal,
                () = reload() => {
                    rules.load();
                    certificates.iter().chain(&credentials).chain(&candidates).chain(&trial_share).chain(&admin_token).for_each(FileWatch::load);
                }
                within = &mut unreachable => {
                    bail!("{} was not reached within {within} (REDIS_STARTUP_MAX_ELAPSED_TIME)", self.backend);
                }
            }
        };
        // The kernel takes seconds to close a watch of many files, and the process cannot end
        // before. Begun now, that ends with the drain.
        drop((rules, candidates, trial_share, admin_token));
        drop((certificates, credentials));
        tokio::select! {
            () = draining.finish(signal) => {}
            _ = stop() => tracing::warn!("second signal: stopping at once"),
        }
        Ok(())
    }
}

impl Draining {
    async fn finish(self, signal: Signal) {
        let Self {
            period, timeout, ..
        } = self;
        if signal == Signal::Terminate {
            tracing::info!(%period, "draining: reporting NOT_SERVING, still serving requests");
            self.lifecycle.enter(Phase::Draining);
            tokio::time::sleep(period.into()).await;
        }
        tracing::info!(%timeout, "stopping: waiting for requests in flight");
        self.lifecycle.enter(Phase::Stopping);
        let mut timed_out = pin!(tokio::time::sleep(timeout.into()));
        tokio::select! {
            () = self.requests.finished() => {}
            () = &mut timed_out => {
                tracing::warn!(%timeout, "requests were still in flight at SHUTDOWN_TIMEOUT");
                return;
            }
        }
        let flush_spans = async {
            match self.spans {
                Some(spans) => spans.flush().await,
                None => true,
            }
        };
        let flush_metrics = async {
            if let Some(statsd) = self.statsd {
                statsd.finish().await;
            }
        };
        let export_metrics = async {
            if let Some(export) = self.metric_export {
                export.finish().await;
            }
        };
        let flush_record = async {
            if let Some(record) = self.record {
                record.finish().await;
            }
        };
        let flush = async {
            tokio::join!(
                flush_spans,
                flush_metrics,
                export_metrics,
                self.backend.finish(),
                flush_record
            )
            .0
        };
        tokio::select! {
            are_spans_sent = flush => {
                if !are_spans_sent {
                    tracing::warn!("the collector did not accept the last spans in time; they are lost");
                }
            }
            () = timed_out => {
                tracing::warn!(%timeout, "the last metrics and spans were not sent by SHUTDOWN_TIMEOUT");
            }
        }
    }
}

/// Returns when the store was not reached within a time after the start; never otherwise.
async fn unreachable(backend: &Backend, within: Option<Span>) -> Span {
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
