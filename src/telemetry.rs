//! Log, metrics and traces.

pub mod dogstatsd;
pub mod log;
pub mod mapper;
pub mod metric;
pub mod settings;
pub mod statsd;
pub mod tags;
pub mod traces;
