//! Settings of metrics by OTLP: those of OpenTelemetry. What is not here is shared with traces.

use clap::Args;

use crate::base::parse::Secret;
use crate::base::time::Span;
use crate::telemetry::otlp::options::{self as otlp, Protocol, first};
use crate::telemetry::traces;

/// The default of OpenTelemetry.
const INTERVAL: Span = Span::from_secs(60);

/// Metrics by OTLP.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Metrics by OTLP")]
pub struct Settings {
    /// Whole URL of an OpenTelemetry collector, such as http://collector:4318/v1/metrics, or with
    /// grpc http://collector:4317: sends metrics to it, under the names of /metrics
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    pub otel_exporter_otlp_metrics_endpoint: Option<String>,
    /// Protocol for metrics: http/protobuf or grpc [default: OTEL_EXPORTER_OTLP_PROTOCOL]
    #[arg(long, env, value_name = "PROTOCOL")]
    pub otel_exporter_otlp_metrics_protocol: Option<String>,
    /// Protocol for metrics, as http/protobuf or grpc; traces have TRACING_EXPORTER_PROTOCOL
    /// [default: http/protobuf]
    #[arg(long, env, value_name = "PROTOCOL")]
    pub otel_exporter_otlp_protocol: Option<String>,
    /// Headers of requests with metrics; they take precedence over OTEL_EXPORTER_OTLP_HEADERS
    #[arg(long, env, hide_env_values = true, value_name = "LIST", value_parser = Secret::read)]
    pub otel_exporter_otlp_metrics_headers: Option<Secret>,
    /// Time between two exports of metrics [default: 60000]
    #[arg(long, env, value_name = "MILLISECONDS")]
    pub otel_metric_export_interval: Option<String>,
}

/// How metrics are sent, where they are.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) otlp: otlp::Options,
    pub(crate) interval: Span,
}

impl Settings {
    /// How metrics are sent; `None` without an endpoint.
    ///
    /// # Errors
    /// Invalid settings, or files that cannot be used.
    pub(crate) fn options(
        &self,
        shared: &traces::settings::Settings,
    ) -> Result<Option<Options>, String> {
        let Some((name, url)) = first!(self.otel_exporter_otlp_metrics_endpoint) else {
            return Ok(None);
        };
        let otlp = otlp::Options {
            protocol: self.protocol()?,
            endpoint: otlp::endpoint(&name, url)?,
            tls: otlp::tls(
                first!(shared.otel_exporter_otlp_certificate),
                first!(shared.otel_exporter_otlp_client_certificate),
                first!(shared.otel_exporter_otlp_client_key),
            )?,
            headers: otlp::headers([
                (
                    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
                    &self.otel_exporter_otlp_metrics_headers,
                ),
                (
                    "OTEL_EXPORTER_OTLP_HEADERS",
                    &shared.otel_exporter_otlp_headers,
                ),
            ])?,
            timeout: otlp::timeout(first!(shared.otel_exporter_otlp_timeout))?,
            resource: shared.resource()?,
        };
        otlp.check_files()?;
        let interval = first!(self.otel_metric_export_interval);
        let interval = interval.map_or(Ok(INTERVAL), |set| otlp::millis(&set))?;
        Ok(Some(Options { otlp, interval }))
    }

    fn protocol(&self) -> Result<Protocol, String> {
        let set = first!(
            self.otel_exporter_otlp_metrics_protocol,
            self.otel_exporter_otlp_protocol
        );
        match set {
            None | Some((_, "http/protobuf")) => Ok(Protocol::Http),
            Some((_, "grpc")) => Ok(Protocol::Grpc),
            Some((name, _)) => Err(format!("{name}: write http/protobuf or grpc")),
        }
    }
}
