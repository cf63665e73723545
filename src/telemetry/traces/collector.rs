//! Connects to the collector: opentelemetry-otlp over connections of our own, which read the TLS
//! files each time.

use std::sync::Arc;

use anyhow::Context as _;
use http::HeaderValue;
use http::uri::{Scheme, Uri};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    Compression, SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::trace::SpanExporter as _;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_util::either::Either;
use tonic::metadata::MetadataMap;
use tonic::transport::Endpoint;
use tower::service_fn;

use crate::base::net::tls;
use crate::telemetry::traces::options::Options;
use crate::telemetry::traces::settings::Protocol;

/// Why the last request of OTLP over HTTP failed, which opentelemetry-otlp leaves off its errors.
pub(super) type LastError = Arc<Mutex<Option<String>>>;

/// ALPN names.
const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// Keeps the last error of a client.
#[derive(Debug)]
struct Http<C> {
    client: C,
    last_error: LastError,
}

/// The exporter. Called on the runtime that sends; connects with the first batch.
///
/// # Errors
/// A variable of OpenTelemetry is invalid.
pub(super) fn exporter(options: &Options, last_error: LastError) -> anyhow::Result<SpanExporter> {
    let Options { headers, timeout, is_compressed, .. } = options;
    let builder = SpanExporter::builder();
    let mut exporter = match options.protocol {
        Protocol::Http => {
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = headers.iter().map(|(name, value)| (name.to_string(), text(value)));
            let options = options.clone();
            let endpoint = options.endpoint.to_string();
            let connector = service_fn(move |_: Uri| Box::pin(connect(options.clone(), HTTP_1)));
            let client = HyperClient::new(connector, *timeout, None);
            let builder = builder
                .with_http()
                .with_endpoint(endpoint)
                .with_timeout(*timeout)
                .with_headers(headers.collect())
                .with_http_client(Http { client, last_error });
            if *is_compressed {
                builder.with_compression(Compression::Gzip).build()
            } else {
                builder.build()
            }
        }
        Protocol::Grpc => {
            // Only sent along: the connector has the address, and does TLS itself.
            let endpoint =
                Endpoint::from_static("http://collector").origin(options.endpoint.clone());
            let options = options.clone();
            let connector = service_fn(move |_: Uri| connect(options.clone(), HTTP_2));
            let builder = builder
                .with_tonic()
                .with_channel(endpoint.connect_with_connector_lazy(connector))
                .with_timeout(*timeout)
                .with_metadata(MetadataMap::from_headers(headers.clone()));
            if *is_compressed {
                builder.with_compression(Compression::Gzip).build()
            } else {
                builder.build()
            }
        }
    }?;
    exporter.set_resource(&options.resource);
    Ok(exporter)
}

#[tonic::async_trait]
impl<C: HttpClient> HttpClient for Http<C> {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.client.send_bytes(request).await.map_err(anyhow::Error::from_boxed);
        Ok(sent.inspect_err(|error| *self.last_error.lock() = Some(format!("{error:#}")))?)
    }
}

/// Connects to the collector; `protocol` is its ALPN name.
async fn connect(
    options: Options,
    protocol: &'static [u8],
) -> anyhow::Result<MaybeHttpsStream<TokioIo<TcpStream>>> {
    let Options { endpoint, tls, .. } = options;
    let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_encrypted = endpoint.scheme() == Some(&Scheme::HTTPS);
    let default_port = if is_encrypted { 443 } else { 80 };
    let address = (host, endpoint.port_u16().unwrap_or(default_port));
    let plain = async {
        let stream = TcpStream::connect(address).await.context("connect")?;
        stream.set_nodelay(true)?;
        anyhow::Ok(TokioIo::new(TokioIo::new(stream)))
    };
    let tls = is_encrypted.then_some(&tls);
    Ok(match tls::connect(tls, host, protocol, plain).await?.into_inner() {
        Either::Left(plain) => MaybeHttpsStream::Http(plain.into_inner()),
        Either::Right(encrypted) => MaybeHttpsStream::from(encrypted),
    })
}
