//! Statistics of decisions for operators.

pub mod feed;
pub mod record;
pub mod redact;
pub mod top_keys;
