//! Settings of the admin listener.

use clap::Args;

use crate::settings::parse::{self, Given};

const DEBUG_PORT_DEFAULT: u16 = 6_070;

/// The admin listener.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Admin door")]
pub struct Settings {
    /// Address of /metrics, /rlconfig, /stats, /explain and /ready; :: is every one of IPv6 and
    /// IPv4
    #[arg(
        long,
        env = "DEBUG_HOST",
        default_value = "0.0.0.0",
        value_name = "HOST"
    )]
    pub debug_host: String,
    /// Port of the same [default: 6070]
    #[arg(long, env = "DEBUG_PORT", default_value = "", hide_default_value = true, value_name = "PORT", value_parser = parse::given(parse::port))]
    pub debug_port: Given<u16>,
}

impl Settings {
    /// The address to bind.
    pub fn debug(&self) -> (&str, u16) {
        (
            &self.debug_host,
            self.debug_port.0.unwrap_or(DEBUG_PORT_DEFAULT),
        )
    }
}
