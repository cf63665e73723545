//! Settings of Envoy's door.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

use clap::Args;
use rustls::pki_types::ServerName;

use crate::api::certificates::{Clients, Files};
use crate::api::connection::ConnectionLimits;
use crate::api::listener::GrpcBind;
use crate::settings::parse::{self, Given};
use crate::time::Span;
use crate::tls::{Identity, PemFile};

/// Unless WORKERS says otherwise: counting is cheap, and a node has other things to do.
const WORKERS_MAX: usize = 8;
const HTTP_PORT_DEFAULT: u16 = 8_080;
const GRPC_PORT_DEFAULT: u16 = 8_081;
const DRAIN_PERIOD_DEFAULT: Span = Span::from_secs(5);
const SHUTDOWN_TIMEOUT_DEFAULT: Span = Span::from_secs(25);
/// As in the reference. A connection that ends now and then lets Envoys find replicas that came
/// later.
const MAX_CONNECTION_AGE_DEFAULT: Span = Span::from_secs(24 * 3_600);
const MAX_CONNECTION_AGE_GRACE_DEFAULT: Span = Span::from_secs(3_600);

/// Listeners for Envoy.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Doors")]
pub struct Settings {
    /// Address of /json, /healthcheck and /ready; :: is every one of IPv6 and IPv4
    #[arg(long, env = "HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub host: String,
    /// Port of the same [default: 8080]
    #[arg(long, env = "PORT", default_value = "", hide_default_value = true, value_name = "PORT", value_parser = parse::given(parse::port))]
    pub port: Given<u16>,
    /// Address of gRPC; :: is every one of IPv6 and IPv4
    #[arg(
        long,
        env = "GRPC_HOST",
        default_value = "0.0.0.0",
        value_name = "HOST"
    )]
    pub grpc_host: String,
    /// Port of gRPC [default: 8081]
    #[arg(long, env = "GRPC_PORT", default_value = "", hide_default_value = true, value_name = "PORT", value_parser = parse::given(parse::port))]
    pub grpc_port: Given<u16>,
    /// Serve gRPC on a Unix socket instead, at this path
    #[arg(
        long,
        env = "GRPC_UDS",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub grpc_uds: String,
    /// Tell gRPC clients to connect anew after so long, give or take a tenth; 0 for never
    /// [default: 24h]
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(parse::duration))]
    pub grpc_max_connection_age: Given<Span>,
    /// After that: how long calls in flight may take until they are cut off; 0 for as long as they
    /// like [default: 1h]
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(parse::duration))]
    pub grpc_max_connection_age_grace: Given<Span>,
    /// Serve gRPC by TLS, and nothing else
    #[arg(long, env = "GRPC_SERVER_USE_TLS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub grpc_server_use_tls: Given<bool>,
    /// The certificate of gRPC, with those that lead to its authority, in PEM; it is read again
    /// when it changes
    #[arg(
        long,
        env = "GRPC_SERVER_TLS_CERT",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub grpc_server_tls_cert: String,
    /// Its key, in PEM
    #[arg(
        long,
        env = "GRPC_SERVER_TLS_KEY",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub grpc_server_tls_key: String,
    /// Let in only clients with a certificate of this authority (PEM); no other is trusted
    #[arg(
        long,
        env = "GRPC_CLIENT_TLS_CACERT",
        default_value = "",
        hide_default_value = true,
        value_name = "FILE"
    )]
    pub grpc_client_tls_cacert: String,
    /// And only if it is for this DNS name
    #[arg(
        long,
        env = "GRPC_CLIENT_TLS_SAN",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    pub grpc_client_tls_san: String,
    /// Threads that serve [default: the cores, at most 8]
    #[arg(long, env = "WORKERS", default_value = "", hide_default_value = true, value_name = "THREADS", value_parser = parse::given(threads))]
    pub workers: Given<NonZeroUsize>,
    /// On SIGTERM: how long to go on answering while health says no [default: 5s]
    #[arg(long, env = "DRAIN_PERIOD", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(parse::duration))]
    pub drain_period: Given<Span>,
    /// After that: how long to wait for calls in flight [default: 25s]
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(parse::duration))]
    pub shutdown_timeout: Given<Span>,
}

impl Settings {
    /// How many threads serve.
    pub fn workers(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.workers
            .0
            .map_or(cores.min(WORKERS_MAX), NonZeroUsize::get)
    }

    /// Where to serve HTTP.
    pub fn http(&self) -> (&str, u16) {
        (&self.host, self.port.0.unwrap_or(HTTP_PORT_DEFAULT))
    }

    /// Where to serve gRPC.
    pub(crate) fn grpc(&self) -> GrpcBind<'_> {
        if self.grpc_uds.is_empty() {
            GrpcBind::Port(
                &self.grpc_host,
                self.grpc_port.0.unwrap_or(GRPC_PORT_DEFAULT),
            )
        } else {
            GrpcBind::Path(Path::new(&self.grpc_uds))
        }
    }

    /// When gRPC connections end.
    pub fn connection_limits(&self) -> ConnectionLimits {
        let unless_zero = |given: Given<Span>, default| {
            Some(given.0.unwrap_or(default)).filter(|span| *span > Span::ZERO)
        };
        ConnectionLimits {
            max_age: unless_zero(self.grpc_max_connection_age, MAX_CONNECTION_AGE_DEFAULT),
            grace: unless_zero(
                self.grpc_max_connection_age_grace,
                MAX_CONNECTION_AGE_GRACE_DEFAULT,
            ),
        }
    }

    /// How long to go on answering while health says no.
    pub fn drain_period(&self) -> Span {
        self.drain_period.0.unwrap_or(DRAIN_PERIOD_DEFAULT)
    }

    /// How long to wait for calls in flight after that.
    pub fn shutdown_timeout(&self) -> Span {
        self.shutdown_timeout.0.unwrap_or(SHUTDOWN_TIMEOUT_DEFAULT)
    }

    /// What gRPC's TLS is made of; `None` for plain text.
    ///
    /// # Errors
    /// Settings that do not go together, or files that cannot be used.
    pub(crate) fn tls(&self) -> Result<Option<Files>, String> {
        if self.grpc_server_use_tls.0 != Some(true) {
            // What an operator takes for a lock must not stand open.
            let asked = [
                ("GRPC_CLIENT_TLS_CACERT", &self.grpc_client_tls_cacert),
                ("GRPC_CLIENT_TLS_SAN", &self.grpc_client_tls_san),
            ];
            return match asked.into_iter().find(|(_, value)| !value.is_empty()) {
                Some((name, _)) => Err(format!(
                    "{name} is set, and gRPC is served in plain text to everybody; set GRPC_SERVER_USE_TLS to true, or unset {name}"
                )),
                None => Ok(None),
            };
        }
        let file = |setting, path: &str| {
            if path.is_empty() {
                return Err(format!(
                    "GRPC_SERVER_USE_TLS is true, and {setting} is not set; write the path of a file in PEM into it"
                ));
            }
            Ok(PemFile::new(setting, path))
        };
        let identity = Identity {
            cert: file("GRPC_SERVER_TLS_CERT", &self.grpc_server_tls_cert)?,
            key: file("GRPC_SERVER_TLS_KEY", &self.grpc_server_tls_key)?,
        };
        let files = Files {
            identity,
            clients: self.clients()?,
        };
        files.check().map_err(|error| error.to_string())?;
        Ok(Some(files))
    }

    /// What is accepted, and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        let is_plain = self.grpc_server_use_tls.0 != Some(true);
        let unused = is_plain
            && !(self.grpc_server_tls_cert.is_empty() && self.grpc_server_tls_key.is_empty());
        let warning = "GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY have no effect: gRPC is served in plain text unless GRPC_SERVER_USE_TLS is true";
        unused.then(|| warning.to_owned()).into_iter().collect()
    }

    fn clients(&self) -> Result<Option<Clients>, String> {
        let name = match &*self.grpc_client_tls_san {
            "" => None,
            name => Some(
                ServerName::try_from(name.to_owned())
                    .map_err(|_| format!("GRPC_CLIENT_TLS_SAN is {name}, which is no DNS name; write one such as envoy.example.com"))?,
            ),
        };
        match (&*self.grpc_client_tls_cacert, name) {
            ("", None) => Ok(None),
            ("", Some(_)) => Err("GRPC_CLIENT_TLS_SAN is set without GRPC_CLIENT_TLS_CACERT, so that no client would be asked for a \
                certificate; write the file of the clients' authority into GRPC_CLIENT_TLS_CACERT, or unset GRPC_CLIENT_TLS_SAN"
                .to_owned()),
            (path, name) => Ok(Some(Clients { ca: PemFile::new("GRPC_CLIENT_TLS_CACERT", path), name })),
        }
    }
}

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|error| format!("{error}; write a number of threads from 1"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        api: Settings,
    }

    fn settings(arguments: &[&str]) -> Settings {
        Cli::try_parse_from([&["tollgate"], arguments].concat())
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
            .api
    }

    #[test]
    fn what_is_set_to_nothing_is_as_if_it_were_not_set() {
        let to_nothing = [
            "--port=",
            "--grpc-port=",
            "--grpc-uds=",
            "--grpc-max-connection-age=",
            "--grpc-max-connection-age-grace=",
            "--grpc-server-use-tls=",
            "--grpc-client-tls-cacert=",
            "--grpc-client-tls-san=",
            "--workers=",
            "--drain-period=",
            "--shutdown-timeout=",
        ];
        for settings in [settings(&[]), settings(&to_nothing)] {
            assert_eq!(settings.http(), ("0.0.0.0", 8_080));
            assert_eq!(settings.grpc(), GrpcBind::Port("0.0.0.0", 8_081));
            assert_eq!(
                settings.connection_limits(),
                ConnectionLimits {
                    max_age: Some(Span::from_secs(86_400)),
                    grace: Some(Span::from_secs(3_600))
                }
            );
            assert_eq!(settings.tls(), Ok(None));
            assert_eq!(
                (settings.drain_period(), settings.shutdown_timeout()),
                (Span::from_secs(5), Span::from_secs(25))
            );
            assert!((1..=WORKERS_MAX).contains(&settings.workers()));
        }
    }

    #[test]
    fn zero_is_never() {
        let settings = settings(&[
            "--grpc-max-connection-age=0",
            "--grpc-max-connection-age-grace=0",
        ]);
        assert_eq!(
            settings.connection_limits(),
            ConnectionLimits {
                max_age: None,
                grace: None
            }
        );
    }
}
