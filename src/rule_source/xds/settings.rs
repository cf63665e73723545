//! Settings of rules by xDS: what the reference's environment says about it.

use std::time::Duration;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue};
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::backoff::{BackoffPolicy, Jitter};
use crate::proto::envoy::config::core::v3::Node;
use crate::rule_source::xds::address::Address;
use crate::rule_source::xds::connect::{Server, Tls};
use crate::rule_source::xds::options::XdsOptions;
use crate::settings::parse::{self, Given, Secret};
use crate::time::Span;
use crate::tls::{Identity, PemFile};

/// As in the reference.
const URL_DEFAULT: &str = "localhost:18000";
/// As in the reference.
const NODE_ID_DEFAULT: &str = "default";
/// The reference waits 10 s. A control plane that restarts is back sooner, and jitter keeps a fleet
/// from meeting it all at once.
const BACKOFF_INITIAL_DEFAULT: Duration = Duration::from_millis(200);
/// A control plane that is back is found within this time.
const BACKOFF_MAX_DEFAULT: Duration = Duration::from_secs(30);
/// The reference's is 0.5, with which its waits never grow.
const BACKOFF_FACTOR_DEFAULT: f64 = 2.0;
/// A shorter wait would be none.
const INTERVAL_MIN: Span = Span::from_micros(1_000);
/// gRPC's own, and what 0 means.
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
    /// The xDS server: host:port, dns:///host:port or unix:/path [default: localhost:18000]
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_URL", default_value = "", hide_default_value = true, value_name = "ADDRESS", value_parser = parse::given(Address::read))]
    pub config_grpc_xds_server_url: Given<Address>,
    /// The name by which the server knows this service [default: default]
    #[arg(long, env = "CONFIG_GRPC_XDS_NODE_ID", default_value = "", hide_default_value = true, value_name = "ID", value_parser = parse::given(parse::text))]
    pub config_grpc_xds_node_id: Given<String>,
    /// More for the server to know it by: key=value,key2=value2
    #[arg(long, env = "CONFIG_GRPC_XDS_NODE_METADATA", default_value = "", hide_default_value = true, value_name = "PAIRS", value_parser = parse::given(node_metadata))]
    pub config_grpc_xds_node_metadata: Given<Struct>,
    /// Headers to send along: name:value,name2:value2
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "PAIRS", value_parser = parse::given(Secret::read))]
    pub config_grpc_xds_client_additional_headers: Given<Secret>,
    /// Connect by TLS [default: false]
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_USE_TLS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub config_grpc_xds_server_use_tls: Given<bool>,
    /// Certificate to show to the server, a PEM file
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub config_grpc_xds_client_tls_cert: Given<String>,
    /// Its key, a PEM file
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub config_grpc_xds_client_tls_key: Given<String>,
    /// The only authority to trust, a PEM file [default: the system's authorities]
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub config_grpc_xds_server_tls_cacert: Given<String>,
    /// The name to look for in the server's certificate [default: its host]
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_SAN", default_value = "", hide_default_value = true, value_name = "NAME", value_parser = parse::given(parse::text))]
    pub config_grpc_xds_server_tls_san: Given<String>,
    /// How long to wait before the second try to reach the server [default: 200ms]
    #[arg(long, env = "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", default_value = "", hide_default_value = true, value_name = "TIME", value_parser = parse::given(interval))]
    pub xds_client_backoff_initial_interval: Given<Span>,
    /// The longest wait between two tries [default: 30s]
    #[arg(long, env = "XDS_CLIENT_BACKOFF_MAX_INTERVAL", default_value = "", hide_default_value = true, value_name = "TIME", value_parser = parse::given(interval))]
    pub xds_client_backoff_max_interval: Given<Span>,
    /// Each wait is so many times the one before; with 1 or less they do not grow [default: 2]
    #[arg(long, env = "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", default_value = "", hide_default_value = true, value_name = "NUMBER", value_parser = parse::given(factor))]
    pub xds_client_backoff_random_factor: Given<f64>,
    /// Shorten each wait by chance, by up to half of it [default: true]
    #[arg(long, env = "XDS_CLIENT_BACKOFF_JITTER", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub xds_client_backoff_jitter: Given<bool>,
    /// The longest response of the server, in bytes; 0 means 4194304 [default: 0]
    #[arg(long, env = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", default_value = "", hide_default_value = true, value_name = "BYTES", value_parser = parse::given(parse::bytes))]
    pub xds_client_max_msg_size_in_bytes: Given<u64>,
}

impl Settings {
    /// What a client needs to know.
    ///
    /// # Errors
    /// What is wrong with settings that are right one by one, and with those whose text is shown to
    /// nobody.
    pub fn options(&self) -> Result<XdsOptions, String> {
        let server = Server {
            address: match &self.config_grpc_xds_server_url.0 {
                Some(address) => address.clone(),
                None => Address::read(URL_DEFAULT).expect("the default is an address"),
            },
            tls: self.tls()?,
        };
        let id = self
            .config_grpc_xds_node_id
            .0
            .clone()
            .unwrap_or_else(|| NODE_ID_DEFAULT.to_owned());
        let bytes = self
            .xds_client_max_msg_size_in_bytes
            .0
            .filter(|bytes| *bytes > 0)
            .unwrap_or(MESSAGE_BYTES_MAX_DEFAULT);
        Ok(XdsOptions {
            server,
            node: Node {
                id,
                metadata: self.config_grpc_xds_node_metadata.0.clone(),
            },
            headers: self.headers()?,
            backoff: self.backoff(),
            message_bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX),
        })
    }

    /// Settings that are set, and have no effect.
    pub fn warnings(&self) -> Vec<String> {
        let of_tls = [
            (TLS_CERT, &self.config_grpc_xds_client_tls_cert),
            (TLS_KEY, &self.config_grpc_xds_client_tls_key),
            (TLS_CACERT, &self.config_grpc_xds_server_tls_cacert),
            (TLS_SAN, &self.config_grpc_xds_server_tls_san),
        ];
        let is_plain = self.config_grpc_xds_server_use_tls.0 != Some(true);
        let set = of_tls
            .into_iter()
            .filter(|(_, value)| is_plain && value.0.is_some());
        set.map(|(name, _)| {
            format!("{name} has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true")
        })
        .collect()
    }

    fn tls(&self) -> Result<Option<Tls>, String> {
        if self.config_grpc_xds_server_use_tls.0 != Some(true) {
            return Ok(None);
        }
        let identity = match (
            &self.config_grpc_xds_client_tls_cert.0,
            &self.config_grpc_xds_client_tls_key.0,
        ) {
            (Some(cert), Some(key)) => Some(Identity {
                cert: PemFile::new(TLS_CERT, cert),
                key: PemFile::new(TLS_KEY, key),
            }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(format!(
                    "{TLS_CERT} is set and {TLS_KEY} is not; set both, or neither"
                ));
            }
            (None, Some(_)) => {
                return Err(format!(
                    "{TLS_KEY} is set and {TLS_CERT} is not; set both, or neither"
                ));
            }
        };
        let authority = self
            .config_grpc_xds_server_tls_cacert
            .0
            .as_ref()
            .map(|path| PemFile::new(TLS_CACERT, path));
        Ok(Some(Tls {
            authority,
            identity,
            name: self.config_grpc_xds_server_tls_san.0.clone(),
        }))
    }

    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        let Some(secret) = &self.config_grpc_xds_client_additional_headers.0 else {
            return Ok(headers);
        };
        // What they say is not shown, so the place has to do.
        for (index, pair) in secret.reveal().split(',').enumerate() {
            let read = || {
                let (name, value) = pair.split_once(':')?;
                let name = HeaderName::from_bytes(name.trim().as_bytes())
                    .ok()
                    .filter(|name| !name.as_str().ends_with("-bin"))?;
                Some((
                    name,
                    HeaderValue::from_str(value.trim())
                        .ok()
                        .filter(|value| value.to_str().is_ok())?,
                ))
            };
            let wanted = "write name:value,name2:value2, in visible ASCII characters; no name may end with -bin";
            let (name, mut value) = read().ok_or_else(|| {
                format!(
                    "{HEADERS}: number {} of the pairs is no header; {wanted}",
                    index + 1
                )
            })?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(headers)
    }

    fn backoff(&self) -> BackoffPolicy {
        let initial = self
            .xds_client_backoff_initial_interval
            .0
            .map_or(BACKOFF_INITIAL_DEFAULT, Duration::from);
        let max = self
            .xds_client_backoff_max_interval
            .0
            .map_or(BACKOFF_MAX_DEFAULT, Duration::from);
        BackoffPolicy {
            initial,
            max: max.max(initial),
            factor: self
                .xds_client_backoff_random_factor
                .0
                .unwrap_or(BACKOFF_FACTOR_DEFAULT),
            jitter: if self.xds_client_backoff_jitter.0 == Some(false) {
                Jitter::None
            } else {
                Jitter::Half
            },
        }
    }
}

fn node_metadata(text: &str) -> Result<Struct, String> {
    let pair = |pair: &str| {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("{pair} is no pair; write key=value,key2=value2"))?;
        Ok((
            key.trim().to_owned(),
            Value {
                kind: Some(Kind::StringValue(value.trim().to_owned())),
            },
        ))
    };
    Ok(Struct {
        fields: text.split(',').map(pair).collect::<Result<_, String>>()?,
    })
}

fn interval(text: &str) -> Result<Span, String> {
    parse::duration(text).and_then(|span| {
        if span < INTERVAL_MIN {
            Err("write a time from 1ms".to_owned())
        } else {
            Ok(span)
        }
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

    fn backoff(environment: &[(&str, &str)]) -> BackoffPolicy {
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
        let default = BackoffPolicy {
            initial: Duration::from_millis(200),
            max: Duration::from_secs(30),
            factor: 2.0,
            jitter: Jitter::Half,
        };
        assert_eq!(backoff(&[]), default);
        let all = [
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "400ms"),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "1.5"),
            ("XDS_CLIENT_BACKOFF_JITTER", "false"),
        ];
        let expected = BackoffPolicy {
            initial: Duration::from_millis(100),
            max: Duration::from_millis(400),
            factor: 1.5,
            jitter: Jitter::None,
        };
        assert_eq!(backoff(&all), expected);
        let longer = backoff(&[("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1min")]);
        assert_eq!(
            longer.max, longer.initial,
            "the longest wait is no shorter than the first"
        );
    }
}
