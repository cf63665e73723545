//! Gets a page of a running service, and posts to it.

use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::body::Body;
use http::uri::PathAndQuery;
use http::{HeaderName, Request, StatusCode, Uri, header};
use serde_json::Value;
use tokio::time::timeout;

use crate::base::environment::Environment;
use crate::cli::output::Failure;
use crate::http::client;

/// The admin port of a service on this machine.
pub(crate) const URL_DEFAULT: &str = "http://127.0.0.1:6070";
const TOKEN: &str = "ADMIN_TOKEN";
/// For the whole page. A page of many rules takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);
/// More than the pages of the largest rules files.
const PAGE_BYTES_MAX: usize = 256 << 20;

/// The running service that a report is about.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Service {
    /// The admin port of the service
    #[arg(value_name = "URL", default_value = URL_DEFAULT)]
    pub(crate) url: String,
}

/// A header of a request.
pub(crate) type Header = (HeaderName, String);

/// Gets `page`, such as `/candidate`, of the service at `url`. A URL with a path is used as it is.
///
/// # Errors
/// The URL is invalid, the service is unreachable, or it has no such page.
pub(crate) fn get(url: &str, page: &str) -> anyhow::Result<String> {
    let (status, text) = send(url, page, None, &[])?;
    if status != StatusCode::OK {
        bail!("get {url}: {status}: {}", text.trim());
    }
    Ok(text)
}

/// Gets a page in JSON.
///
/// # Errors
/// Those of [`get`], and a page that is no JSON.
pub(crate) fn get_json(url: &str, page: &str) -> anyhow::Result<Value> {
    serde_json::from_str(&get(url, page)?).context("read the page of the service")
}

/// Posts a body to `page`, such as `/json`, of the service at `url`. Returns the status and the body
/// of the response.
///
/// # Errors
/// The URL is invalid, or the service is unreachable.
pub(crate) fn post(url: &str, page: &str, body: Vec<u8>) -> anyhow::Result<(StatusCode, String)> {
    send(url, page, Some(body), &[])
}

/// The header with ADMIN_TOKEN.
///
/// # Errors
/// It is not set.
pub(crate) fn token(environment: &Environment) -> Result<Header, Failure> {
    let token = environment.get(TOKEN);
    let token = token.ok_or_else(|| Failure::Usage(format!("set {TOKEN} to the service's")))?;
    Ok((header::AUTHORIZATION, format!("Bearer {token}")))
}

/// Sends a body by POST; without a body it is a GET. Returns the status and the body of the response.
///
/// # Errors
/// The URL is invalid, or the service is unreachable.
pub(crate) fn send(
    url: &str,
    page: &str,
    body: Option<Vec<u8>>,
    headers: &[Header],
) -> anyhow::Result<(StatusCode, String)> {
    let verb = if body.is_some() { "post to" } else { "get" };
    run(url, page, body, headers).with_context(|| format!("{verb} {url}"))
}

fn run(
    url: &str,
    page: &str,
    body: Option<Vec<u8>>,
    headers: &[Header],
) -> anyhow::Result<(StatusCode, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start a runtime")?;
    let sent =
        runtime.block_on(async { timeout(TIMEOUT, exchange(url, page, body, headers)).await });
    // Dropping it would wait for `getaddrinfo`.
    runtime.shutdown_background();
    sent.unwrap_or_else(|_| bail!("no response in {} s", TIMEOUT.as_secs()))
}

async fn exchange(
    url: &str,
    page: &str,
    body: Option<Vec<u8>>,
    headers: &[Header],
) -> anyhow::Result<(StatusCode, String)> {
    let url: Uri = url.parse().context("it is not a URL")?;
    let (Some("http"), Some(host)) = (url.scheme_str(), url.host()) else {
        bail!("write it as {URL_DEFAULT}");
    };
    let address = (host.trim_matches(['[', ']']), url.port_u16().unwrap_or(80));
    let authority = url.authority().map_or(host, |authority| authority.as_str());
    let path = match url.path_and_query().map(PathAndQuery::as_str) {
        None | Some("/") => page,
        Some(path) => path,
    };
    let request = match body {
        None => Request::get(path),
        Some(_) => Request::post(path).header(header::CONTENT_TYPE, "application/json"),
    };
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(name, value)
    });
    let request = request
        .header(header::HOST, authority)
        .body(body.map_or_else(Body::empty, Body::from))?;
    let (status, body) = client::exchange(address, request, PAGE_BYTES_MAX).await?;
    Ok((status, String::from_utf8(body.into())?))
}
