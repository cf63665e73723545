//! The options of sending traces, from the settings of OpenTelemetry.
//!
//! OpenTelemetry has two names for each setting, one for all signals and one for traces, which
//! takes precedence. Errors name the one that is set.

use std::time::Duration;

use http::uri::{Scheme, Uri};
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use percent_encoding::percent_decode_str;

use crate::base::net::tls::{ClientTls, Identity, PemFile};
use crate::base::parse::Secret;
use crate::base::sampling::SampleRate;
use crate::telemetry::traces::settings::{Protocol, Settings};

/// Time to send a batch to a collector, retries included: the default of OpenTelemetry.
// bound OTEL_EXPORTER_OTLP_TIMEOUT: the batch is lost; tollgate_spans_lost_total{cause="failed"}
const TIMEOUT: Duration = Duration::from_secs(10);
/// Default endpoints of OTLP.
const HTTP_ENDPOINT: &str = "http://localhost:4318";
const GRPC_ENDPOINT: &str = "http://localhost:4317";
/// OTLP over HTTP appends this to OTEL_EXPORTER_OTLP_ENDPOINT.
const HTTP_PATH: &str = "/v1/traces";

/// How traces are sent, where they are on.
#[derive(Debug, Clone)]
pub struct Options {
    pub(super) protocol: Protocol,
    /// http or https, a host, and the whole path.
    pub(super) endpoint: Uri,
    pub(super) tls: ClientTls,
    pub(super) headers: HeaderMap,
    /// For a batch, with all attempts.
    pub(super) timeout: Duration,
    /// By gzip.
    pub(super) is_compressed: bool,
    pub(super) resource: Resource,
    /// The sampling decision where the caller has made none.
    pub(super) rate: SampleRate,
}

/// A setting that is set: its name and its value.
type Setting<'s> = (String, &'s str);

/// The first of these fields of settings that is set. Settings are named as their fields are.
macro_rules! first {
    ($($settings:ident.$field:ident),+) => {
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
        let compression =
            first!(self.otel_exporter_otlp_traces_compression, self.otel_exporter_otlp_compression);
        let options = Options {
            protocol: self.tracing_exporter_protocol,
            endpoint: self.endpoint()?,
            tls: self.tls()?,
            headers: self.headers()?,
            timeout: first!(
                self.otel_exporter_otlp_traces_timeout,
                self.otel_exporter_otlp_timeout
            )
            .map_or(Ok(TIMEOUT), millis)?,
            is_compressed: match compression {
                None | Some((_, "none")) => false,
                Some((_, "gzip")) => true,
                Some((name, _)) => return Err(format!("{name}: write none or gzip")),
            },
            resource: self.resource()?,
            rate: self.tracing_sampling_rate,
        };
        // Invalid files are an error at startup, not when the first batch is lost.
        if options.endpoint.scheme() == Some(&Scheme::HTTPS) {
            options.tls.config().map_err(|error| error.to_string())?;
        }
        Ok(Some(options))
    }

    fn endpoint(&self) -> Result<Uri, String> {
        if let Some((name, url)) = first!(self.otel_exporter_otlp_traces_endpoint) {
            return endpoint(&name, url);
        }
        let (default, path) = match self.tracing_exporter_protocol {
            Protocol::Http => (HTTP_ENDPOINT, HTTP_PATH),
            Protocol::Grpc => (GRPC_ENDPOINT, ""),
        };
        let (name, url) =
            first!(self.otel_exporter_otlp_endpoint).unwrap_or((String::new(), default));
        endpoint(&name, &format!("{}{path}", url.trim_end_matches('/')))
    }

    fn tls(&self) -> Result<ClientTls, String> {
        let file = |(name, path): Setting<'_>| PemFile::new(name, path);
        let authority =
            first!(self.otel_exporter_otlp_traces_certificate, self.otel_exporter_otlp_certificate);
        let cert = first!(
            self.otel_exporter_otlp_traces_client_certificate,
            self.otel_exporter_otlp_client_certificate
        );
        let key =
            first!(self.otel_exporter_otlp_traces_client_key, self.otel_exporter_otlp_client_key);
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
        Ok(ClientTls { authority: authority.map(file), identity, name: None })
    }

    /// Headers of the first setting that is set.
    fn headers(&self) -> Result<HeaderMap, String> {
        let (setting, list) = match &self.otel_exporter_otlp_traces_headers {
            Some(list) => ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", list),
            None => match &self.otel_exporter_otlp_headers {
                Some(list) => ("OTEL_EXPORTER_OTLP_HEADERS", list),
                None => return Ok(HeaderMap::new()),
            },
        };
        headers(list).ok_or_else(|| {
            // The value is not quoted: it may be secret.
            format!("{setting}: write NAME=VALUE,NAME=VALUE with names and values that HTTP allows")
        })
    }

    /// Attributes of the process.
    fn resource(&self) -> Result<Resource, String> {
        let more = pairs(self.otel_resource_attributes.as_deref().unwrap_or_default())
            .ok_or("OTEL_RESOURCE_ATTRIBUTES: write NAME=VALUE,NAME=VALUE")?;
        let namespace = self.tracing_service_namespace.clone().unwrap_or_default();
        let instance = self.tracing_service_instance_id.clone().unwrap_or_else(random_id);
        let own = [
            KeyValue::new("service.name", self.tracing_service_name.clone()),
            KeyValue::new("service.namespace", namespace),
            KeyValue::new("service.instance.id", instance),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ];
        // Later attributes replace earlier ones.
        let more = more.into_iter().map(|(name, value)| KeyValue::new(name, value));
        Ok(Resource::builder_empty().with_attributes(more.chain(own)).build())
    }
}

fn millis((name, text): Setting<'_>) -> Result<Duration, String> {
    let millis: Option<u32> = text.parse().ok().filter(|&millis| millis > 0);
    let millis = millis
        .ok_or_else(|| format!("{name}: write a whole number of milliseconds, such as 10000"))?;
    Ok(Duration::from_millis(millis.into()))
}

fn headers(list: &Secret) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(list.reveal())? {
        let mut value: HeaderValue = value.parse().ok()?;
        value.set_sensitive(true);
        headers.append(name.parse::<HeaderName>().ok()?, value);
    }
    Some(headers)
}

/// A URL with a host and without a user.
fn endpoint(setting: &str, url: &str) -> Result<Uri, String> {
    const WANTED: &str = "write http://HOST:PORT or https://HOST:PORT, and credentials in OTEL_EXPORTER_OTLP_HEADERS";
    let uri: Uri = url.parse().map_err(|error| format!("{setting}: {error}; {WANTED}"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_plain = uri.authority().is_some_and(|authority| {
        let port = authority.port_u16().map(|port| format!(":{port}"));
        authority.as_str() == format!("{}{}", authority.host(), port.unwrap_or_default())
            && !authority.host().is_empty()
    });
    if is_http && is_plain { Ok(uri) } else { Err(format!("{setting}: {WANTED}")) }
}

/// `name=value,name=value`; `None` if it is something else.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim().to_owned(), value.into_owned())).filter(|(name, _)| !name.is_empty())
    });
    pairs.collect()
}

/// A UUID of version 4.
fn random_id() -> String {
    let id = format!("{:032x}", fastrand::u128(..));
    format!("{}-{}-4{}-a{}-{}", &id[..8], &id[8..12], &id[13..16], &id[17..20], &id[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_names_and_percent_encoded_values() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(pairs(" a=b%20c , d==e,"), Some(vec![pair("a", "b c"), pair("d", "=e")]));
        assert_eq!(pairs(""), Some(Vec::new()));
        assert_eq!(pairs("a"), None);
        assert_eq!(pairs("=b"), None);
    }

    #[test]
    fn endpoints_are_urls_without_a_user() {
        for url in ["http://collector:4318", "https://collector/otlp/", "http://[::1]:4318/"] {
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
            assert!(error.starts_with("X: ") && error.contains("http://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn random_ids_are_uuids_of_version_4() {
        let id = random_id();
        let parts: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(&id[14..15], "4", "{id}");
        assert!("89ab".contains(&id[19..20]), "{id}");
        assert_ne!(id, random_id());
    }
}
