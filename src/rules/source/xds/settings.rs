//! Settings of rules by xDS, as envoyproxy/ratelimit has them.

use std::time::Duration;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue};
use prost_types::Struct;

use crate::base::backoff::Backoff;
use crate::base::environment::Environment;
use crate::base::net::remote::Server;
use crate::base::net::remote::address::Address;
use crate::base::net::tls::{ClientTls, Identity, PemFile};
use crate::base::parse::{self, Secret};
use crate::base::proto::envoy::config::core::v3::Node;
use crate::base::time::Span;
use crate::rules::source::xds::stream::XdsOptions;

/// A shorter wait would not be one.
const INTERVAL_MIN: Span = Span::from_micros(1_000);
/// Bytes of a response of the control plane: gRPC's own limit, and the meaning of 0.
// bound XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES: rejected, the previous rules stay;
// tollgate_rules_rejected
const MESSAGE_BYTES_MAX_DEFAULT: u64 = 4 << 20;

const HEADERS: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
const TLS_CERT: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
const TLS_KEY: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY";
const TLS_CACERT: &str = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT";
const TLS_SAN: &str = "CONFIG_GRPC_XDS_SERVER_TLS_SAN";

/// Rules by xDS.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Rules by xDS")]
pub struct Settings {
    /// The xDS server: host:port, dns:///host:port or unix:/path
    #[arg(long, env, default_value = "localhost:18000", value_name = "ADDRESS", value_parser = Address::read)]
    pub config_grpc_xds_server_url: Address,
    /// Node id of this service
    #[arg(long, env, default_value = "default", value_name = "ID")]
    pub config_grpc_xds_node_id: String,
    /// Node metadata of this service: key=value,key2=value2
    #[arg(long, env, value_name = "PAIRS", value_parser = node_metadata)]
    pub config_grpc_xds_node_metadata: Option<Struct>,
    /// Headers of requests: name:value,name2:value2
    #[arg(long, env, hide_env_values = true, value_name = "PAIRS", value_parser = Secret::read)]
    pub config_grpc_xds_client_additional_headers: Option<Secret>,
    /// Connect with TLS
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub config_grpc_xds_server_use_tls: bool,
    /// Client certificate (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub config_grpc_xds_client_tls_cert: Option<String>,
    /// Private key of the client certificate (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub config_grpc_xds_client_tls_key: Option<String>,
    /// The only authority to trust (PEM) [default: the system's authorities]
    #[arg(long, env, value_name = "FILE")]
    pub config_grpc_xds_server_tls_cacert: Option<String>,
    /// Name to expect in the server's certificate [default: its host]
    #[arg(long, env, value_name = "NAME")]
    pub config_grpc_xds_server_tls_san: Option<String>,
    // envoyproxy/ratelimit waits 10 s. A restarting control plane is back sooner, and jitter keeps
    // a fleet from reconnecting at once.
    /// First wait before reconnecting
    #[arg(long, env, default_value = "200ms", value_name = "TIME", value_parser = interval)]
    pub xds_client_backoff_initial_interval: Span,
    /// Longest wait before reconnecting
    // bound XDS_CLIENT_BACKOFF_MAX_INTERVAL: tried again; tollgate_xds_connected
    #[arg(long, env, default_value = "30s", value_name = "TIME", value_parser = interval)]
    pub xds_client_backoff_max_interval: Span,
    // envoyproxy/ratelimit has 0.5, with which waits never grow.
    /// Factor by which waits grow; with 1 or less they do not
    #[arg(long, env, default_value = "2", value_name = "NUMBER", value_parser = factor)]
    pub xds_client_backoff_random_factor: f64,
    /// Shorten each wait at random by up to half
    #[arg(long, env, default_value = "true", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub xds_client_backoff_jitter: bool,
    /// Maximum size of a response in bytes; 0 means 4194304
    #[arg(long, env, default_value = "0", value_name = "BYTES", value_parser = parse::bytes)]
    pub xds_client_max_msg_size_in_bytes: u64,
}

impl Settings {
    /// The options of the client.
    ///
    /// # Errors
    /// Settings that contradict each other, and invalid headers.
    pub(crate) fn options(&self) -> Result<XdsOptions, String> {
        let bytes = match self.xds_client_max_msg_size_in_bytes {
            0 => MESSAGE_BYTES_MAX_DEFAULT,
            bytes => bytes,
        };
        Ok(XdsOptions {
            server: Server { address: self.config_grpc_xds_server_url.clone(), tls: self.tls()? },
            node: Node {
                id: self.config_grpc_xds_node_id.clone(),
                metadata: self.config_grpc_xds_node_metadata.clone(),
            },
            headers: self.headers()?,
            backoff: self.backoff(),
            message_bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX),
        })
    }

    /// Settings that are set and have no effect.
    pub(crate) fn warnings(&self, environment: &Environment) -> Vec<String> {
        let unused = [TLS_CERT, TLS_KEY, TLS_CACERT, TLS_SAN]
            .into_iter()
            .filter(|name| !self.config_grpc_xds_server_use_tls && environment.is_set(name));
        unused
            .map(|name| format!("{name} has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true"))
            .collect()
    }

    fn tls(&self) -> Result<Option<ClientTls>, String> {
        if !self.config_grpc_xds_server_use_tls {
            return Ok(None);
        }
        let identity = Identity::of_settings(
            (TLS_CERT, self.config_grpc_xds_client_tls_cert.as_deref()),
            (TLS_KEY, self.config_grpc_xds_client_tls_key.as_deref()),
        )?;
        let authority = self.config_grpc_xds_server_tls_cacert.as_ref();
        Ok(Some(ClientTls {
            authority: authority.map(|path| PemFile::new(TLS_CACERT, path)),
            identity,
            name: self.config_grpc_xds_server_tls_san.clone(),
        }))
    }

    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        let Some(secret) = &self.config_grpc_xds_client_additional_headers else {
            return Ok(headers);
        };
        // Values are secret: an error names the position only.
        for (index, pair) in secret.reveal().split(',').enumerate() {
            let read = || {
                let (name, value) = pair.split_once(':')?;
                let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
                let value = HeaderValue::from_str(value.trim()).ok()?;
                let is_text = !name.as_str().ends_with("-bin") && value.to_str().is_ok();
                is_text.then_some((name, value))
            };
            let wanted = "write name:value,name2:value2, in visible ASCII characters; no name may end with -bin";
            let (name, mut value) = read().ok_or_else(|| {
                format!("{HEADERS}: pair {} is not a header; {wanted}", index + 1)
            })?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(headers)
    }

    fn backoff(&self) -> Backoff {
        let initial = Duration::from(self.xds_client_backoff_initial_interval);
        let max = Duration::from(self.xds_client_backoff_max_interval);
        let jitter = if self.xds_client_backoff_jitter { 0.5 } else { 0.0 };
        Backoff::new(initial, max.max(initial), self.xds_client_backoff_random_factor, jitter)
    }
}

fn node_metadata(text: &str) -> Result<Struct, String> {
    let pair = |pair: &str| {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("{pair} is not a pair; write key=value,key2=value2"))?;
        Ok((key.trim().to_owned(), value.trim().to_owned().into()))
    };
    Ok(Struct { fields: text.split(',').map(pair).collect::<Result<_, String>>()? })
}

fn interval(text: &str) -> Result<Span, String> {
    parse::duration(text).and_then(|span| {
        if span < INTERVAL_MIN { Err("write a time from 1ms".to_owned()) } else { Ok(span) }
    })
}

fn factor(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|factor: &f64| factor.is_finite() && *factor >= 0.0)
        .ok_or_else(|| "write a number, such as 2".to_owned())
}

#[cfg(test)]
mod tests {
    use std::iter;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        xds: Settings,
    }

    fn backoff(environment: &[(&str, &str)]) -> Backoff {
        let flag = |(name, value): &(&str, &str)| {
            format!("--{}={value}", name.to_lowercase().replace('_', "-"))
        };
        let arguments = iter::once("tollgate".to_owned()).chain(environment.iter().map(flag));
        Cli::try_parse_from(arguments)
            .unwrap_or_else(|error| panic!("{environment:?}: {error}"))
            .xds
            .backoff()
    }

    #[test]
    fn settings_choose_the_backoff() {
        let ms = Duration::from_millis(1);
        let second = Duration::from_secs(1);
        assert_eq!(backoff(&[]), Backoff::new(200 * ms, 30 * second, 2.0, 0.5));
        let all = [
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "400ms"),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "1.5"),
            ("XDS_CLIENT_BACKOFF_JITTER", "false"),
        ];
        assert_eq!(backoff(&all), Backoff::new(100 * ms, 400 * ms, 1.5, 0.0));
        // The longest wait is no shorter than the first.
        let longer = backoff(&[("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1min")]);
        assert_eq!(longer, Backoff::new(60 * second, 60 * second, 2.0, 0.5));
    }
}
