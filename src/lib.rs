//! Tollgate: a global rate limit service for Envoy, Istio and Envoy Gateway.
//!
//! `tests/architecture.rs` has the table of components and of what each may import:
//!
//! ```text
//! main
//! cli                    arguments and presentation of the commands
//! app                    settings; builds, runs and drains the components
//! operator               statistics, admin port and console: what people on call read and do
//! what_if                what other rules would do: simulate, cases, replay, diff, check
//! api                    Envoy-facing servers
//! trial                  forwards to another rate limit service, and compares
//! limiter                one decision
//! report                 what operators read: typed, without I/O
//! store       rules      memory and Redis counters | sources and compiler of rules; matching, keys
//! limits                 what may be counted: limits, checks, pure decisions
//! telemetry              logs, metrics, traces
//! base                   time, text, net, HTTP listeners, watched files
//! ```
//!
//! `docs/architecture.md` follows one request through them.

pub mod base;

pub mod limits;
pub mod telemetry;

pub mod report;
pub mod rules;
pub mod store;

pub mod limiter;
pub mod trial;

pub mod api;
mod what_if;

pub mod operator;

pub mod app;

pub mod cli;
