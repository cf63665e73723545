//! Settings of traces: those of envoyproxy/ratelimit, and those of OpenTelemetry for OTLP.
//!
//! OpenTelemetry has two names for each setting; the one with TRACES takes precedence. Values are
//! texts here and are read only where traces are on (`options.rs`): clusters set them for every
//! pod.

use clap::Args;

use crate::base::named_enum::named_enum;
use crate::base::parse::{self, Secret};
use crate::base::sampling::SampleRate;

named_enum! {
    /// Protocol of the collector.
    pub enum Protocol {
        /// OTLP over HTTP, as protobuf.
        Http = "http",
        /// OTLP over gRPC.
        Grpc = "grpc",
    }
}

/// Traces.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Traces")]
pub struct Settings {
    /// Send traces to an OpenTelemetry collector
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub tracing_enabled: bool,
    /// Resource attribute service.name
    #[arg(long, env, default_value = "RateLimit", value_name = "NAME")]
    pub tracing_service_name: String,
    /// Resource attribute service.namespace
    #[arg(long, env, value_name = "NAME")]
    pub tracing_service_namespace: Option<String>,
    /// Resource attribute service.instance.id [default: a random UUID]
    #[arg(long, env, value_name = "ID")]
    pub tracing_service_instance_id: Option<String>,
    /// Protocol of the collector: http or grpc
    #[arg(long, env, default_value = "http", value_name = "PROTOCOL")]
    pub tracing_exporter_protocol: Protocol,
    /// Ratio of requests to trace, from 0 to 1, where the caller has made no sampling decision
    #[arg(long, env, default_value = "1", value_name = "RATE", value_parser = SampleRate::read)]
    pub tracing_sampling_rate: SampleRate,
    /// URL of the collector; over http, /v1/traces is appended [default: http://localhost:4318,
    /// with grpc http://localhost:4317]
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    pub otel_exporter_otlp_endpoint: Option<String>,
    /// The same for traces only, as the whole URL; it takes precedence
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    pub otel_exporter_otlp_traces_endpoint: Option<String>,
    /// Headers of requests, such as a token: NAME=VALUE,NAME=VALUE with percent-encoded values
    #[arg(long, env, hide_env_values = true, value_name = "LIST", value_parser = Secret::read)]
    pub otel_exporter_otlp_headers: Option<Secret>,
    /// The same for traces only; it takes precedence
    #[arg(long, env, hide_env_values = true, value_name = "LIST", value_parser = Secret::read)]
    pub otel_exporter_otlp_traces_headers: Option<Secret>,
    /// Time for sending a batch, with all attempts [default: 10000]
    #[arg(long, env, value_name = "MILLISECONDS")]
    pub otel_exporter_otlp_timeout: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(long, env, value_name = "MILLISECONDS")]
    pub otel_exporter_otlp_traces_timeout: Option<String>,
    /// none or gzip [default: none]
    #[arg(long, env, value_name = "NAME")]
    pub otel_exporter_otlp_compression: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(long, env, value_name = "NAME")]
    pub otel_exporter_otlp_traces_compression: Option<String>,
    /// The only authority to trust with https (PEM) [default: the system's authorities]
    #[arg(long, env, value_name = "FILE")]
    pub otel_exporter_otlp_certificate: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(long, env, value_name = "FILE")]
    pub otel_exporter_otlp_traces_certificate: Option<String>,
    /// Client certificate with https (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub otel_exporter_otlp_client_certificate: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(long, env, value_name = "FILE")]
    pub otel_exporter_otlp_traces_client_certificate: Option<String>,
    /// Private key of the client certificate (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub otel_exporter_otlp_client_key: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(long, env, value_name = "FILE")]
    pub otel_exporter_otlp_traces_client_key: Option<String>,
    /// Additional resource attributes: NAME=VALUE,NAME=VALUE with percent-encoded values
    #[arg(long, env, value_name = "LIST")]
    pub otel_resource_attributes: Option<String>,
}
