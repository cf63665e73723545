//! Decides how the caller of a page sees values of descriptors: as they are with a token, else as
//! set by ADMIN_REDACT.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, MatchedPath};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, header};
use parking_lot::Mutex;

use crate::admin::api::answer::{self, Rejected};
use crate::admin::api::outcome::{ActionOutcome, Outcomes};
use crate::admin::api::token::TokenCheck;
use crate::base::named_enum::named_enum;
use crate::base::time::{Clock, Span, Time};
use crate::http::RemoteAddress;
use crate::observe::redact::{Redaction, Values};
use crate::telemetry::log::AUDIT;
use crate::telemetry::metric::Metrics;

const REVEAL: &str = "reveal";
/// A page is logged once in this time, however often it is refreshed.
const LOG_INTERVAL: Span = Span::from_secs(60);

/// Decides for every page of the process. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Viewers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    replica: Box<str>,
    /// `None` shows values as they are to every caller.
    redaction: Option<Arc<Redaction>>,
    token: Arc<TokenCheck>,
    /// By page: at most one for each route.
    logged: Mutex<HashMap<Box<str>, Time>>,
    outcomes: Outcomes,
    clock: Clock,
}

named_enum! {
    /// What a key that a page shows leads to.
    pub enum Links {
        /// The counter of its values.
        Values = "values",
        /// The counter of the values with these hashes.
        Hashes = "hashes",
        /// Nothing: its values were dropped.
        None = "none",
    }
}

/// How the caller of a request sees values.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    /// `None` as they are.
    pub(crate) redaction: Option<Arc<Redaction>>,
    /// Whether a token would show more.
    pub(crate) may_reveal: bool,
}

impl Viewers {
    /// Registers the metric.
    pub(crate) fn new(
        replica: &str,
        redaction: Option<&Arc<Redaction>>,
        token: &Arc<TokenCheck>,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        Self(Arc::new(Shared {
            replica: replica.into(),
            redaction: redaction.cloned(),
            token: token.clone(),
            logged: Mutex::default(),
            outcomes: Outcomes::new(&[REVEAL], metrics),
            clock: clock.clone(),
        }))
    }

    /// # Errors
    /// Those of a wrong token.
    fn viewer(
        &self,
        headers: &HeaderMap,
        remote: Option<IpAddr>,
        page: &str,
    ) -> Result<Viewer, Rejected> {
        let Shared {
            redaction,
            token,
            outcomes,
            ..
        } = &*self.0;
        let may_reveal = redaction.is_some() && token.reveals();
        if !may_reveal || !headers.contains_key(header::AUTHORIZATION) {
            return Ok(Viewer {
                redaction: redaction.clone(),
                may_reveal,
            });
        }
        token.right(headers, remote).inspect_err(|rejected| {
            outcomes.count(REVEAL, ActionOutcome::of(rejected.status));
        })?;
        outcomes.count(REVEAL, ActionOutcome::Done);
        self.log(page, remote);
        Ok(Viewer {
            redaction: None,
            may_reveal: false,
        })
    }

    fn log(&self, page: &str, remote: Option<IpAddr>) {
        if self.is_due(page) {
            let remote = remote.map_or_else(String::new, |remote| remote.to_string());
            tracing::info!(target: AUDIT, action = REVEAL, remote, page, "admin action");
        }
    }

    /// Whether the page was not logged in the last [`LOG_INTERVAL`]. From now on it was.
    fn is_due(&self, page: &str) -> bool {
        let now = self.0.clock.now();
        let mut logged = self.0.logged.lock();
        let last = logged.get(page);
        let is_due = last.is_none_or(|last| now.since(*last) >= LOG_INTERVAL);
        if is_due {
            logged.insert(page.into(), now);
        }
        is_due
    }
}

impl Viewer {
    pub(crate) fn values(&self) -> Values {
        match self.redaction {
            Some(_) => Values::Redacted,
            None => Values::Clear,
        }
    }

    pub(crate) fn links(&self) -> Links {
        match &self.redaction {
            None => Links::Values,
            Some(redaction) if redaction.hashes() => Links::Hashes,
            Some(_) => Links::None,
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
        let page = parts.extensions.get::<MatchedPath>();
        let page = page.map_or("", MatchedPath::as_str);
        let remote = parts.extensions.get::<RemoteAddress>();
        let remote = remote.and_then(|RemoteAddress(remote)| *remote);
        let viewer = viewers.viewer(&parts.headers, remote, page);
        viewer.map_err(|rejected| answer::rejection(&viewers.0.replica, rejected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::api::token::{TokenOptions, TokenSource};

    #[test]
    fn each_page_is_logged_once_in_a_minute() {
        let (clock, time) = Clock::manual(Time::from_micros(0));
        let source = |setting| TokenSource::new(setting, None, None).expect("there is no file");
        let options = TokenOptions::new(source("ADMIN_TOKEN"), source("ADMIN_READ_TOKEN"));
        let options = options.expect("there are no tokens");
        let metrics = Metrics::new();
        let (token, _) = TokenCheck::new(options, clock.clone(), &metrics);
        let viewers = Viewers::new("a", None, &token, &clock, &metrics);
        for (seconds, page, is_due) in [
            (0, "/trial", true),
            (0, "/trial", false),
            (0, "/api/v1/top", true),
            (59, "/trial", false),
            (1, "/trial", true),
            (0, "/api/v1/top", true),
            (59, "/api/v1/top", false),
        ] {
            time.advance(Span::from_secs(seconds));
            assert_eq!(viewers.is_due(page), is_due, "{page} {:?}", clock.now());
        }
    }
}
