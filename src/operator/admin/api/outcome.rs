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

/// The outcomes of an action.
#[derive(Debug)]
pub(crate) struct Outcomes([Counter; ActionOutcome::ALL.len()]);

impl Outcomes {
    /// Registers the metric for an action of this name.
    pub(crate) fn new(action: &'static str, metrics: &Metrics) -> Self {
        Self(ActionOutcome::ALL.map(|outcome| {
            metrics.counter_with(
                "tollgate_admin_actions_total",
                "Requests to reset a counter, to grant hits or to replace a rules file, by outcome: done, \
                 unauthorized (a missing or wrong token), forbidden (no token \
                 is configured, or rules files are not writable), throttled (too many wrong tokens), rejected (invalid, no rule, or a rules file that was changed meanwhile), or failed (the store, the file system, or the reload).",
                &[("action", action), ("outcome", outcome.name())],
            )
        }))
    }

    pub(crate) fn count(&self, outcome: ActionOutcome) {
        self.0[outcome as usize].inc();
    }
}
