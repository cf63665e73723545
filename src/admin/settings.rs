//! Settings of the admin listener.

use std::path::PathBuf;

use clap::Args;

use crate::admin::api::token::TokenOptions;
use crate::settings::parse::{self, Secret};

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
    /// Token of requests to /api/v1 that change something, which are rejected without one
    #[arg(long, env, value_name = "TOKEN", value_parser = Secret::read, hide_env_values = true)]
    pub admin_token: Option<Secret>,
    /// File with the value of ADMIN_TOKEN in one line, reloaded when it changes; takes precedence
    #[arg(long, env, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.debug_host, self.debug_port)
    }

    /// # Errors
    /// The file cannot be used.
    pub(crate) fn token(&self) -> Result<TokenOptions, String> {
        TokenOptions::new(self.admin_token.clone(), self.admin_token_file.clone())
    }
}
