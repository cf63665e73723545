//! Tollgate: a global rate limit service for Envoy, Istio and Envoy Gateway.

pub mod time;
pub mod setting;
pub mod shutdown;
pub mod proto;
pub mod http;
pub mod limit;
pub mod check;
pub mod algorithm;
pub mod telemetry;
pub mod rules;
pub mod config;
pub mod store;
pub mod limiter;
pub mod rule_source;
pub mod api;
pub mod admin;
pub mod settings;
pub mod app;
pub mod cli;
