//! Parts of answers of the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::finding::Finding;
use crate::rules::explain::Outcome;

/// Why a request is rejected.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody {
    /// The reason, and what to do
    pub(crate) error: String,
    /// For 404: the walk through the rules, as `tollgate explain` prints it
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub(crate) explanation: Option<String>,
    /// For 404: whether the descriptor matches a rule, which is unlimited
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Outcome", extend("enum" = ["matched", "no_rule", "unknown_domain"]))]
    pub(crate) outcome: Option<Outcome>,
    /// Errors of rules, of a change that is invalid
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub(crate) errors: Option<Vec<Finding>>,
}
