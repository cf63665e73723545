//! Settings of traces: those of envoyproxy/ratelimit, and those of OpenTelemetry for OTLP.
//!
//! OpenTelemetry has two names for each setting; the one with TRACES takes precedence. Their values
//! are read only where traces are on: clusters set them for every pod.

use std::path::Path;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use percent_encoding::percent_decode_str;

use crate::sampling::SampleRate;
use crate::settings::parse::{self, Secret};
use crate::telemetry::traces::connect::{Endpoint, Tls};
use crate::time::Span;
use crate::tls::{self, Identity, PemFile};

/// Default endpoints of OTLP.
const HTTP_ENDPOINT: &str = "http://localhost:4318";
const GRPC_ENDPOINT: &str = "http://localhost:4317";
/// OTLP over HTTP appends this to the path of OTEL_EXPORTER_OTLP_ENDPOINT.
const HTTP_PATH: &str = "/v1/traces";
/// The default of OpenTelemetry.
const TIMEOUT: Span = Span::from_secs(10);

/// Traces.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Traces")]
pub struct Settings {
    /// Send traces to an OpenTelemetry collector
    #[arg(long, env = "TRACING_ENABLED", default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub tracing_enabled: bool,
    /// Resource attribute service.name
    #[arg(
        long,
        env = "TRACING_SERVICE_NAME",
        default_value = "RateLimit",
        value_name = "NAME"
    )]
    pub tracing_service_name: String,
    /// Resource attribute service.namespace
    #[arg(
        long,
        env = "TRACING_SERVICE_NAMESPACE",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    pub tracing_service_namespace: String,
    /// Resource attribute service.instance.id [default: a random UUID]
    #[arg(long, env = "TRACING_SERVICE_INSTANCE_ID", value_name = "ID")]
    pub tracing_service_instance_id: Option<String>,
    /// Protocol of the collector: http or grpc
    #[arg(long, env = "TRACING_EXPORTER_PROTOCOL", default_value = "http", value_name = "PROTOCOL", value_parser = protocol)]
    pub tracing_exporter_protocol: Protocol,
    /// Ratio of requests to trace, from 0 to 1, where the caller has made no sampling decision
    #[arg(long, env = "TRACING_SAMPLING_RATE", default_value = "1", value_name = "RATE", value_parser = SampleRate::read)]
    pub tracing_sampling_rate: SampleRate,
    /// URL of the collector; over http, /v1/traces is appended [default: http://localhost:4318, with
    /// grpc http://localhost:4317]
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub otel_exporter_otlp_endpoint: Option<String>,
    /// The same for traces only, as the whole URL; it takes precedence
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub otel_exporter_otlp_traces_endpoint: Option<String>,
    /// Headers of requests, such as a token: NAME=VALUE,NAME=VALUE with percent-encoded values
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", hide_env_values = true, value_name = "LIST", value_parser = Secret::read)]
    pub otel_exporter_otlp_headers: Option<Secret>,
    /// The same for traces only; it takes precedence
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_HEADERS", hide_env_values = true, value_name = "LIST", value_parser = Secret::read)]
    pub otel_exporter_otlp_traces_headers: Option<Secret>,
    /// Time for sending a batch, with all attempts [default: 10000]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TIMEOUT", value_name = "MILLISECONDS")]
    pub otel_exporter_otlp_timeout: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        value_name = "MILLISECONDS"
    )]
    pub otel_exporter_otlp_traces_timeout: Option<String>,
    /// none; gzip is accepted and sends uncompressed [default: none]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_COMPRESSION", value_name = "NAME")]
    pub otel_exporter_otlp_compression: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
        value_name = "NAME"
    )]
    pub otel_exporter_otlp_traces_compression: Option<String>,
    /// The only authority to trust with https (PEM) [default: the system's authorities]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub otel_exporter_otlp_certificate: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_traces_certificate: Option<String>,
    /// Client certificate with https (PEM)
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_client_certificate: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_traces_client_certificate: Option<String>,
    /// Private key of the client certificate (PEM)
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CLIENT_KEY", value_name = "FILE")]
    pub otel_exporter_otlp_client_key: Option<String>,
    /// The same for traces only; it takes precedence
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_traces_client_key: Option<String>,
    /// Additional resource attributes: NAME=VALUE,NAME=VALUE with percent-encoded values
    #[arg(
        long,
        env = "OTEL_RESOURCE_ATTRIBUTES",
        default_value = "",
        hide_default_value = true,
        value_name = "LIST"
    )]
    pub otel_resource_attributes: String,
}

/// Protocol of the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over HTTP, as protobuf.
    Http,
    /// OTLP over gRPC.
    Grpc,
}

/// How traces are sent, where they are on.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) protocol: Protocol,
    /// With the whole path.
    pub(crate) endpoint: Endpoint,
    pub(crate) tls: Tls,
    pub(crate) headers: HeaderMap,
    /// For a batch, with all attempts.
    pub(crate) timeout: Span,
    /// The sampling decision where the caller has made none.
    pub(crate) rate: SampleRate,
    pub(crate) resource: Vec<KeyValue>,
}

/// A setting of OpenTelemetry: its name and its value.
type Setting<'s> = (&'static str, Option<&'s str>);

impl Settings {
    /// How traces are sent; `None` if they are off.
    ///
    /// # Errors
    /// Invalid settings, or files that cannot be used.
    pub(crate) fn options(&self) -> Result<Option<Options>, String> {
        if !self.tracing_enabled {
            return Ok(None);
        }
        self.compression()?;
        let protocol = self.tracing_exporter_protocol;
        let options = Options {
            protocol,
            endpoint: self.endpoint(protocol)?,
            tls: self.tls()?,
            headers: self.headers()?,
            timeout: self.timeout()?,
            rate: self.tracing_sampling_rate,
            resource: self.resource()?,
        };
        if options.endpoint.is_encrypted() {
            // Invalid files are an error at startup, not when the first trace is lost.
            let (authority, identity) = (&options.tls.authority, &options.tls.identity);
            tls::client(authority.as_ref(), identity.as_ref())
                .map_err(|error| error.to_string())?;
        }
        Ok(Some(options))
    }

    /// Settings that are set and have no effect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let warning =
            "OTEL_EXPORTER_OTLP_COMPRESSION=gzip has no effect: traces are sent uncompressed";
        let is_unused = self.tracing_enabled && self.compression() == Ok(Compression::Gzip);
        is_unused.then(|| warning.to_owned()).into_iter().collect()
    }

    fn endpoint(&self, protocol: Protocol) -> Result<Endpoint, String> {
        let of_traces = (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            self.otel_exporter_otlp_traces_endpoint.as_deref(),
        );
        if let Some(endpoint) = read([of_traces], Endpoint::read)? {
            return Ok(endpoint);
        }
        let of_all = (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            self.otel_exporter_otlp_endpoint.as_deref(),
        );
        let endpoint = read([of_all], Endpoint::read)?;
        match protocol {
            Protocol::Http => {
                let endpoint = endpoint.map_or_else(|| Endpoint::read(HTTP_ENDPOINT), Ok)?;
                Ok(endpoint.below(HTTP_PATH))
            }
            Protocol::Grpc => endpoint.map_or_else(|| Endpoint::read(GRPC_ENDPOINT), Ok),
        }
    }

    fn timeout(&self) -> Result<Span, String> {
        let settings = [
            (
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
                self.otel_exporter_otlp_traces_timeout.as_deref(),
            ),
            (
                "OTEL_EXPORTER_OTLP_TIMEOUT",
                self.otel_exporter_otlp_timeout.as_deref(),
            ),
        ];
        Ok(read(settings, millis)?.unwrap_or(TIMEOUT))
    }

    fn compression(&self) -> Result<Compression, String> {
        let settings = [
            (
                "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
                self.otel_exporter_otlp_traces_compression.as_deref(),
            ),
            (
                "OTEL_EXPORTER_OTLP_COMPRESSION",
                self.otel_exporter_otlp_compression.as_deref(),
            ),
        ];
        Ok(read(settings, compression)?.unwrap_or(Compression::None))
    }

    fn tls(&self) -> Result<Tls, String> {
        let authority = file([
            (
                "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
                self.otel_exporter_otlp_traces_certificate.as_deref(),
            ),
            (
                "OTEL_EXPORTER_OTLP_CERTIFICATE",
                self.otel_exporter_otlp_certificate.as_deref(),
            ),
        ]);
        let cert = file([
            (
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
                self.otel_exporter_otlp_traces_client_certificate.as_deref(),
            ),
            (
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
                self.otel_exporter_otlp_client_certificate.as_deref(),
            ),
        ]);
        let key = file([
            (
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
                self.otel_exporter_otlp_traces_client_key.as_deref(),
            ),
            (
                "OTEL_EXPORTER_OTLP_CLIENT_KEY",
                self.otel_exporter_otlp_client_key.as_deref(),
            ),
        ]);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => {
                return Err(format!(
                    "{}: a certificate needs its key and a key its certificate; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY, or neither",
                    one.setting
                ));
            }
        };
        Ok(Tls {
            authority,
            identity,
        })
    }

    fn headers(&self) -> Result<HeaderMap, String> {
        let (setting, list) = match (
            &self.otel_exporter_otlp_traces_headers,
            &self.otel_exporter_otlp_headers,
        ) {
            (Some(list), _) => ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", list),
            (None, Some(list)) => ("OTEL_EXPORTER_OTLP_HEADERS", list),
            (None, None) => return Ok(HeaderMap::new()),
        };
        // The value is not quoted: it may be secret.
        let invalid = || {
            format!("{setting}: write NAME=VALUE,NAME=VALUE with names and values that HTTP allows")
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs(list.reveal()).ok_or_else(invalid)? {
            let name: HeaderName = name.parse().map_err(|_| invalid())?;
            let mut value: HeaderValue = value.parse().map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(headers)
    }

    fn resource(&self) -> Result<Vec<KeyValue>, String> {
        let more = pairs(&self.otel_resource_attributes)
            .ok_or("OTEL_RESOURCE_ATTRIBUTES: write NAME=VALUE,NAME=VALUE")?;
        let instance = self.tracing_service_instance_id.clone();
        let own = [
            ("service.name", self.tracing_service_name.clone()),
            ("service.namespace", self.tracing_service_namespace.clone()),
            ("service.instance.id", instance.unwrap_or_else(random_id)),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        let more = more
            .into_iter()
            .filter(|(name, _)| own.iter().all(|(own, _)| own != name));
        let attribute = |(key, text)| KeyValue {
            key,
            value: Some(AnyValue {
                value: Some(Value::StringValue(text)),
            }),
            ..KeyValue::default()
        };
        Ok(own.iter().cloned().chain(more).map(attribute).collect())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    /// Accepted and not applied.
    Gzip,
}

/// The value of the first setting that is set.
fn read<const N: usize, T>(
    settings: [Setting<'_>; N],
    read: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let set = settings
        .into_iter()
        .find_map(|(name, text)| Some((name, text?)));
    set.map(|(name, text)| read(text).map_err(|error| format!("{name}: {error}")))
        .transpose()
}

/// The file of the first setting that is set.
fn file(settings: [Setting<'_>; 2]) -> Option<PemFile> {
    let mut set = settings.into_iter();
    set.find_map(|(name, path)| Some(PemFile::new(name, Path::new(path?))))
}

/// `name=value,name=value`; `None` if it is something else.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            Some((name.trim().to_owned(), value.into_owned())).filter(|(name, _)| !name.is_empty())
        });
    pairs.collect()
}

/// A UUID of version 4.
fn random_id() -> String {
    let (high, low) = (fastrand::u64(..), fastrand::u64(..));
    let (version, variant) = (0x4000 | high & 0xfff, 0x8000 | low >> 48 & 0x3fff);
    format!(
        "{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        low & 0xffff_ffff_ffff
    )
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "http" => Ok(Protocol::Http),
        "grpc" => Ok(Protocol::Grpc),
        _ => Err("write http or grpc".to_owned()),
    }
}

fn millis(text: &str) -> Result<Span, String> {
    let millis: Option<u32> = text.parse().ok().filter(|&millis| millis > 0);
    let millis = millis.ok_or("write a whole number of milliseconds, such as 10000")?;
    Ok(Span::from_micros(u64::from(millis) * 1_000))
}

fn compression(text: &str) -> Result<Compression, String> {
    match text {
        "none" => Ok(Compression::None),
        "gzip" => Ok(Compression::Gzip),
        _ => Err("write none".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_uuids_of_version_4() {
        let id = random_id();
        let parts: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(&id[14..15], "4", "{id}");
        assert!("89ab".contains(&id[19..20]), "{id}");
        assert_ne!(id, random_id());
    }

    #[test]
    fn lists_have_names_and_percent_encoded_values() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            pairs(" a=b%20c , d==e,"),
            Some(vec![pair("a", "b c"), pair("d", "=e")])
        );
        assert_eq!(pairs(""), Some(Vec::new()));
        assert_eq!(pairs("a"), None);
        assert_eq!(pairs("=b"), None);
    }
}
