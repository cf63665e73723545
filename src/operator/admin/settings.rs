//! Settings of the admin listener.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::base::http::callers::HostName;
use crate::base::parse::{self, Secret};
use crate::base::removed::replacement;
use crate::operator::admin::api::token::{TokenOptions, TokenSource};
use crate::operator::observe::redact::Values;
use crate::rules::source::Origin;

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
    /// Host names, separated by commas, by which browsers and other clients may reach DEBUG_PORT
    /// and PROMETHEUS_ADDR, as by an Ingress; IP addresses, localhost, names without a dot, and
    /// names that end with .svc or .svc.cluster.local are always accepted
    #[arg(long, env, value_name = "NAMES", value_delimiter = ',', value_parser = HostName::read)]
    pub admin_hosts: Vec<HostName>,
    /// Token of requests that change something, which are rejected without one, and of those that
    /// may see values of descriptors
    #[arg(long, env, value_name = "TOKEN", value_parser = Secret::read, hide_env_values = true)]
    pub admin_token: Option<Secret>,
    /// File with the value of ADMIN_TOKEN in one line, reloaded when it changes; takes precedence
    #[arg(long, env, value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// Token of requests that may see values of descriptors and change nothing
    #[arg(long, env, value_name = "TOKEN", value_parser = Secret::read, hide_env_values = true)]
    pub admin_read_token: Option<Secret>,
    /// File with the value of ADMIN_READ_TOKEN in one line, reloaded when it changes; takes
    /// precedence
    #[arg(long, env, value_name = "FILE")]
    pub admin_read_token_file: Option<PathBuf>,
    /// Show values of descriptors to requests without a token as they are (none), or leave out
    /// those that the rules do not name (drop) [default: none if DEBUG_HOST is a loopback address,
    /// and, with the rules of ./config and without a token, for requests of this machine; else
    /// drop]
    #[arg(long, env, value_name = "HOW", value_parser = values)]
    pub admin_redact: Option<Values>,
    /// Name of this replica on pages and in answers [default: HOSTNAME, else the random name in
    /// heartbeats]
    #[arg(long, env, value_name = "NAME")]
    pub pod_name: Option<String>,
}

impl Settings {
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.debug_host, self.debug_port)
    }

    /// # Errors
    /// A file or a token cannot be used, or both tokens are the same.
    pub(crate) fn tokens(&self) -> Result<TokenOptions, String> {
        let token = self.admin_token.clone();
        let file = self.admin_token_file.clone();
        let change = TokenSource::new("ADMIN_TOKEN", token, file)?;
        let token = self.admin_read_token.clone();
        let file = self.admin_read_token_file.clone();
        let read = TokenSource::new("ADMIN_READ_TOKEN", token, file)?;
        TokenOptions::new(change, read)
    }

    /// What requests without a token see. The admin listener is bound to `listener`.
    pub(crate) fn values(&self, listener: SocketAddr) -> Values {
        self.admin_redact.unwrap_or({
            if listener.ip().to_canonical().is_loopback() { Values::Clear } else { Values::Dropped }
        })
    }

    /// What requests from this machine without a token see, where the rules are `origin`.
    pub(crate) fn local_values(&self, listener: SocketAddr, origin: &Origin) -> Values {
        let is_default = self.admin_redact.is_none();
        if is_default && origin.is_here() { Values::Clear } else { self.values(listener) }
    }
}

fn values(text: &str) -> Result<Values, String> {
    let unknown = |error| match replacement(&format!("ADMIN_REDACT={text}")) {
        Some(replacement) => format!("{error}; {replacement}"),
        None => error,
    };
    text.parse().map_err(unknown)
}
