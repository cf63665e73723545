//! Gets a page of a running service, and posts to it.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::body::Body;
use http::uri::PathAndQuery;
use http::{HeaderName, Request, StatusCode, Uri, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::base::environment::Environment;
use crate::base::net::client::{self, ADMIN_PORT};
use crate::base::text::Escaped;
use crate::cli::output::CliError;
use crate::report::answer::ErrorBody;

/// The admin port of a service on this machine.
const URL_DEFAULT: &str = "http://127.0.0.1:6070";
const TOKEN: &str = "ADMIN_TOKEN";
const READ_TOKEN: &str = "ADMIN_READ_TOKEN";
/// For the whole page. The usage of all keys of a rule takes up to a minute.
const TIMEOUT: Duration = Duration::from_secs(90);
/// More than the pages of the largest rules files.
const PAGE_BYTES_MAX: usize = 256 << 20;

/// The running service that a command asks.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Service {
    /// The admin port of the running service
    #[arg(long, env = "TOLLGATE_URL", value_name = "URL", default_value = URL_DEFAULT, value_parser = service_url)]
    pub(crate) url: String,
}

/// A header of a request.
pub(crate) type Header = (HeaderName, String);

/// A response of a service.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

impl Response {
    /// An answer of `/api/v1`, or why the service rejected the request.
    ///
    /// # Errors
    /// The response is neither.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> anyhow::Result<Result<T, ErrorBody>> {
        let Self { status, body } = self;
        let read = match *status {
            StatusCode::OK => serde_json::from_str(body).map(Ok),
            _ => serde_json::from_str(body).map(Err),
        };
        let unknown = || anyhow!("{status}: {}", body.trim()).context("no answer of /api/v1");
        read.map_err(|_| unknown())
    }

    /// The reason for which the service rejected a request, with errors of rules. Clients may send
    /// control characters, which are escaped.
    pub(crate) fn rejection(&self, ErrorBody { error, errors, .. }: &ErrorBody) -> anyhow::Error {
        let errors = errors.iter().flatten();
        let errors = errors.map(|error| format!("\n{}", Escaped(error)));
        let errors = errors.collect::<Vec<_>>().concat();
        anyhow!("{}: {}{}", self.status, Escaped(error), errors)
    }
}

/// Gets `page`, such as `/trial`, of the service at `url`. A URL with a path is used as it is.
///
/// # Errors
/// The URL is invalid, the service is unreachable, or it has no such page.
pub(crate) fn get(url: &str, page: &str, headers: &[Header]) -> anyhow::Result<String> {
    let Response { status, body } = send(url, page, None, headers)?;
    if status != StatusCode::OK {
        bail!("get {url}: {status}: {}", body.trim());
    }
    Ok(body)
}

/// The header with ADMIN_TOKEN.
///
/// # Errors
/// It is not set.
pub(crate) fn token(environment: &Environment) -> Result<Header, CliError> {
    let token = environment.get(TOKEN);
    let token = token.ok_or_else(|| CliError::Usage(format!("set {TOKEN} to the service's")))?;
    Ok((header::AUTHORIZATION, format!("Bearer {token}")))
}

/// The header of requests that only read: with a token, the service shows values of descriptors.
pub(crate) fn read_token(environment: &Environment) -> Vec<Header> {
    let token = [TOKEN, READ_TOKEN];
    let token = token.into_iter().find_map(|name| environment.get(name));
    let header = token.map(|token| (header::AUTHORIZATION, format!("Bearer {token}")));
    header.into_iter().collect()
}

/// A value in a path or in a query string.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Sends a body by POST; without a body it is a GET.
///
/// # Errors
/// The URL is invalid, or the service is unreachable.
pub(crate) fn send(
    url: &str,
    page: &str,
    body: Option<Vec<u8>>,
    headers: &[Header],
) -> anyhow::Result<Response> {
    let verb = if body.is_some() { "post to" } else { "get" };
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start a runtime")?;
        let sent =
            runtime.block_on(async { timeout(TIMEOUT, exchange(url, page, body, headers)).await });
        // Dropping it would wait for `getaddrinfo`.
        runtime.shutdown_background();
        sent.unwrap_or_else(|_| bail!("no response in {} s", TIMEOUT.as_secs()))
    };
    run().with_context(|| format!("{verb} {url}"))
}

fn service_url(text: &str) -> Result<String, String> {
    let parsed = parsed(text).map(|_| text.to_owned());
    parsed.map_err(|error| format!("{error:#}"))
}

/// The URL and its host.
fn parsed(text: &str) -> anyhow::Result<(Uri, String)> {
    let url: Uri = text.parse().context("it is not a URL")?;
    match (url.scheme_str(), url.host().map(str::to_owned)) {
        (Some("http"), Some(host)) => Ok((url, host)),
        _ => bail!("write it as {URL_DEFAULT}"),
    }
}

async fn exchange(
    url: &str,
    page: &str,
    body: Option<Vec<u8>>,
    headers: &[Header],
) -> anyhow::Result<Response> {
    let (url, host) = parsed(url)?;
    let address = (host.trim_matches(['[', ']']), url.port_u16().unwrap_or(80));
    let authority = url.authority().map_or(&*host, |authority| authority.as_str());
    let path = match url.path_and_query().map(PathAndQuery::as_str) {
        None | Some("/") => page,
        Some(path) => path,
    };
    let request = match body {
        None => Request::get(path),
        Some(_) => Request::post(path).header(header::CONTENT_TYPE, "application/json"),
    };
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(name, value));
    let request =
        request.header(header::HOST, authority).body(body.map_or_else(Body::empty, Body::from))?;
    let exchanged = client::exchange(address, request, PAGE_BYTES_MAX).await;
    let (status, body) = exchanged.map_err(|error| {
        let is_other = |error: &hyper::Error| error.is_parse();
        if error.downcast_ref().is_some_and(is_other) {
            return anyhow!(
                "this is not a port of HTTP but of gRPC, such as GRPC_PORT; {ADMIN_PORT}"
            );
        }
        match error.downcast_ref().map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => {
                error.context("no service listens there; start it, or name its admin port by --url")
            }
            _ => error,
        }
    })?;
    let body = String::from_utf8(body.into())?;
    Ok(Response { status, body })
}
