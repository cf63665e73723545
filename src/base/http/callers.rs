//! Rejects requests to the admin listener that a page of another site may have caused, and adds the
//! headers that keep browsers from misusing its responses.
//!
//! The port may be read by every client that reaches it. A browser that does, as through
//! `kubectl port-forward`, also sends what pages of any site make it send:
//!
//! ```text
//!  page                                        rejected by
//!  its name now resolves to this address       Host
//!  sends a form or a fetch                     Origin
//!  loads an image, a script or a frame         Sec-Fetch-Site
//! ```
//! The first could read responses; the others cannot, and would spend and change things blindly.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::telemetry::metric::{Counter, Metrics};

/// Names in a cluster. Public DNS has none of them, so no page can have them.
const CLUSTER_SUFFIXES: [&str; 2] = [".svc", ".svc.cluster.local"];
/// Nothing from elsewhere, nothing inline, and no frame around it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const SITE: &str = "sec-fetch-site";
const MODE: &str = "sec-fetch-mode";
const DESTINATION: &str = "sec-fetch-dest";

/// A host name of ADMIN_HOSTS: in lower case, without a dot at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

/// Decides which requests are served. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Callers {
    names: Arc<[HostName]>,
    foreign_hosts: Counter,
    foreign_origins: Counter,
}

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Foreign {
    #[error("the Host of this request is not accepted: add its name to ADMIN_HOSTS")]
    Host,
    #[error(
        "this request comes from a page of another origin: a proxy in front of this port has to pass the Host that the browser sent"
    )]
    Origin,
}

impl HostName {
    /// The value parser of one name.
    ///
    /// # Errors
    /// It is no name, or has more than a name.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let name = without_dot(text.trim());
        let is_part = |part: &str| {
            let mut letters = part.bytes();
            !part.is_empty()
                && letters.all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        if !name.split('.').all(is_part) {
            return Err(format!(
                "`{text}` is no host name; write names without scheme, port or wildcard, such as ratelimit.example.com"
            ));
        }
        Ok(Self(name.to_ascii_lowercase()))
    }
}

impl Callers {
    /// Accepts these names beside those that no other site can have. Registers the metric.
    pub(crate) fn new(names: &[HostName], metrics: &Metrics) -> Self {
        let rejected = |reason| {
            metrics.counter_with(
                "tollgate_admin_foreign_requests_total",
                "Requests to the admin listener and PROMETHEUS_ADDR that were rejected because a page of another site may have caused them: \
                 the name in Host is not in ADMIN_HOSTS (host), or Origin or Sec-Fetch-Site names another site (origin).",
                &[("reason", reason)],
            )
        };
        Self {
            names: names.into(),
            foreign_hosts: rejected("host"),
            foreign_origins: rejected("origin"),
        }
    }

    /// Puts the check before every route.
    pub(crate) fn guard(&self, router: Router) -> Router {
        router.layer(from_fn_with_state(self.clone(), guarded))
    }

    fn check(&self, request: &Request) -> Result<(), Foreign> {
        let headers = request.headers();
        let authority = request.uri().authority().map(Authority::as_str);
        // An HTTP/1.0 client without Host is no browser.
        let hosts = || authority.into_iter().chain(texts(headers, header::HOST.as_str()));
        if !hosts().all(|host| self.accepts_host(host)) {
            return Err(Foreign::Host);
        }
        let is_own = |origin: &str| {
            let (_, origin) = origin.split_once("://").unwrap_or_default();
            hosts().all(|host| host.eq_ignore_ascii_case(origin))
        };
        let are_own = texts(headers, header::ORIGIN.as_str()).all(is_own);
        if !are_own || !is_same_site(request.method(), headers) {
            return Err(Foreign::Origin);
        }
        Ok(())
    }

    fn accepts_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return host.is_empty();
        };
        let port = authority.as_str().strip_prefix(authority.host());
        if port.is_none_or(|port| !port.is_empty() && authority.port_u16().is_none()) {
            return false;
        }
        let host = without_dot(authority.host());
        let address = host.trim_start_matches('[').trim_end_matches(']');
        if address.parse::<IpAddr>().is_ok() {
            return true;
        }
        let name = host.to_ascii_lowercase();
        !name.contains('.')
            || CLUSTER_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            || self.names.iter().any(|accepted| accepted.0 == name)
    }
}

impl Foreign {
    fn respond(self, callers: &Callers, request: &Request) -> Response {
        match self {
            Self::Host => callers.foreign_hosts.inc(),
            Self::Origin => callers.foreign_origins.inc(),
        }
        let headers = request.headers();
        let [host, origin, site] = [header::HOST.as_str(), header::ORIGIN.as_str(), SITE]
            .map(|name| texts(headers, name).next().unwrap_or_default());
        tracing::debug!(host, origin, site, "rejecting a request: {self}");
        (StatusCode::FORBIDDEN, format!("{self}\n")).into_response()
    }
}

async fn guarded(State(callers): State<Callers>, request: Request, next: Next) -> Response {
    let mut response = match callers.check(&request) {
        Ok(()) => next.run(request).await,
        Err(foreign) => foreign.respond(&callers, &request),
    };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// Whether the browser reports a page of this origin, or none; or the user follows a link.
///
/// Operators come from links of dashboards and alerts. The page with the link cannot read what the
/// browser then shows, and a GET changes nothing. A frame is not a link: its destination is
/// another.
fn is_same_site(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name, expected: &[&str]| texts(headers, name).all(|text| expected.contains(&text));
    let is_link = method == Method::GET
        && headers.contains_key(MODE)
        && headers.contains_key(DESTINATION)
        && is(MODE, &["navigate"])
        && is(DESTINATION, &["document"]);
    is_link || is(SITE, &["same-origin", "none"])
}

/// The values of a header. One that is not text is foreign to every comparison.
fn texts<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> + use<'h> {
    let values = headers.get_all(name).into_iter();
    values.map(|value| value.to_str().unwrap_or("?"))
}

/// A dot at its end makes a name absolute, and no other name.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn callers() -> Callers {
        let names = ["Ratelimit.example.com.", "other.example.com"];
        let names = names.map(|name| HostName::read(name).expect("it is a name"));
        Callers::new(&names, &Metrics::new())
    }

    /// The result for a request line and headers such as `host: a`.
    fn check(method: &str, uri: &str, headers: &[&str]) -> Result<(), Foreign> {
        let mut request = Request::builder().method(method).uri(uri);
        for header in headers {
            let (name, value) = header.split_once(": ").expect("a name and a value");
            request = request.header(name, value);
        }
        callers().check(&request.body(Body::empty()).expect("it is valid"))
    }

    #[test]
    fn hosts_that_no_other_site_can_have_are_accepted() {
        for host in [
            "",
            "10.1.2.3",
            "10.1.2.3:6070",
            "[::1]:6070",
            "[::1]",
            "localhost:6070",
            "LocalHost.",
            "tollgate-5d9f-x2x",
            "tollgate.shop.svc",
            "tollgate.shop.svc.cluster.local:6070",
            "tollgate.shop.SVC.cluster.local.",
            "ratelimit.example.com",
            "RATELIMIT.example.com:8443",
            "other.example.com.",
        ] {
            assert_eq!(check("GET", "/", &[&format!("host: {host}")]), Ok(()), "{host}");
        }
        assert_eq!(check("GET", "/", &[]), Ok(()), "HTTP/1.0");
    }

    #[test]
    fn other_hosts_are_rejected() {
        for host in [
            "evil.example",
            "evil.example:6070",
            "10.1.2.3.evil.example",
            "localhost.evil.example",
            "svc.evil.example",
            "tollgate.shop.svc.evil.example",
            "tollgate.shop.svc.cluster.local.evil.example",
            "svc.cluster.local.com",
            "a.xsvc",
            "xratelimit.example.com",
            "example.com",
            "a.ratelimit.example.com",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost:6070.evil.example",
            "evil.example..",
            "evil.example/",
            "\u{fc}",
        ] {
            assert_eq!(
                check("GET", "/", &[&format!("host: {host}")]),
                Err(Foreign::Host),
                "{host}"
            );
        }
        let two = ["host: localhost", "host: evil.example"];
        assert_eq!(check("GET", "/", &two), Err(Foreign::Host));
        let absolute = check("GET", "http://evil.example/", &["host: localhost"]);
        assert_eq!(absolute, Err(Foreign::Host));
    }

    /// A method, headers of a request to `localhost:6070`, and whether it is served.
    const CALLERS: &str = "
        GET  | | true
        POST | origin: http://localhost:6070 | true
        POST | origin: HTTP://LOCALHOST:6070 | true
        POST | origin: http://localhost:6070, sec-fetch-site: same-origin | true
        GET  | sec-fetch-site: same-origin, sec-fetch-mode: cors, sec-fetch-dest: empty | true
        GET  | sec-fetch-site: none, sec-fetch-mode: navigate, sec-fetch-dest: document | true
        GET  | sec-fetch-site: cross-site, sec-fetch-mode: navigate, sec-fetch-dest: document | true
        GET  | sec-fetch-site: same-site, sec-fetch-mode: navigate, sec-fetch-dest: document | true
        POST | origin: http://localhost | false
        POST | origin: http://localhost:3000 | false
        POST | origin: http://evil.example | false
        POST | origin: http://evil.example, origin: http://localhost:6070 | false
        POST | origin: null | false
        GET  | origin: null | false
        GET  | sec-fetch-site: cross-site | false
        GET  | sec-fetch-site: same-site | false
        GET  | sec-fetch-site: something | false
        GET  | sec-fetch-site: cross-site, sec-fetch-mode: no-cors, sec-fetch-dest: image | false
        GET  | sec-fetch-site: cross-site, sec-fetch-mode: navigate, sec-fetch-dest: iframe | false
        GET  | sec-fetch-site: cross-site, sec-fetch-mode: navigate | false
        POST | sec-fetch-site: cross-site, sec-fetch-mode: navigate, sec-fetch-dest: document | false
    ";

    #[test]
    fn requests_of_pages_of_other_sites_are_rejected() {
        for line in CALLERS.trim().lines() {
            let cells: Vec<&str> = line.trim().split('|').map(str::trim).collect();
            let headers = cells[1].split(", ").filter(|header| !header.is_empty());
            let headers: Vec<&str> = ["host: localhost:6070"].into_iter().chain(headers).collect();
            let served = check(cells[0], "/", &headers).is_ok();
            assert_eq!(served.to_string(), cells[2], "{line}");
        }
    }

    #[test]
    fn names_are_names_only() {
        for text in [
            "",
            ".",
            "https://a.example",
            "a.example:6070",
            "*.example",
            "a b",
            "a..example",
            "[::1]",
        ] {
            let error = HostName::read(text).expect_err(text);
            assert!(error.starts_with(&format!("`{text}` is no host name")), "{error}");
        }
    }
}
