//! Actions of an operator on counters: reset and grant. Each is authorized, logged and counted, and
//! answered with the counter before and after it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, StatusCode};
use tokio_util::task::TaskTracker;

use crate::api::body::read_body;
use crate::operator::admin::api::answer::{Answer, Rejected};
use crate::operator::admin::api::change::{Action, CounterAction};
use crate::operator::admin::api::counters::Counters;
use crate::operator::admin::api::outcome::{ActionOutcome, Outcomes};
use crate::operator::admin::api::token::TokenCheck;
use crate::report::counter::CounterChange;
use crate::report::json;
use crate::telemetry::log::AUDIT;
use crate::telemetry::metric::Metrics;

/// Bytes of the body of an action: a domain and one descriptor.
// bound action_bytes_max: 413; tollgate_admin_actions_total{outcome="rejected"}
const BODY_BYTES_MAX: usize = 16 << 10;

/// Does actions.
#[derive(Debug)]
pub(crate) struct Actions {
    counters: Arc<Counters>,
    token: Arc<TokenCheck>,
    /// By [`Action`].
    outcomes: [Outcomes; Action::ALL.len()],
    tasks: TaskTracker,
}

impl Actions {
    /// Registers the metrics.
    pub(crate) fn new(counters: Arc<Counters>, token: Arc<TokenCheck>, metrics: &Metrics) -> Self {
        Self {
            counters,
            token,
            outcomes: Action::ALL.map(|action| Outcomes::new(action.name(), metrics)),
            tasks: TaskTracker::new(),
        }
    }

    /// The setting to configure; `None` if there is a token.
    pub(crate) fn unconfigured(&self) -> Option<&'static str> {
        self.token.unconfigured()
    }

    /// Does an action, even if its caller goes away meanwhile.
    pub(crate) async fn act(
        self: Arc<Self>,
        action: Action,
        remote: Option<IpAddr>,
        headers: &HeaderMap,
        body: Body,
    ) -> Answer<CounterChange> {
        let actions = self.clone();
        let answer = match actions.read(action, remote, headers, body).await {
            Err(rejected) => Err(rejected),
            Ok(change) => {
                let act = async move { actions.change(&change).await };
                // Cancelled only by a panic, or with the process.
                self.tasks.spawn(act).await.unwrap_or_else(|_| {
                    let reason = "the action ended unexpectedly";
                    Err(Rejected::new(StatusCode::INTERNAL_SERVER_ERROR, reason))
                })
            }
        };
        if let Err(rejected) = &answer {
            self.outcomes[action as usize].count(ActionOutcome::of(rejected.status));
        }
        answer
    }

    /// Authorizes a request, and reads the change.
    async fn read(
        &self,
        action: Action,
        remote: Option<IpAddr>,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<CounterAction, Rejected> {
        self.token.authorize(headers, remote)?;
        let body = read_body(body, BODY_BYTES_MAX, |_| true).await?;
        CounterAction::read(action, &body, remote)
    }

    async fn change(&self, change: &CounterAction) -> Answer<CounterChange> {
        let changed = self.counters.change(change).await;
        let remote = change.remote.map_or_else(String::new, |remote| remote.to_string());
        let action = change.action.name();
        let domain = &*change.domain;
        let hits = change.hits;
        let descriptor = change.descriptor();
        let limit = change.limit.as_deref();
        let changed = changed.inspect_err(|rejected| {
            // The store may have done it.
            if rejected.status.is_server_error() {
                let error = rejected.reason();
                tracing::info!(target: AUDIT, action, remote, domain, descriptor, limit, hits, error, "admin action failed");
            }
        })?;
        let before = json(&changed.before);
        let after = json(&changed.after);
        tracing::info!(target: AUDIT, action, remote, domain, descriptor, limit, hits, before, after, "admin action");
        self.outcomes[change.action as usize].count(ActionOutcome::Done);
        Ok(changed)
    }
}
