//! The response to a request, and the rules that its descriptors match.

use std::sync::Arc;

use crate::limiter::response::Response;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) domain: String,
    pub(super) response: Response,
    /// The path of the rule of each descriptor, in order.
    pub(super) rules: Vec<Option<Arc<str>>>,
}
