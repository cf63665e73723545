//! The options of sending traces, from the settings.

use http::uri::Uri;

use crate::base::net::tls::ClientTls;
use crate::base::proto::opentelemetry::proto::common::v1::KeyValue;
use crate::base::proto::opentelemetry::proto::common::v1::any_value::Value;
use crate::base::sampling::SampleRate;
use crate::telemetry::otlp::options::{self as otlp, Protocol, Setting, first};
use crate::telemetry::traces::settings::Settings;

/// Default endpoints of OTLP.
const HTTP_ENDPOINT: &str = "http://localhost:4318";
const GRPC_ENDPOINT: &str = "http://localhost:4317";
/// OTLP over HTTP appends this to OTEL_EXPORTER_OTLP_ENDPOINT.
const HTTP_PATH: &str = "/v1/traces";

/// How traces are sent, where they are on.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) otlp: otlp::Options,
    /// The sampling decision where the caller has made none.
    pub(crate) rate: SampleRate,
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
        let otlp = otlp::Options {
            protocol: self.tracing_exporter_protocol,
            endpoint: self.endpoint()?,
            tls: self.tls()?,
            headers: otlp::headers([
                ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", &self.otel_exporter_otlp_traces_headers),
                ("OTEL_EXPORTER_OTLP_HEADERS", &self.otel_exporter_otlp_headers),
            ])?,
            timeout: otlp::timeout(first!(
                self.otel_exporter_otlp_traces_timeout,
                self.otel_exporter_otlp_timeout
            ))?,
            resource: self.resource()?,
        };
        otlp.check_files()?;
        let rate = self.tracing_sampling_rate;
        Ok(Some(Options { otlp, rate }))
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
        first!(self.otel_exporter_otlp_traces_compression, self.otel_exporter_otlp_compression)
    }

    fn endpoint(&self) -> Result<Uri, String> {
        if let Some((name, url)) = first!(self.otel_exporter_otlp_traces_endpoint) {
            return otlp::endpoint(&name, url);
        }
        let is_http = self.tracing_exporter_protocol == Protocol::Http;
        let default = if is_http { HTTP_ENDPOINT } else { GRPC_ENDPOINT };
        let (name, url) =
            first!(self.otel_exporter_otlp_endpoint).unwrap_or((String::new(), default));
        let path = if is_http { HTTP_PATH } else { "" };
        otlp::endpoint(&name, &format!("{}{path}", url.trim_end_matches('/')))
    }

    fn tls(&self) -> Result<ClientTls, String> {
        otlp::tls(
            first!(self.otel_exporter_otlp_traces_certificate, self.otel_exporter_otlp_certificate),
            first!(
                self.otel_exporter_otlp_traces_client_certificate,
                self.otel_exporter_otlp_client_certificate
            ),
            first!(self.otel_exporter_otlp_traces_client_key, self.otel_exporter_otlp_client_key),
        )
    }

    /// Attributes of the process.
    fn resource(&self) -> Result<Vec<KeyValue>, String> {
        let more = otlp::pairs(self.otel_resource_attributes.as_deref().unwrap_or_default())
            .ok_or("OTEL_RESOURCE_ATTRIBUTES: write NAME=VALUE,NAME=VALUE")?;
        let namespace = self.tracing_service_namespace.clone();
        let instance = self.tracing_service_instance_id.clone();
        let own = [
            ("service.name", self.tracing_service_name.clone()),
            ("service.namespace", namespace.unwrap_or_default()),
            ("service.instance.id", instance.unwrap_or_else(random_id)),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        let more = more.into_iter().filter(|(name, _)| own.iter().all(|(own, _)| own != name));
        let attribute = |(key, text)| otlp::attribute(key, Value::StringValue(text));
        Ok(own.iter().cloned().chain(more).map(attribute).collect())
    }
}

/// A UUID of version 4.
fn random_id() -> String {
    let high = fastrand::u64(..);
    let low = fastrand::u64(..);
    let version = 0x4000 | high & 0xfff;
    let variant = 0x8000 | low >> 48 & 0x3fff;
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
}
