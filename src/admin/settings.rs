//! Settings of the admin listener.

use clap::Args;

use crate::settings::parse;

/// The admin listener.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Admin listener")]
pub struct Settings {
    /// Address of /metrics, /rlconfig, /stats, /explain and /ready; :: is all of IPv6 and IPv4
    #[arg(long, env, default_value = "0.0.0.0", value_name = "HOST")]
    pub debug_host: String,
    /// Port of /metrics, /rlconfig, /stats, /explain and /ready
    #[arg(long, env, default_value = "6070", value_name = "PORT", value_parser = parse::port)]
    pub debug_port: u16,
}

impl Settings {
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.debug_host, self.debug_port)
    }
}
