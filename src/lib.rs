//! Tollgate: a global rate limit service for Envoy, Istio and Envoy Gateway.
//!
//! `tests/architecture.rs` has the table of components and of what each may import:
//!
//! ```text
//! main
//! cli                      arguments and presentation of the commands
//! app                      builds, runs and drains the components
//! settings                 resolves flags and environment once
//! console                  pages for operators
//! admin                    operator-facing HTTP
//! what_if                  what other rules would do: simulate, cases, replay, diff, check
//! api                      Envoy-facing servers
//! trial                    forwards to another rate limit service, and compares
//! limiter                  one decision
//! rule_source              loads, edits, compiles and publishes rules
//! observe                  top keys, over-limit feed, redaction
//! store       config       memory and Redis counters | YAML and xDS to rules
//! report                   what operators read
//! algorithm   rules        pure decisions           | matching, keys, the live rule set
//! check                    the request to a store and its result
//! limit  telemetry  http   what may be counted | logs, metrics, traces | HTTP listeners
//! base  net  file_watch  proto
//! ```
//!
//! `docs/architecture.md` follows one request through them.

pub mod base;
pub mod file_watch;
pub mod net;
pub mod proto;

pub mod http;
pub mod limit;
pub mod telemetry;

pub mod check;

pub mod algorithm;
pub mod report;
pub mod rules;

pub mod config;
pub mod observe;
pub mod store;

pub mod limiter;
pub mod rule_source;
pub mod trial;

pub mod api;
mod what_if;

pub mod admin;

pub(crate) mod console;

pub mod settings;

mod app;

pub mod cli;
