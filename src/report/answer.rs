//! Parts of answers of the API.

use serde::{Deserialize, Serialize};

use crate::report::finding::Finding;
use crate::rules::explain::Outcome;

/// Why a request is rejected.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    /// The reason, and what to do
    pub(crate) error: String,
    /// For 404: the walk through the rules, as `tollgate explain` prints it
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) explanation: Option<String>,
    /// For 404: whether the descriptor matches a rule, which is unlimited
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<Outcome>,
    /// Errors of rules, of a change that is invalid
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) errors: Option<Vec<Finding>>,
}
