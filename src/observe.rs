//! Statistics of decisions for operators.

pub mod feed;
pub(crate) mod history;
pub mod record;
pub mod redact;
pub mod top_keys;
