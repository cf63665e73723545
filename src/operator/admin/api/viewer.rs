//! Decides how the caller of a page sees values of descriptors: as they are with a token, else as
//! set by ADMIN_REDACT.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, header};

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
    pub(crate) fn new(replica: &str, values: Values, token: &Arc<TokenCheck>) -> Self {
        Self(Arc::new(Shared { replica: replica.into(), values, token: token.clone() }))
    }

    /// # Errors
    /// Those of a wrong token.
    fn viewer(&self, headers: &HeaderMap, remote: Option<IpAddr>) -> Result<Viewer, Rejected> {
        let Shared { values, token, .. } = &*self.0;
        let may_reveal = *values == Values::Dropped && token.reveals();
        if !may_reveal || !headers.contains_key(header::AUTHORIZATION) {
            return Ok(Viewer { values: *values, may_reveal });
        }
        token.right(headers, remote)?;
        Ok(Viewer { values: Values::Clear, may_reveal: false })
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
        let remote = parts.extensions.get::<RemoteAddress>();
        let remote = remote.and_then(|RemoteAddress(remote)| *remote);
        let viewer = viewers.viewer(&parts.headers, remote);
        viewer.map_err(|rejected| answer::rejection(&viewers.0.replica, rejected))
    }
}
