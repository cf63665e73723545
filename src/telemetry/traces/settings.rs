//! Settings of traces: the reference's, and those that OpenTelemetry has for OTLP.
//!
//! Of the latter each has two names; the one with TRACES wins. They are read where traces are on,
//! and only there: whoever runs a cluster may set them for every pod in it.

use std::path::Path;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use percent_encoding::percent_decode_str;

use crate::sampling::SampleRate;
use crate::settings::parse::{self, Given, Secret};
use crate::telemetry::traces::connect::{Endpoint, Tls};
use crate::time::Span;
use crate::tls::{self, Identity, PemFile};

/// Where collectors are that run beside a service.
const HTTP_ENDPOINT: &str = "http://localhost:4318";
const GRPC_ENDPOINT: &str = "http://localhost:4317";
/// What OTLP over HTTP has behind the path of OTEL_EXPORTER_OTLP_ENDPOINT.
const HTTP_PATH: &str = "/v1/traces";
const SERVICE_NAME: &str = "RateLimit";
/// As OpenTelemetry says.
const TIMEOUT: Span = Span::from_secs(10);

/// Traces.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Traces")]
pub struct Settings {
    /// Send a trace of each call, or of some, to an OpenTelemetry collector [default: false]
    #[arg(long, env = "TRACING_ENABLED", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub tracing_enabled: Given<bool>,
    /// Attribute service.name of what is sent [default: RateLimit]
    #[arg(long, env = "TRACING_SERVICE_NAME", default_value = "", hide_default_value = true, value_name = "NAME", value_parser = parse::given(parse::text))]
    pub tracing_service_name: Given<String>,
    /// Attribute service.namespace
    #[arg(
        long,
        env = "TRACING_SERVICE_NAMESPACE",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    pub tracing_service_namespace: String,
    /// Attribute service.instance.id [default: another one at each start]
    #[arg(long, env = "TRACING_SERVICE_INSTANCE_ID", default_value = "", hide_default_value = true, value_name = "ID", value_parser = parse::given(parse::text))]
    pub tracing_service_instance_id: Given<String>,
    /// How the collector is spoken to: http or grpc [default: http]
    #[arg(long, env = "TRACING_EXPORTER_PROTOCOL", default_value = "", hide_default_value = true, value_name = "PROTOCOL", value_parser = parse::given(protocol))]
    pub tracing_exporter_protocol: Given<Protocol>,
    /// Which part of the calls is traced whose caller has not decided it, from 0 to 1 [default: 1]
    #[arg(long, env = "TRACING_SAMPLING_RATE", default_value = "", hide_default_value = true, value_name = "RATE", value_parser = parse::given(SampleRate::read))]
    pub tracing_sampling_rate: Given<SampleRate>,
    /// Where the collector is; over http, /v1/traces is put behind it [default: http://localhost:4318, with grpc :4317]
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "URL"
    )]
    pub otel_exporter_otlp_endpoint: String,
    /// The same, with nothing put behind it
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "URL"
    )]
    pub otel_exporter_otlp_traces_endpoint: String,
    /// What is sent along, such as a token: NAME=VALUE,NAME=VALUE, values percent-encoded
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "LIST", value_parser = parse::given(Secret::read))]
    pub otel_exporter_otlp_headers: Given<Secret>,
    /// The same for traces
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_HEADERS", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "LIST", value_parser = parse::given(Secret::read))]
    pub otel_exporter_otlp_traces_headers: Given<Secret>,
    /// How many milliseconds the collector may take for a batch, with all attempts [default:
    /// 10000]
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TIMEOUT",
        default_value = "",
        hide_default_value = true,
        value_name = "MILLISECONDS"
    )]
    pub otel_exporter_otlp_timeout: String,
    /// The same for traces
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        default_value = "",
        hide_default_value = true,
        value_name = "MILLISECONDS"
    )]
    pub otel_exporter_otlp_traces_timeout: String,
    /// none; gzip is accepted and sends uncompressed
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_COMPRESSION",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    pub otel_exporter_otlp_compression: String,
    /// The same for traces
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    pub otel_exporter_otlp_traces_compression: String,
    /// With https: the only authority that is trusted [default: those of the system]
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_CERTIFICATE",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_certificate: String,
    /// The same for traces
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_traces_certificate: String,
    /// With https: our certificate, for a collector that wants one
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_client_certificate: String,
    /// The same for traces
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_traces_client_certificate: String,
    /// Its key
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_CLIENT_KEY",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_client_key: String,
    /// The same for traces
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub otel_exporter_otlp_traces_client_key: String,
    /// More attributes of what is sent: NAME=VALUE,NAME=VALUE, values percent-encoded
    #[arg(
        long,
        env = "OTEL_RESOURCE_ATTRIBUTES",
        default_value = "",
        hide_default_value = true,
        value_name = "LIST"
    )]
    pub otel_resource_attributes: String,
}

/// How the collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over HTTP, as protobuf.
    Http,
    /// OTLP over gRPC.
    Grpc,
}

/// How what is sent is to be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// Accepted, and not done.
    Gzip,
}

/// What settings come to, where traces are on.
#[derive(Debug, Clone)]
pub struct Options {
    /// How the collector is spoken to.
    pub protocol: Protocol,
    /// Where it is, with the whole path.
    pub endpoint: Endpoint,
    /// With https.
    pub tls: Tls,
    /// Sent along.
    pub headers: HeaderMap,
    /// How long the collector may take for a batch, with all attempts.
    pub timeout: Span,
    /// Which part of the calls is traced whose caller has not decided it.
    pub rate: SampleRate,
    /// Who we are.
    pub resource: Vec<KeyValue>,
}

impl Settings {
    /// What settings come to; `None` if traces are off.
    ///
    /// # Errors
    /// What is wrong with them or the files they name.
    pub fn options(&self) -> Result<Option<Options>, String> {
        if !self.is_on() {
            return Ok(None);
        }
        let protocol = self.tracing_exporter_protocol.0.unwrap_or(Protocol::Http);
        let options = Options {
            protocol,
            endpoint: self.endpoint(protocol)?,
            tls: self.tls()?,
            headers: self.headers()?,
            timeout: self.timeout()?,
            rate: self
                .tracing_sampling_rate
                .0
                .or(SampleRate::of(1.0))
                .expect("1 is a part of 1"),
            resource: self.resource()?,
        };
        if options.endpoint.is_encrypted() {
            // What is wrong with the files is said at the start, and not when the first trace is
            // lost.
            tls::client(
                options.tls.authority.as_ref(),
                options.tls.identity.as_ref(),
            )
            .map_err(|error| error.to_string())?;
        }
        Ok(Some(options))
    }

    /// What is wrong with them.
    ///
    /// # Errors
    /// See [`Settings::options`].
    pub fn check(&self) -> Result<(), String> {
        if self.options()?.is_some() {
            self.compression().map(|_| ())
        } else {
            Ok(())
        }
    }

    /// What is accepted, and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        let is_in_vain = self.is_on() && self.compression() == Ok(Compression::Gzip);
        is_in_vain
            .then(|| {
                "OTEL_EXPORTER_OTLP_COMPRESSION=gzip has no effect: traces are sent uncompressed"
                    .to_owned()
            })
            .into_iter()
            .collect()
    }

    fn is_on(&self) -> bool {
        self.tracing_enabled.0.unwrap_or(false)
    }

    fn endpoint(&self, protocol: Protocol) -> Result<Endpoint, String> {
        if let Some(endpoint) = read_one(
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                &self.otel_exporter_otlp_traces_endpoint,
            ),
            Endpoint::read,
        )? {
            return Ok(endpoint);
        }
        let default = if protocol == Protocol::Http {
            HTTP_ENDPOINT
        } else {
            GRPC_ENDPOINT
        };
        let endpoint = read_one(
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                &self.otel_exporter_otlp_endpoint,
            ),
            Endpoint::read,
        )?;
        let endpoint = endpoint.map_or_else(|| Endpoint::read(default), Ok)?;
        Ok(if protocol == Protocol::Http {
            endpoint.below(HTTP_PATH)
        } else {
            endpoint
        })
    }

    fn timeout(&self) -> Result<Span, String> {
        let for_traces = read_one(
            (
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
                &self.otel_exporter_otlp_traces_timeout,
            ),
            millis,
        )?;
        let for_all = read_one(
            (
                "OTEL_EXPORTER_OTLP_TIMEOUT",
                &self.otel_exporter_otlp_timeout,
            ),
            millis,
        )?;
        Ok(for_traces.or(for_all).unwrap_or(TIMEOUT))
    }

    fn compression(&self) -> Result<Compression, String> {
        let for_traces = (
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            &*self.otel_exporter_otlp_traces_compression,
        );
        let for_all = (
            "OTEL_EXPORTER_OTLP_COMPRESSION",
            &*self.otel_exporter_otlp_compression,
        );
        Ok(read_one(for_traces, compression)?
            .or(read_one(for_all, compression)?)
            .unwrap_or(Compression::None))
    }

    fn tls(&self) -> Result<Tls, String> {
        let authority = either(
            (
                "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
                &self.otel_exporter_otlp_traces_certificate,
            ),
            (
                "OTEL_EXPORTER_OTLP_CERTIFICATE",
                &self.otel_exporter_otlp_certificate,
            ),
        );
        let cert = either(
            (
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
                &self.otel_exporter_otlp_traces_client_certificate,
            ),
            (
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
                &self.otel_exporter_otlp_client_certificate,
            ),
        );
        let key = either(
            (
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
                &self.otel_exporter_otlp_traces_client_key,
            ),
            (
                "OTEL_EXPORTER_OTLP_CLIENT_KEY",
                &self.otel_exporter_otlp_client_key,
            ),
        );
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => {
                return Err(format!(
                    "{}: a certificate and its key go together; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY, or neither",
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
        let (setting, given) = match (
            &self.otel_exporter_otlp_traces_headers.0,
            &self.otel_exporter_otlp_headers.0,
        ) {
            (Some(given), _) => ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", given),
            (None, Some(given)) => ("OTEL_EXPORTER_OTLP_HEADERS", given),
            (None, None) => return Ok(HeaderMap::new()),
        };
        // What was given is not quoted: it may be secret.
        let wrong = || {
            format!("{setting}: write NAME=VALUE,NAME=VALUE with names and values that HTTP allows")
        };
        let mut headers = HeaderMap::new();
        for (name, value) in list(given.reveal()).ok_or_else(wrong)? {
            let name: HeaderName = name.parse().map_err(|_| wrong())?;
            let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(headers)
    }

    fn resource(&self) -> Result<Vec<KeyValue>, String> {
        let more = list(&self.otel_resource_attributes)
            .ok_or("OTEL_RESOURCE_ATTRIBUTES: write NAME=VALUE,NAME=VALUE")?;
        let name = self
            .tracing_service_name
            .0
            .as_deref()
            .unwrap_or(SERVICE_NAME);
        let instance = self
            .tracing_service_instance_id
            .0
            .clone()
            .unwrap_or_else(random_id);
        let own = [
            ("service.name", name.to_owned()),
            ("service.namespace", self.tracing_service_namespace.clone()),
            ("service.instance.id", instance),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        let more = more
            .into_iter()
            .filter(|(name, _)| own.iter().all(|(own, _)| own != name));
        let all = own
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .chain(more);
        Ok(all
            .map(|(key, text)| KeyValue {
                key,
                value: Some(text_value(text)),
                ..KeyValue::default()
            })
            .collect())
    }
}

fn text_value(text: String) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(text)),
    }
}

/// A setting, unless it is set to nothing.
fn read_one<T>(
    (setting, text): (&str, &str),
    read: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if text.is_empty() {
        Ok(None)
    } else {
        read(text)
            .map(Some)
            .map_err(|error| format!("{setting}: {error}"))
    }
}

/// The first file that is set.
fn either(for_traces: (&'static str, &str), for_all: (&'static str, &str)) -> Option<PemFile> {
    let set = [for_traces, for_all]
        .into_iter()
        .find(|(_, path)| !path.is_empty());
    set.map(|(setting, path)| PemFile::new(setting, Path::new(path)))
}

/// `name=value,name=value`; `None` if it is something else.
fn list(text: &str) -> Option<Vec<(String, String)>> {
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

/// As a UUID of random numbers is written.
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
    fn a_random_id_is_written_as_a_uuid_of_version_4() {
        let id = random_id();
        let parts: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(&id[14..15], "4", "{id}");
        assert!("89ab".contains(&id[19..20]), "{id}");
        assert_ne!(id, random_id());
    }

    #[test]
    fn lists_are_names_and_percent_encoded_values() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            list(" a=b%20c , d==e,"),
            Some(vec![pair("a", "b c"), pair("d", "=e")])
        );
        assert_eq!(list(""), Some(Vec::new()));
        assert_eq!(list("a"), None);
        assert_eq!(list("=b"), None);
    }
}
