//! OTLP to an OpenTelemetry collector: what traces and metrics have in common.

pub(crate) mod delivery;
pub mod options;
mod send;
