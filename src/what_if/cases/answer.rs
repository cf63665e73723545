//! The response to a request, and the rules that its descriptors match.

use std::sync::Arc;

use crate::limiter::response::Response;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) domain: String,
    pub(crate) response: Response,
    /// The path of the rule of each descriptor, in order.
    pub(crate) rules: Vec<Option<Arc<str>>>,
}
