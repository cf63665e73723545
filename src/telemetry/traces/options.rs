//! How traces are sent, by the settings.

use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use percent_encoding::percent_decode_str;

use crate::sampling::SampleRate;
use crate::telemetry::traces::connect::{Endpoint, Tls};
use crate::telemetry::traces::settings::{Protocol, Settings};
use crate::time::Span;
use crate::tls::{self, Identity, PemFile};

/// Default endpoints of OTLP.
const HTTP_ENDPOINT: &str = "http://localhost:4318";
const GRPC_ENDPOINT: &str = "http://localhost:4317";
/// OTLP over HTTP appends this to the path of OTEL_EXPORTER_OTLP_ENDPOINT.
const HTTP_PATH: &str = "/v1/traces";
/// The default of OpenTelemetry.
const TIMEOUT: Span = Span::from_secs(10);

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

/// A setting of OpenTelemetry with its name.
macro_rules! set {
    ($settings:ident.$field:ident, $name:literal) => {
        ($name, $settings.$field.as_deref())
    };
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
        let of_traces = set!(
            self.otel_exporter_otlp_traces_endpoint,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
        );
        if let Some(endpoint) = read([of_traces], Endpoint::read)? {
            return Ok(endpoint);
        }
        let of_all = set!(
            self.otel_exporter_otlp_endpoint,
            "OTEL_EXPORTER_OTLP_ENDPOINT"
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
            set!(
                self.otel_exporter_otlp_traces_timeout,
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
            ),
            set!(
                self.otel_exporter_otlp_timeout,
                "OTEL_EXPORTER_OTLP_TIMEOUT"
            ),
        ];
        Ok(read(settings, millis)?.unwrap_or(TIMEOUT))
    }

    fn compression(&self) -> Result<Compression, String> {
        let settings = [
            set!(
                self.otel_exporter_otlp_traces_compression,
                "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION"
            ),
            set!(
                self.otel_exporter_otlp_compression,
                "OTEL_EXPORTER_OTLP_COMPRESSION"
            ),
        ];
        Ok(read(settings, compression)?.unwrap_or(Compression::None))
    }

    fn tls(&self) -> Result<Tls, String> {
        let authority = file([
            set!(
                self.otel_exporter_otlp_traces_certificate,
                "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE"
            ),
            set!(
                self.otel_exporter_otlp_certificate,
                "OTEL_EXPORTER_OTLP_CERTIFICATE"
            ),
        ]);
        let cert = file([
            set!(
                self.otel_exporter_otlp_traces_client_certificate,
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE"
            ),
            set!(
                self.otel_exporter_otlp_client_certificate,
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
            ),
        ]);
        let key = file([
            set!(
                self.otel_exporter_otlp_traces_client_key,
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"
            ),
            set!(
                self.otel_exporter_otlp_client_key,
                "OTEL_EXPORTER_OTLP_CLIENT_KEY"
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
