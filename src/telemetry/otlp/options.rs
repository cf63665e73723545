//! Reads the settings of OpenTelemetry for sending over OTLP.
//!
//! OpenTelemetry has two names for each setting, one for all signals and one for each, which takes
//! precedence. Errors name the one that is set.

use http::uri::{Scheme, Uri};
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use crate::base::named_enum::named_enum;
use crate::base::net::tls::{ClientTls, Identity, PemFile};
use crate::base::parse::Secret;
use crate::base::proto::opentelemetry::proto::common::v1::any_value::Value;
use crate::base::proto::opentelemetry::proto::common::v1::{
    AnyValue, InstrumentationScope, KeyValue,
};
use crate::base::proto::opentelemetry::proto::resource::v1::Resource;
use crate::base::time::Span;

/// Time to send a batch to a collector, retries included: the default of OpenTelemetry.
// bound OTEL_EXPORTER_OTLP_TIMEOUT: the batch is lost; tollgate_spans_lost_total{cause="failed"}
const TIMEOUT: Span = Span::from_secs(10);

/// The endpoint of a collector and the options of the export.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) protocol: Protocol,
    /// http or https, a host, and the whole path.
    pub(crate) endpoint: Uri,
    pub(crate) tls: ClientTls,
    pub(crate) headers: HeaderMap,
    /// For a batch, with all attempts.
    pub(crate) timeout: Span,
    pub(crate) resource: Vec<KeyValue>,
}

named_enum! {
    /// Protocol of the collector.
    pub enum Protocol {
        /// OTLP over HTTP, as protobuf.
        Http = "http",
        /// OTLP over gRPC.
        Grpc = "grpc",
    }
}

/// The scope of the spans.
pub(crate) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// An attribute of a resource or a span.
pub(crate) fn attribute(key: impl Into<String>, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }) }
}

impl Options {
    /// The service that produces them.
    pub(crate) fn resource(&self) -> Resource {
        Resource { attributes: self.resource.clone() }
    }

    /// Invalid files are an error at startup, not when the first batch is lost.
    ///
    /// # Errors
    /// Files that cannot be used.
    pub(crate) fn check_files(&self) -> Result<(), String> {
        if self.endpoint.scheme() == Some(&Scheme::HTTPS) {
            self.tls.config().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// A setting that is set: its name and its value.
pub(crate) type Setting<'s> = (String, &'s str);

/// The first of these fields of settings that is set. Settings are named as their fields are.
macro_rules! first {
    ($($settings:ident.$field:ident),+) => {
        [$((stringify!($field), $settings.$field.as_deref())),+]
            .into_iter()
            .find_map(|(field, value)| Some((field.to_uppercase(), value?)))
    };
}
pub(crate) use first;

pub(crate) fn millis((name, text): &Setting<'_>) -> Result<Span, String> {
    let millis: Option<u32> = text.parse().ok().filter(|&millis| millis > 0);
    let millis = millis
        .ok_or_else(|| format!("{name}: write a whole number of milliseconds, such as 10000"))?;
    Ok(Span::from_micros(u64::from(millis) * 1_000))
}

pub(crate) fn timeout(set: Option<Setting<'_>>) -> Result<Span, String> {
    set.map_or(Ok(TIMEOUT), |set| millis(&set))
}

pub(crate) fn tls(
    authority: Option<Setting<'_>>,
    cert: Option<Setting<'_>>,
    key: Option<Setting<'_>>,
) -> Result<ClientTls, String> {
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
    Ok(ClientTls { authority: authority.map(file), identity, name: None })
}

/// Headers of the first setting that is set.
pub(crate) fn headers(settings: [(&str, &Option<Secret>); 2]) -> Result<HeaderMap, String> {
    let mut settings = settings.into_iter();
    let Some((setting, list)) = settings.find_map(|(name, list)| Some((name, list.as_ref()?)))
    else {
        return Ok(HeaderMap::new());
    };
    // The value is not quoted: it may be secret.
    let invalid =
        || format!("{setting}: write NAME=VALUE,NAME=VALUE with names and values that HTTP allows");
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(list.reveal()).ok_or_else(invalid)? {
        let name: HeaderName = name.parse().map_err(|_| invalid())?;
        let mut value: HeaderValue = value.parse().map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// A URL with a host and without a user.
pub(crate) fn endpoint(setting: &str, url: &str) -> Result<Uri, String> {
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
pub(crate) fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim().to_owned(), value.into_owned())).filter(|(name, _)| !name.is_empty())
    });
    pairs.collect()
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
}
