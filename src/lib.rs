//! Tollgate: a global rate limit service for Envoy, Istio and Envoy Gateway.
//!
//! `tests/architecture.rs` has the table of components and of what each may import:
//!
//! ```text
//! main
//! cli                           serve | check | candidate | trial | explain | simulate | test | replay | top | rules
//! app                           builds, runs and drains the components
//! settings                      resolves flags and environment once
//! admin                         operator-facing HTTP
//! what_if                       what other rules would do: simulate, test, check a change
//! traffic                       reads recorded requests
//! api                           Envoy-facing servers
//! offline                       decides at the times of recorded requests
//! rule_files                    reads and changes rules files
//! trial                         forwards to another rate limit service, and compares
//! limiter      rule_source      one decision               | loads, compiles and publishes rules
//! candidate    record           candidate rules            | records requests to a file
//! top_keys     over_limit_feed  the most frequent keys     | the latest responses of OVER_LIMIT
//! store        config           memory and Redis counters  | YAML and xDS to rules
//! report       redact           what operators read        | replaces values by hashes
//! algorithm    rules            pure decisions             | matching, keys, the live rule set
//! check                         the request to a store and its result
//! limit  telemetry  http        what may be counted | logs, metrics, traces | HTTP/1 server
//! file_watch                    reloads files that change
//! time  proto  shutdown  tls  text  named_enum  runtime  sampling  backoff  remote  base
//! ```
//!
//! `docs/architecture.md` follows one request through them.

mod backoff;
pub mod base;
pub mod file_watch;
mod named_enum;
pub mod proto;
mod regular_file;
mod remote;
pub mod runtime;
pub mod sampling;
pub mod shutdown;
pub mod text;
pub mod time;
pub mod tls;

pub mod http;
pub mod limit;
pub mod telemetry;

pub mod candidate;
pub mod check;

pub mod algorithm;
pub mod report;
pub mod rules;

pub mod config;
pub mod over_limit_feed;
pub mod record;
pub mod redact;
pub mod store;
pub mod top_keys;

pub mod limiter;
pub mod rule_source;
pub mod trial;

mod offline;
mod rule_files;

pub mod api;
mod traffic;
mod what_if;

pub mod admin;

pub(crate) mod console;

pub mod settings;

mod app;

pub mod cli;
