//! Settings of Envoy's door.

use std::num::NonZeroUsize;
use std::thread;

use clap::Args;

use crate::setting;
use crate::time::Span;

/// Unless WORKERS says otherwise: counting is cheap, and a node has other things to do.
const WORKERS_MAX: usize = 8;

/// Doors for Envoy.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Doors")]
pub struct Settings {
    /// Address of /json, /healthcheck and /ready
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,
    /// Port of the same
    #[arg(long, env = "PORT", default_value = "8080", value_name = "PORT")]
    pub port: u16,
    /// Address of gRPC
    #[arg(long, env = "GRPC_HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub grpc_host: String,
    /// Port of gRPC
    #[arg(long, env = "GRPC_PORT", default_value = "8081", value_name = "PORT")]
    pub grpc_port: u16,
    /// Threads that serve [default: the cores, at most 8]
    #[arg(long, env = "WORKERS", value_name = "THREADS")]
    pub workers: Option<NonZeroUsize>,
    /// On SIGTERM: how long to go on answering while health says no
    #[arg(long, env = "DRAIN_PERIOD", default_value = "5s", value_name = "DURATION", value_parser = setting::span)]
    pub drain_period: Span,
    /// After that: how long to wait for calls in flight
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "25s", value_name = "DURATION", value_parser = setting::span)]
    pub shutdown_timeout: Span,
}

impl Settings {
    /// How many threads serve.
    pub fn workers(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.workers.map_or(cores.min(WORKERS_MAX), NonZeroUsize::get)
    }
}
