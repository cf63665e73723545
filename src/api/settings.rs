//! Settings of the listeners for Envoy.

use std::num::NonZeroUsize;
use std::thread;

use clap::Args;
use rustls::pki_types::ServerName;

use crate::api::certificates::{Clients, Files};
use crate::api::connection::ConnectionLimits;
use crate::base::net::tls::{Identity, PemFile};
use crate::base::parse;
use crate::base::time::Span;

/// By default half of the cores are workers. Clients, Redis and the kernel's network stack need the
/// others, and fewer workers send larger batches: on two cores one worker takes a fifth less CPU
/// per decision than two.
const CORES_PER_WORKER: usize = 2;
/// Serving threads unless WORKERS is set: each decides about 100,000 requests a second.
const WORKERS_DEFAULT_MAX: usize = 8;

/// Listeners for Envoy.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Listeners")]
pub struct Settings {
    /// Address of /json, /healthcheck and /ready; :: is all of IPv6 and IPv4
    #[arg(long, env, default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,
    /// Port of /json, /healthcheck and /ready
    #[arg(long, env, default_value = "8080", value_name = "PORT", value_parser = parse::port)]
    pub port: u16,
    /// Address of gRPC; :: is all of IPv6 and IPv4
    #[arg(long, env, default_value = "0.0.0.0", value_name = "HOST")]
    pub grpc_host: String,
    /// Port of gRPC
    #[arg(long, env, default_value = "8081", value_name = "PORT", value_parser = parse::port)]
    pub grpc_port: u16,
    /// Serve gRPC on a Unix socket at this path instead
    #[arg(long, env, value_name = "FILE")]
    pub grpc_uds: Option<String>,
    // As in envoyproxy/ratelimit. Envoys find new replicas when they reconnect.
    /// Close a gRPC connection gracefully (GOAWAY) at this age, plus or minus 10 %; 0 for never
    // bound GRPC_MAX_CONNECTION_AGE: GOAWAY; tollgate_connections_aged_total
    #[arg(long, env, default_value = "24h", value_name = "DURATION", value_parser = parse::duration)]
    pub grpc_max_connection_age: Span,
    /// After GOAWAY: time for requests in flight, then the connection is closed; 0 for no limit
    // bound GRPC_MAX_CONNECTION_AGE_GRACE: closed; tollgate_connections_force_closed_total
    #[arg(long, env, default_value = "1h", value_name = "DURATION", value_parser = parse::duration)]
    pub grpc_max_connection_age_grace: Span,
    /// Serve gRPC with TLS only
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub grpc_server_use_tls: bool,
    /// Certificate chain of gRPC (PEM); reloaded when the file changes
    #[arg(long, env, value_name = "FILE")]
    pub grpc_server_tls_cert: Option<String>,
    /// Private key of that certificate (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub grpc_server_tls_key: Option<String>,
    /// Require a client certificate signed by this authority (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub grpc_client_tls_cacert: Option<String>,
    /// Require a client certificate for this DNS name
    #[arg(long, env, value_name = "NAME")]
    pub grpc_client_tls_san: Option<String>,
    /// Number of serving threads [default: half the number of cores, at most 8]
    #[arg(long, env, value_name = "THREADS", value_parser = threads)]
    pub workers: Option<NonZeroUsize>,
    /// On SIGTERM: how long to serve while health checks report NOT_SERVING
    #[arg(long, env, default_value = "5s", value_name = "DURATION", value_parser = parse::duration)]
    pub drain_period: Span,
    /// After DRAIN_PERIOD: how long to wait for requests in flight
    #[arg(long, env, default_value = "25s", value_name = "DURATION", value_parser = parse::duration)]
    pub shutdown_timeout: Span,
}

impl Settings {
    /// Number of serving threads.
    pub(crate) fn workers(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let default = cores.div_ceil(CORES_PER_WORKER).min(WORKERS_DEFAULT_MAX);
        self.workers.map_or(default, NonZeroUsize::get)
    }

    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        let unless_zero = |span| Some(span).filter(|span| *span > Span::ZERO);
        ConnectionLimits {
            max_age: unless_zero(self.grpc_max_connection_age),
            grace: unless_zero(self.grpc_max_connection_age_grace),
        }
    }

    /// The files of gRPC's TLS; `None` for plain text.
    ///
    /// # Errors
    /// Settings that contradict each other, or files that cannot be used.
    pub(crate) fn tls(&self) -> Result<Option<Files>, String> {
        if !self.grpc_server_use_tls {
            // Authentication that is configured must not be off.
            let asked = [
                ("GRPC_CLIENT_TLS_CACERT", &self.grpc_client_tls_cacert),
                ("GRPC_CLIENT_TLS_SAN", &self.grpc_client_tls_san),
            ];
            return match asked.into_iter().find(|(_, value)| value.is_some()) {
                Some((name, _)) => Err(format!(
                    "{name} is set, but gRPC is served in plain text; set GRPC_SERVER_USE_TLS to true, or unset {name}"
                )),
                None => Ok(None),
            };
        }
        let file = |setting, path: &Option<String>| match path {
            Some(path) => Ok(PemFile::new(setting, path)),
            None => Err(format!(
                "GRPC_SERVER_USE_TLS is true, but {setting} is not set; set it to the path of a PEM file"
            )),
        };
        let identity = Identity {
            cert: file("GRPC_SERVER_TLS_CERT", &self.grpc_server_tls_cert)?,
            key: file("GRPC_SERVER_TLS_KEY", &self.grpc_server_tls_key)?,
        };
        let files = Files { identity, clients: self.clients()? };
        files.load().map_err(|error| error.to_string())?;
        Ok(Some(files))
    }

    /// Settings that are set and have no effect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let is_unused = !self.grpc_server_use_tls
            && (self.grpc_server_tls_cert.is_some() || self.grpc_server_tls_key.is_some());
        let warning = "GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY have no effect: gRPC is served in plain text unless GRPC_SERVER_USE_TLS is true";
        is_unused.then(|| warning.to_owned()).into_iter().collect()
    }

    fn clients(&self) -> Result<Option<Clients>, String> {
        let name = self.grpc_client_tls_san.as_ref().map(|name| {
            ServerName::try_from(name.clone()).map_err(|_| {
                format!(
                    "GRPC_CLIENT_TLS_SAN is {name}, which is not a DNS name; use a name such as envoy.example.com"
                )
            })
        });
        match (&self.grpc_client_tls_cacert, name.transpose()?) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(
                "GRPC_CLIENT_TLS_SAN has no effect without GRPC_CLIENT_TLS_CACERT: no client certificate would be requested; set GRPC_CLIENT_TLS_CACERT to the file of the clients' authority, or unset GRPC_CLIENT_TLS_SAN"
                    .to_owned(),
            ),
            (Some(path), name) => Ok(Some(Clients {
                ca: PemFile::new("GRPC_CLIENT_TLS_CACERT", path),
                name,
            })),
        }
    }
}

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|error| format!("{error}; write a number of threads, at least 1"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        api: Settings,
    }

    #[test]
    fn zero_disables_connection_ages() {
        let ages = ["--grpc-max-connection-age=0", "--grpc-max-connection-age-grace=0"];
        let parsed = Cli::try_parse_from([&["tollgate"], &ages[..]].concat()).expect("valid flags");
        let limits = parsed.api.connection_limits();
        assert_eq!((limits.max_age, limits.grace), (None, None));
    }

    /// A certificate that signs itself and its key, in files of these names.
    fn certificate(folder: &Path, cert: &str, key: &str) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a name");
        fs::write(folder.join(cert), made.cert.pem()).expect("it is writable");
        fs::write(folder.join(key), made.signing_key.serialize_pem()).expect("it is writable");
    }

    #[test]
    fn invalid_settings_of_tls_are_errors_with_their_names() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        certificate(folder.path(), "cert", "key");
        certificate(folder.path(), "ca", "other-key");
        // TLS, CERT, PAIR and DIR stand for what most of them have.
        let cases = "
TLS => GRPC_SERVER_TLS_CERT is not set
CERT => GRPC_SERVER_TLS_KEY is not set
TLS --grpc-server-tls-cert=/no/tls.crt --grpc-server-tls-key=DIR/key => GRPC_SERVER_TLS_CERT: /no/tls.crt: No such file or directory
CERT --grpc-server-tls-key=DIR/cert => GRPC_SERVER_TLS_KEY
CERT --grpc-server-tls-key=DIR/other-key => cannot be used together
PAIR --grpc-client-tls-cacert=DIR/key => GRPC_CLIENT_TLS_CACERT
PAIR --grpc-client-tls-san=envoy.mesh => set GRPC_CLIENT_TLS_CACERT to the file of the clients' authority
PAIR --grpc-client-tls-cacert=DIR/ca --grpc-client-tls-san=spiffe://mesh/envoy => GRPC_CLIENT_TLS_SAN is spiffe://mesh/envoy, which is not a DNS name
--grpc-client-tls-cacert=DIR/ca => set GRPC_SERVER_USE_TLS to true, or unset GRPC_CLIENT_TLS_CACERT
--grpc-server-use-tls=false --grpc-client-tls-san=envoy.mesh => set GRPC_SERVER_USE_TLS to true
--grpc-server-use-tls=yes => true or false";
        for line in cases.trim().lines() {
            let (flags, expected) = line.split_once(" => ").expect("flags => a text");
            let flags = flags
                .replace("PAIR", "CERT --grpc-server-tls-key=DIR/key")
                .replace("CERT", "TLS --grpc-server-tls-cert=DIR/cert")
                .replace("TLS", "--grpc-server-use-tls")
                .replace("DIR", folder.path().to_str().expect("a plain name"));
            let arguments = std::iter::once("tollgate").chain(flags.split(' '));
            let parsed = Cli::try_parse_from(arguments).map_err(|error| error.to_string());
            let error = parsed.and_then(|parsed| parsed.api.tls()).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
