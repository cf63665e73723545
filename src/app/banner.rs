//! Bound addresses and loaded rules, for the operator who starts the service.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::json;

use crate::base::text::counted;
use crate::rules::tree::Example;
use crate::store::memory::{ADMITS_MORE, COUNTS_ALONE};

#[derive(Debug, Clone)]
pub(crate) struct Summary {
    pub(crate) store: String,
    /// Whether counts are shared with no other process.
    pub(crate) store_is_local: bool,
    pub(crate) grpc: String,
    /// The TLS of the gRPC port, as the banner shows it.
    pub(crate) grpc_security: &'static str,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// The upstream of a trial.
    pub(crate) trial: Option<String>,
    /// The additional metrics page.
    pub(crate) prometheus: Option<SocketAddr>,
    pub(crate) rules_from: String,
    pub(crate) rules: InitialRules,
    /// A descriptor with a limit, for a first request.
    pub(crate) example: Option<Example>,
    pub(crate) workers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitialRules {
    Loaded {
        limits: usize,
        domains: usize,
    },
    Rejected,
    /// There is no such directory.
    Missing,
    /// They are requested from a control plane once the listeners accept connections.
    Pending,
}

impl Summary {
    /// Logs the summary as one line with fields.
    pub(crate) fn log(&self) {
        let limits = match self.rules {
            InitialRules::Loaded { limits, .. } => Some(limits),
            InitialRules::Rejected | InitialRules::Missing | InitialRules::Pending => None,
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            store = self.store,
            grpc = self.grpc,
            http = %self.http,
            admin = %self.admin,
            prometheus = self.prometheus.map(|addr| addr.to_string()),
            trial_upstream = self.trial,
            rules = limits,
            rules_from = self.rules_from,
            workers = self.workers,
            "started"
        );
    }

    /// A command for a first request.
    fn curl(&self) -> Option<String> {
        let Example { domain, entries } = self.example.as_ref()?;
        let entries: Vec<_> =
            entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
        let body = format!(
            r#"{{"domain":{},"descriptors":[{{"entries":{}}}]}}"#,
            json!(domain),
            json!(entries)
        );
        Some(format!("curl -d '{}' {}/json", body.replace('\'', r"'\''"), url(self.http)))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = if self.store_is_local {
            format!(" ({COUNTS_ALONE}: {ADMITS_MORE})")
        } else {
            String::new()
        };
        let from = &self.rules_from;
        let rules = match self.rules {
            InitialRules::Loaded { limits, domains } => {
                format!("{limits} in {}, from {from}", counted(domains, "domain"))
            }
            InitialRules::Rejected => {
                format!("none: those in {from} were rejected, see the log; waiting for valid rules")
            }
            InitialRules::Missing => format!(
                "none: there is no {from}; name a directory as in `tollgate DIR`, or start where ./config is"
            ),
            InitialRules::Pending => format!("none yet: requesting them from {from}, see the log"),
        };
        writeln!(formatter, "tollgate {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(formatter, "  store    {}{local}", self.store)?;
        writeln!(formatter, "  gRPC     {}{}", self.grpc, self.grpc_security)?;
        writeln!(formatter, "  console  {}/", url(self.admin))?;
        let paths = "/metrics /rlconfig /stats /explain";
        write_listener(formatter, "admin  ", self.admin, paths)?;
        let paths = "/json /healthcheck /ready";
        write_listener(formatter, "HTTP   ", self.http, paths)?;
        if let Some(addr) = self.prometheus {
            write_listener(formatter, "metrics", addr, "")?;
        }
        if let Some(upstream) = &self.trial {
            writeln!(formatter, "  trial    gRPC is forwarded to {upstream}")?;
        }
        writeln!(formatter, "  rules    {rules}")?;
        writeln!(formatter, "  workers  {}", self.workers)?;
        match self.curl() {
            Some(curl) => writeln!(formatter, "try it:\n  {curl}"),
            None => Ok(()),
        }
    }
}

fn write_listener(
    formatter: &mut fmt::Formatter<'_>,
    name: &str,
    addr: SocketAddr,
    paths: &str,
) -> fmt::Result {
    let line = format!("  {name}  {}  {paths}", url(addr));
    let line = line.trim_end();
    if addr.ip().is_unspecified() {
        writeln!(formatter, "{line}  (on {})", addr.ip())
    } else {
        writeln!(formatter, "{line}")
    }
}

/// The URL at which a client on this machine reaches a listener.
fn url(addr: SocketAddr) -> String {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, addr.port()))
}
