//! What the operator sees: the log, metrics, and traces.

pub mod log;
pub mod metric;
pub mod settings;
pub mod traces;
