//! Differences between two sets of rules: the rules of a running service, and recorded requests
//! with another answer.

pub(crate) mod served;
pub(crate) mod traffic;
