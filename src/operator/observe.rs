//! Statistics of decisions for operators.

pub(crate) mod call_log;
pub mod feed;
pub(crate) mod history;
pub mod redact;
pub(crate) mod responses;
pub mod top_keys;
pub(crate) mod unmatched;
