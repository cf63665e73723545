//! Resolves the settings of one Redis into its deployment: addresses, credentials, TLS.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ClientConfig;

use crate::base::environment::Environment;
use crate::base::parse::{Secret, duration};
use crate::base::time::Span;
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::credentials::{CredentialFiles, Reloadable};
use crate::store::redis::connect::parse::{self, AddressError, SENTINEL_PORT, SERVER_PORT};
use crate::store::redis::connect::tls::Tls;
use crate::store::redis::settings::server::{Auth, CONNECT_TIMEOUT_DEFAULT, Server, SocketType};
use crate::store::redis::topology::deployment::{Deployment, PoolOptions, SentinelConfig};

/// The type of a Redis that has slots. Types are in any case.
pub(crate) const CLUSTER: &str = "cluster";

/// Settings that both Redis share, and values that resolving adds.
pub(crate) struct Resolver<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) tls: Tls,
    /// Loaded once a Redis uses TLS.
    pub(crate) tls_client: Option<Reloadable<ClientConfig>>,
    pub(crate) files: CredentialFiles,
    /// A sentence for each setting without an effect, or with another one than expected.
    pub(crate) warnings: Vec<String>,
}

impl Resolver<'_> {
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Warns about a setting without an effect, if it is set.
    pub(crate) fn warn_without_effect(&mut self, name: &str, reason: &str) {
        if self.environment.is_set(name) {
            self.warn(format!("{name} has no effect: {reason}"));
        }
    }

    fn tls_client(&mut self) -> Result<Reloadable<ClientConfig>, String> {
        if let Some(client) = &self.tls_client {
            return Ok(client.clone());
        }
        let client = self.files.tls(self.tls.clone())?;
        self.tls_client = Some(client.clone());
        Ok(client)
    }
}

impl Server {
    pub(crate) fn resolve(&self, resolver: &mut Resolver<'_>) -> Result<PoolOptions, String> {
        for (name, reason) in self.role.without_effect() {
            resolver.warn_without_effect(&name, reason);
        }
        let redis_type = self.role.name("TYPE");
        let deployment = match self.redis_type.to_ascii_lowercase().as_str() {
            "single" => Deployment::Single(self.single(resolver)?),
            "sentinel" => Deployment::Sentinel(self.sentinels(resolver)?),
            CLUSTER => {
                Deployment::Cluster(self.list(SERVER_PORT, self.url()?, &self.auth, resolver)?)
            }
            _ => {
                return Err(format!(
                    "{redis_type}: Unrecognized redis type {}; expected SINGLE, SENTINEL or CLUSTER",
                    self.redis_type
                ));
            }
        };
        if !matches!(deployment, Deployment::Sentinel(_))
            && let Some(setting) = self.sentinel_auth.set()
        {
            resolver.warn(format!("{setting} has no effect: {redis_type} is not SENTINEL"));
        }
        let connect_timeout = if self.timeout > Span::ZERO {
            self.timeout
        } else {
            let default = duration(CONNECT_TIMEOUT_DEFAULT).expect("it is a duration");
            resolver.warn(format!(
                "{} is 0, which would be unbounded: using {default}",
                self.role.name("TIMEOUT")
            ));
            default
        };
        Ok(PoolOptions { deployment, connect_timeout })
    }

    fn single(&self, resolver: &mut Resolver<'_>) -> Result<Address, String> {
        let socket_type = self.role.name("SOCKET_TYPE");
        let url = self.role.name("URL");
        let address = self.address(SERVER_PORT, self.url()?, resolver)?;
        if resolver.environment.is_set(&socket_type) {
            match self.socket_type {
                SocketType::Unix if !address.is_socket() => resolver.warn(format!(
                    "{socket_type} is unix, and {url} is not a path: connecting by TCP"
                )),
                SocketType::Tcp if address.is_socket() => resolver.warn(format!(
                    "{socket_type} is tcp, and {url} is the path of a socket: connecting to the socket"
                )),
                _ => {}
            }
        }
        let tls = self.tls(&address, resolver)?;
        self.authenticated(address, &self.auth, tls, resolver)
    }

    fn sentinels(&self, resolver: &mut Resolver<'_>) -> Result<SentinelConfig, String> {
        let url = self.role.name("URL");
        let text = self.url()?.trim();
        let (master, addresses) = text.split_once(',').unwrap_or((text, ""));
        let master = master.trim();
        if addresses.trim_matches([',', ' ']).is_empty() {
            return Err(format!(
                "{url}: Expected master name and a list of urls for the sentinels, such as mymaster,host:port,host:port"
            ));
        }
        let is_valid = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
        if master.is_empty() || !master.chars().all(is_valid) {
            return Err(format!(
                "{url} does not begin with the name of a master; expected mymaster,host:port,host:port"
            ));
        }
        let sentinels = self.list(SENTINEL_PORT, addresses, &self.sentinel_auth, resolver)?;
        let tls = sentinels.first().and_then(|first| first.tls.clone());
        let server = self.authenticated(Address::unresolved(), &self.auth, tls, resolver)?;
        Ok(SentinelConfig { master: master.to_owned(), sentinels, server })
    }

    fn url(&self) -> Result<&str, String> {
        let socket_default = self.role.socket_default;
        let default = match self.socket_type {
            SocketType::Unix => Some(socket_default),
            SocketType::Tcp => self.role.url_default,
        };
        let url = self.url.as_ref().map(Secret::reveal).or(default);
        url.ok_or_else(|| {
            let prefix = self.role.prefix;
            format!("{prefix}_URL is not set; set it to host:port, or {prefix}_SOCKET_TYPE to unix for {socket_default}")
        })
    }

    /// Parses addresses with commas between them. Credentials and TLS of the first apply to all.
    fn list(
        &self,
        port_default: u16,
        text: &str,
        auth: &Auth,
        resolver: &mut Resolver<'_>,
    ) -> Result<Vec<Address>, String> {
        let url = self.role.name("URL");
        let redis_type = self.role.name("TYPE");
        // A single address may have a comma in its password; in a list it is `%2C`.
        let items: Vec<&str> = match parse::address(port_default, text) {
            Ok(_) => vec![text],
            Err(_) => {
                let items = text.split(',').map(str::trim);
                items.filter(|item| !item.is_empty()).collect()
            }
        };
        let mut addresses = Vec::new();
        for item in &items {
            addresses.push(self.address(port_default, item, resolver)?);
        }
        if addresses.iter().any(Address::is_socket) {
            return Err(format!(
                "{url} has the path of a socket, and {redis_type} is not SINGLE; expected host:port,host:port"
            ));
        }
        if addresses.iter().any(|address| address.database() != 0) {
            return Err(format!(
                "{url} has a database, and {redis_type} is not SINGLE: only database 0 exists; leave it out"
            ));
        }
        let mut addresses = addresses.into_iter();
        let first = addresses
            .next()
            .ok_or_else(|| format!("{url} has no address; expected host:port,host:port"))?;
        let others: Vec<Address> = addresses.collect();
        let is_url = |(_, item): &(&Address, &&str)| item.contains("://");
        let mut urls = others.iter().zip(&items[1..]).filter(is_url);
        let has_other_tls = |(address, _): (&Address, _)| address.is_tls() != first.is_tls();
        if urls.clone().any(has_other_tls) {
            resolver.warn(format!(
                "{url} has addresses with and without TLS: the first address decides for all"
            ));
        }
        if urls.any(|(address, _)| address.contradicts(&first)) {
            resolver.warn(format!(
                "{url} has several users or passwords: those of the first address apply to all"
            ));
        }
        let tls = self.tls(&first, resolver)?;
        let first = self.authenticated(first, auth, tls, resolver)?;
        let others = others.iter().filter_map(Address::endpoint);
        let others: Vec<Address> = others.map(|(host, port)| first.at(host, port)).collect();
        Ok(std::iter::once(first).chain(others).collect())
    }

    fn address(
        &self,
        port_default: u16,
        text: &str,
        resolver: &mut Resolver<'_>,
    ) -> Result<Address, String> {
        let url = self.role.name("URL");
        let prefix = self.role.prefix;
        let parsed = parse::address(port_default, text).map_err(|error| match error {
            AddressError::List => format!(
                "{url} {error}: set {prefix}_TYPE to CLUSTER or SENTINEL, or {url} to one host:port"
            ),
            AddressError::Unescaped | AddressError::NoScheme => {
                format!("{url} {error}, or set {prefix}_AUTH")
            }
            error => format!("{url} {error}"),
        })?;
        if let Some(warning) = parsed.warning {
            resolver.warn(format!("{url}: {warning}"));
        }
        Ok(parsed.address)
    }

    /// TLS applies to servers and sentinels alike, as in envoyproxy/ratelimit.
    fn tls(
        &self,
        address: &Address,
        resolver: &mut Resolver<'_>,
    ) -> Result<Option<Reloadable<ClientConfig>>, String> {
        let tls = self.role.name("TLS");
        let url = self.role.name("URL");
        if !address.is_tls() && !self.tls {
            return Ok(None);
        }
        if address.is_socket() {
            return Err(format!(
                "{tls}: a Unix socket has no TLS; set it to false, or {url} to host:port"
            ));
        }
        if !self.tls && resolver.environment.is_set(&tls) {
            resolver
                .warn(format!("{tls} is false, and {url} begins with rediss: connecting by TLS"));
        }
        resolver.tls_client().map(Some)
    }

    /// Adds credentials and TLS to an address.
    fn authenticated(
        &self,
        mut address: Address,
        auth: &Auth,
        tls: Option<Reloadable<ClientConfig>>,
        resolver: &mut Resolver<'_>,
    ) -> Result<Address, String> {
        address.url_setting = self.role.name("URL");
        address.auth_setting = auth.set().unwrap_or_else(|| auth.setting.clone());
        address.auth = auth.load(resolver)?;
        address.tls = tls;
        if address.has_only_user() {
            resolver.warn("Redis gets a user without a password; for a password alone use redis://:password@host:port");
        }
        Ok(address)
    }
}

impl Auth {
    fn file_setting(&self) -> String {
        format!("{}_FILE", self.setting)
    }

    /// The setting that is set.
    fn set(&self) -> Option<String> {
        let file = || self.file.as_ref().map(|_| self.file_setting());
        self.value.as_ref().map(|_| self.setting.clone()).or_else(file)
    }

    fn load(&self, resolver: &mut Resolver<'_>) -> Result<Option<Reloadable<Secret>>, String> {
        let setting = &self.setting;
        match (&self.value, &self.file) {
            (Some(_), Some(_)) => {
                Err(format!("{setting} and {} are both set; set one of them", self.file_setting()))
            }
            (Some(secret), None) => {
                if secret.reveal().ends_with('\n') {
                    resolver.warn(format!(
                        "{setting} ends with a line break, which is sent as part of the password"
                    ));
                }
                Ok(Some(Arc::new(ArcSwap::from_pointee(secret.clone()))))
            }
            (None, Some(path)) => {
                let auth = resolver.files.auth(self.file_setting(), path.clone());
                auth.map(Some)
            }
            (None, None) => Ok(None),
        }
    }
}
