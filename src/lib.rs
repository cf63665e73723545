//! Tollgate: a global rate limit service for Envoy, Istio and Envoy Gateway.
//!
//! Two wings that meet: counting on the left, rules on the right; the limiter and the doors stand
//! where they join. No arrow goes up, and none in a circle; `tests/architecture.rs` has the table.
//!
//! ```text
//! floor
//!  12                         main
//!  11                          cli            serve | check | explain | simulate
//!  10                          app            puts the house together, and takes it down
//!   9                        settings         composes what each room needs
//!   8                         admin           operator-facing HTTP
//!   7                          api            Envoy-facing servers
//!   6          limiter               rule_source          answers    | brings new rules
//!   5           store                   config            counts     | text to rules
//!   4         algorithm                 rules             decides    | matches, and holds the rules that are live
//!   3                   check                             the question and the verdict
//!   2                   limit        telemetry   http
//!   1        time   proto   shutdown   setting   tls   watch   sampling   backoff   text   runtime
//! ```
//!
//! `docs/architecture.md` tells the way of a call through it, and why it is built so.

mod backoff;
pub mod file_watch;
pub mod proto;
pub mod runtime;
pub mod sampling;
pub mod shutdown;
pub mod text;
pub mod time;
pub mod tls;

pub mod http;
pub mod limit;
pub mod telemetry;

pub mod check;

pub mod algorithm;
pub mod rules;

pub mod config;
pub mod store;

pub mod limiter;
pub mod rule_source;

pub mod admin;
pub mod api;

pub mod settings;

pub mod app;

pub mod cli;
