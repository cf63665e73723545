//! Counts actions of operators by their outcome.

use http::StatusCode;

use crate::base::named_enum::named_enum;
use crate::telemetry::metric::{Counter, Metrics};

named_enum! {
    /// How an action ended, as the label of the metric has it.
    pub enum ActionOutcome {
        /// The action was done.
        Done = "done",
        /// The token is missing or wrong.
        Unauthorized = "unauthorized",
        /// No token is configured, or rules files are not writable.
        Forbidden = "forbidden",
        /// The client sent too many wrong tokens.
        Throttled = "throttled",
        /// The request is invalid.
        Rejected = "rejected",
        /// The request is valid, and was not done, or not to its end.
        Failed = "failed",
    }
}

impl ActionOutcome {
    /// The outcome of an action that was answered with this status, other than 200.
    pub(crate) fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Self::Unauthorized,
            StatusCode::FORBIDDEN => Self::Forbidden,
            StatusCode::TOO_MANY_REQUESTS => Self::Throttled,
            status if status.is_server_error() => Self::Failed,
            _ => Self::Rejected,
        }
    }
}

/// The outcomes of some actions.
#[derive(Debug)]
pub(crate) struct Outcomes(Vec<(&'static str, [Counter; ActionOutcome::ALL.len()])>);

impl Outcomes {
    /// Registers the metric for actions of these names.
    pub(crate) fn new(actions: &[&'static str], metrics: &Metrics) -> Self {
        let counter = |action: &'static str, outcome: ActionOutcome| {
            metrics.counter_with(
                "tollgate_admin_actions_total",
                "Requests to reset a counter, to grant hits or to replace a rules file, by outcome: done, \
                 unauthorized (a missing or wrong token), forbidden (no token \
                 is configured, or rules files are not writable), throttled (too many wrong tokens), rejected (invalid, no rule, or a rules file that was changed meanwhile), or failed (the store, the file system, or the reload).",
                &[("action", action), ("outcome", outcome.name())],
            )
        };
        let of_action = |&action: &&'static str| {
            let outcomes = ActionOutcome::ALL.map(|outcome| counter(action, outcome));
            (action, outcomes)
        };
        Self(actions.iter().map(of_action).collect())
    }

    pub(crate) fn count(&self, action: &str, outcome: ActionOutcome) {
        let known = self.0.iter().find(|(known, _)| *known == action);
        if let Some((_, outcomes)) = known {
            outcomes[outcome as usize].inc();
        }
    }
}
