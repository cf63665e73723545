//! Decides how the caller of a page sees values of descriptors: as they are with a token, else as
//! set by ADMIN_REDACT.
//!
//! A first try listens on all addresses, and its operator is on the same machine: with the rules of
//! `./config` and without a token such a caller sees values, too. A proxy on the machine may add no
//! header, so other rules need the setting.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::response::Response;
use http::header;
use http::request::Parts;
use http::uri::Authority;

use crate::base::http::RemoteAddress;
use crate::operator::admin::api::answer::{self, Rejected};
use crate::operator::admin::api::token::TokenCheck;
use crate::operator::observe::redact::Values;

/// Decides for every page of the process. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Viewers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    replica: Box<str>,
    /// What callers without a token see.
    values: Values,
    /// What those of them on this machine see.
    of_local: Values,
    token: Arc<TokenCheck>,
}

/// How the caller of a request sees values.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    pub(crate) values: Values,
    /// Whether a token would show more.
    pub(crate) may_reveal: bool,
}

impl Viewers {
    pub(crate) fn new(
        replica: &str,
        values: Values,
        of_local: Values,
        token: &Arc<TokenCheck>,
    ) -> Self {
        Self(Arc::new(Shared { replica: replica.into(), values, of_local, token: token.clone() }))
    }

    /// # Errors
    /// Those of a wrong token.
    fn viewer(&self, request: &Parts) -> Result<Viewer, Rejected> {
        let Shared { values, of_local, token, .. } = &*self.0;
        let remote = request.extensions.get::<RemoteAddress>();
        let remote = remote.and_then(|RemoteAddress(remote)| *remote);
        let may_reveal = *values == Values::Dropped && token.reveals();
        if may_reveal && request.headers.contains_key(header::AUTHORIZATION) {
            token.right(&request.headers, remote)?;
            return Ok(Viewer { values: Values::Clear, may_reveal: false });
        }
        let is_local = !may_reveal && remote.is_some_and(is_this_machine) && is_direct(request);
        Ok(Viewer { values: if is_local { *of_local } else { *values }, may_reveal })
    }
}

impl Viewer {
    /// What shows the values that are left out; `None` if none are.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match (self.values, self.may_reveal) {
            (Values::Clear, _) => None,
            (Values::Dropped, true) => Some("send ADMIN_READ_TOKEN to see them"),
            (Values::Dropped, false) => Some("set ADMIN_READ_TOKEN, or ADMIN_REDACT=none"),
        }
    }
}

impl<S> FromRequestParts<S> for Viewer
where
    Viewers: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let viewers = Viewers::from_ref(state);
        let viewer = viewers.viewer(parts);
        viewer.map_err(|rejected| answer::rejection(&viewers.0.replica, rejected))
    }
}

/// Other addresses of 127.0.0.0/8 are those of sidecars, as of Istio's.
fn is_this_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
}

/// Whether a request names this machine in each Host, and has no header that a proxy adds.
fn is_direct(request: &Parts) -> bool {
    let headers = &request.headers;
    let hosts = headers.get_all(header::HOST).into_iter();
    let mut hosts = hosts.map(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let is_local = |authority: &Authority| {
        let host = authority.host();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_this_machine)
    };
    let is_of_proxy = |name: &str| {
        ["x-forwarded", "forwarded", "x-envoy-", "x-real-ip", "via"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    headers.contains_key(header::HOST)
        && hosts.all(|host| host.as_ref().is_some_and(is_local))
        && request.uri.authority().is_none_or(is_local)
        && !headers.keys().any(|name| is_of_proxy(name.as_str()))
}
