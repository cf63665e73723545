//! Settings of the operators' door.

use clap::Args;

/// The door for operators.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Admin door")]
pub struct Settings {
    /// Address of /metrics, /rlconfig, /stats, /explain and /ready
    #[arg(long, env = "DEBUG_HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub debug_host: String,
    /// Port of the same
    #[arg(long, env = "DEBUG_PORT", default_value = "6070", value_name = "PORT")]
    pub debug_port: u16,
}
