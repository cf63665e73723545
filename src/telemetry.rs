//! What the operator sees: the log, and metrics.

pub mod log;
pub mod metric;
pub mod settings;
