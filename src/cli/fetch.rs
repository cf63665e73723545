//! Gets a page of the admin port of a running service.

use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::body::{Body, to_bytes};
use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The admin port of a service on this machine.
pub(crate) const URL_DEFAULT: &str = "http://127.0.0.1:6070";
/// For the whole page. A page of many rules takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);
/// More than the pages of the largest rules files.
const PAGE_BYTES_MAX: usize = 256 << 20;

/// Gets `page`, such as `/candidate`, of the service at `url`. A URL with a path is used as it is.
///
/// # Errors
/// The URL is invalid, the service is unreachable, or it has no such page.
pub(crate) fn get(url: &str, page: &str) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start a runtime")?;
    let got = runtime.block_on(async { timeout(TIMEOUT, get_page(url, page)).await });
    // Dropping it would wait for `getaddrinfo`.
    runtime.shutdown_background();
    got.unwrap_or_else(|_| bail!("no response in {} s", TIMEOUT.as_secs()))
        .with_context(|| format!("get {url}"))
}

async fn get_page(url: &str, page: &str) -> anyhow::Result<String> {
    let url: Uri = url.parse().context("it is not a URL")?;
    let (Some("http"), Some(host)) = (url.scheme_str(), url.host()) else {
        bail!("write it as {URL_DEFAULT}");
    };
    let address = (host.trim_matches(['[', ']']), url.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let authority = url.authority().map_or(host, |authority| authority.as_str());
    let path = match url.path_and_query().map(PathAndQuery::as_str) {
        None | Some("/") => page,
        Some(path) => path,
    };
    let request = Request::get(path)
        .header(header::HOST, authority)
        .body(Body::empty())?;
    let body = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), PAGE_BYTES_MAX).await?;
        let text = String::from_utf8(body.into())?;
        if status != StatusCode::OK {
            bail!("{status}: {}", text.trim());
        }
        Ok(text)
    };
    let mut body = std::pin::pin!(body);
    tokio::select! {
        body = &mut body => body,
        // The last bytes may still be unread.
        _ = connection => body.await,
    }
}
