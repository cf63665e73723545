//! How traces are sent, by the settings.

use http::uri::{Scheme, Uri};
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use percent_encoding::percent_decode_str;

use crate::sampling::SampleRate;
use crate::telemetry::traces::settings::{Protocol, Settings};
use crate::time::Span;
use crate::tls::{ClientTls, Identity, PemFile};

/// Default endpoints of OTLP.
const HTTP_ENDPOINT: &str = "http://localhost:4318";
const GRPC_ENDPOINT: &str = "http://localhost:4317";
/// OTLP over HTTP appends this to OTEL_EXPORTER_OTLP_ENDPOINT.
const HTTP_PATH: &str = "/v1/traces";
/// The default of OpenTelemetry.
const TIMEOUT: Span = Span::from_secs(10);

/// How traces are sent, where they are on.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) protocol: Protocol,
    /// http or https, a host, and the whole path.
    pub(crate) endpoint: Uri,
    pub(crate) tls: ClientTls,
    pub(crate) headers: HeaderMap,
    /// For a batch, with all attempts.
    pub(crate) timeout: Span,
    /// The sampling decision where the caller has made none.
    pub(crate) rate: SampleRate,
    pub(crate) resource: Vec<KeyValue>,
}

/// A setting of OpenTelemetry that is set: its name and its value.
type Setting<'s> = (String, &'s str);

/// The first of these fields of the settings that is set. Settings are named as their fields are.
macro_rules! first {
    ($settings:ident: $($field:ident),+) => {
        [$((stringify!($field), $settings.$field.as_deref())),+]
            .into_iter()
            .find_map(|(field, value)| Some((field.to_uppercase(), value?)))
    };
}

impl Settings {
    /// How traces are sent; `None` if they are off.
    ///
    /// # Errors
    /// Invalid settings, or files that cannot be used.
    pub(crate) fn options(&self) -> Result<Option<Options>, String> {
        if !self.tracing_enabled {
            return Ok(None);
        }
        if let Some((name, text)) = self.compression()
            && !matches!(text, "none" | "gzip")
        {
            return Err(format!("{name}: write none"));
        }
        let options = Options {
            protocol: self.tracing_exporter_protocol,
            endpoint: self.endpoint()?,
            tls: self.tls()?,
            headers: self.headers()?,
            timeout: self.timeout()?,
            rate: self.tracing_sampling_rate,
            resource: self.resource()?,
        };
        if options.endpoint.scheme() == Some(&Scheme::HTTPS) {
            // Invalid files are an error at startup, not when the first trace is lost.
            options.tls.config().map_err(|error| error.to_string())?;
        }
        Ok(Some(options))
    }

    /// Settings that are set and have no effect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let warning =
            "OTEL_EXPORTER_OTLP_COMPRESSION=gzip has no effect: traces are sent uncompressed";
        let compression = self.compression().filter(|_| self.tracing_enabled);
        let is_unused = compression.is_some_and(|(_, text)| text == "gzip");
        is_unused.then(|| warning.to_owned()).into_iter().collect()
    }

    fn compression(&self) -> Option<Setting<'_>> {
        first!(self: otel_exporter_otlp_traces_compression, otel_exporter_otlp_compression)
    }

    fn endpoint(&self) -> Result<Uri, String> {
        if let Some((name, url)) = first!(self: otel_exporter_otlp_traces_endpoint) {
            return endpoint(&name, url);
        }
        let is_http = self.tracing_exporter_protocol == Protocol::Http;
        let default = if is_http {
            HTTP_ENDPOINT
        } else {
            GRPC_ENDPOINT
        };
        let (name, url) =
            first!(self: otel_exporter_otlp_endpoint).unwrap_or((String::new(), default));
        let path = if is_http { HTTP_PATH } else { "" };
        endpoint(&name, &format!("{}{path}", url.trim_end_matches('/')))
    }

    fn timeout(&self) -> Result<Span, String> {
        let set = first!(self: otel_exporter_otlp_traces_timeout, otel_exporter_otlp_timeout);
        let Some((name, text)) = set else {
            return Ok(TIMEOUT);
        };
        let millis: Option<u32> = text.parse().ok().filter(|&millis| millis > 0);
        let millis = millis.ok_or_else(|| {
            format!("{name}: write a whole number of milliseconds, such as 10000")
        })?;
        Ok(Span::from_micros(u64::from(millis) * 1_000))
    }

    fn tls(&self) -> Result<ClientTls, String> {
        let authority =
            first!(self: otel_exporter_otlp_traces_certificate, otel_exporter_otlp_certificate);
        let cert = first!(self: otel_exporter_otlp_traces_client_certificate, otel_exporter_otlp_client_certificate);
        let key = first!(self: otel_exporter_otlp_traces_client_key, otel_exporter_otlp_client_key);
        let file = |(name, path): Setting<'_>| PemFile::new(name, path);
        let identity = match (cert.map(file), key.map(file)) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => {
                return Err(format!(
                    "{}: a certificate needs its key and a key its certificate; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY, or neither",
                    one.setting
                ));
            }
        };
        Ok(ClientTls {
            authority: authority.map(file),
            identity,
            name: None,
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

/// A URL with a host and without a user.
fn endpoint(setting: &str, url: &str) -> Result<Uri, String> {
    const WANTED: &str = "write http://HOST:PORT or https://HOST:PORT, and credentials in OTEL_EXPORTER_OTLP_HEADERS";
    let uri: Uri = url
        .parse()
        .map_err(|error| format!("{setting}: {error}; {WANTED}"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_plain = uri.authority().is_some_and(|authority| {
        let port = authority.port_u16().map(|port| format!(":{port}"));
        authority.as_str() == format!("{}{}", authority.host(), port.unwrap_or_default())
            && !authority.host().is_empty()
    });
    if is_http && is_plain {
        Ok(uri)
    } else {
        Err(format!("{setting}: {WANTED}"))
    }
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

    #[test]
    fn endpoints_are_urls_without_a_user() {
        for url in [
            "http://collector:4318",
            "https://collector/otlp/",
            "http://[::1]:4318/",
        ] {
            assert!(endpoint("X", url).is_ok(), "{url}");
        }
        for wrong in [
            "",
            "collector:4318",
            "collector",
            "grpc://collector:4317",
            "http://",
            "/v1/traces",
            "http://collector:port",
            "http://me:secret@collector",
        ] {
            let error = endpoint("X", wrong).expect_err("it is no such URL");
            assert!(
                error.starts_with("X: ") && error.contains("http://HOST:PORT"),
                "{error}"
            );
        }
    }
}
