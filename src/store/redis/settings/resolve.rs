//! Resolves the settings of one Redis into its deployment: addresses, credentials, TLS.

use crate::settings::environment::Environment;
use crate::settings::parse::Secret;
use crate::store::redis::connect::address::{Address, AddressSettings};
use crate::store::redis::connect::credentials::{AuthFile, CredentialFiles, Reloadable};
use crate::store::redis::connect::parse::{self, AddressError, ServerKind};
use crate::store::redis::connect::tls::{Tls, TlsClient};
use crate::store::redis::settings::server::{Names, ServerValues, SocketType};
use crate::store::redis::topology::deployment::{Deployment, PoolOptions, SentinelConfig};
use crate::time::Span;

/// What both Redis share, and what resolving adds to it.
pub(crate) struct Resolver<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) tls: Tls,
    /// Loaded once a Redis uses TLS.
    pub(crate) tls_client: Option<Reloadable<TlsClient>>,
    pub(crate) files: CredentialFiles,
    /// A sentence for each setting without an effect, or with another one than expected.
    pub(crate) warnings: Vec<String>,
}

/// Credentials as a value or in a file.
struct Credentials<'a> {
    value: Option<&'a Secret>,
    value_setting: &'static str,
    file: Option<&'a str>,
    file_setting: &'static str,
}

impl Resolver<'_> {
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Warns about those of these settings that are set.
    pub(crate) fn warn_without_effect(&mut self, settings: &[(&str, &str)]) {
        for (name, reason) in settings {
            if self.environment.is_set(name) {
                self.warn(format!("{name} has no effect: {reason}"));
            }
        }
    }

    fn tls_client(&mut self) -> Result<Reloadable<TlsClient>, String> {
        if let Some(client) = &self.tls_client {
            return Ok(client.clone());
        }
        let client = self.files.tls(self.tls.clone());
        let client = client.map_err(|error| error.to_string())?;
        self.tls_client = Some(client.clone());
        Ok(client)
    }
}

impl ServerValues {
    pub(crate) fn resolve(&self, resolver: &mut Resolver<'_>) -> Result<PoolOptions, String> {
        let Names {
            redis_type,
            timeout,
            ..
        } = self.names;
        resolver.warn_without_effect(&self.names.without_effect);
        let kind = self.redis_type.to_ascii_lowercase();
        let deployment = match kind.as_str() {
            "single" => Deployment::Single(self.single(resolver)?),
            "sentinel" => Deployment::Sentinel(self.sentinels(resolver)?),
            "cluster" => Deployment::Cluster(self.cluster(resolver)?),
            _ => {
                return Err(format!(
                    "{redis_type}: Unrecognized redis type {}; expected SINGLE, SENTINEL or CLUSTER",
                    self.redis_type
                ));
            }
        };
        if kind != "sentinel"
            && let Some(setting) = self.sentinel_credentials().set()
        {
            resolver.warn(format!(
                "{setting} has no effect: {redis_type} is not SENTINEL"
            ));
        }
        let connect_timeout = if self.timeout > Span::ZERO {
            self.timeout
        } else {
            let default = ServerValues::timeout_default();
            resolver.warn(format!(
                "{timeout} is 0, which would be unbounded: using {default}"
            ));
            default
        };
        Ok(PoolOptions {
            deployment,
            connect_timeout,
        })
    }

    fn single(&self, resolver: &mut Resolver<'_>) -> Result<Address, String> {
        let Names {
            socket_type, url, ..
        } = self.names;
        let address = self.address(ServerKind::Server, self.url()?, resolver)?;
        if resolver.environment.is_set(socket_type) {
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
        self.authenticated(address, &self.credentials(), tls, resolver)
    }

    fn sentinels(&self, resolver: &mut Resolver<'_>) -> Result<SentinelConfig, String> {
        let url = self.names.url;
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
        let (first, others) = self.list(ServerKind::Sentinel, addresses, resolver)?;
        let tls = self.tls(&first, resolver)?;
        let sentinel = self.sentinel_credentials();
        let first = self.authenticated(first, &sentinel, tls.clone(), resolver)?;
        let server = Address::unresolved();
        let server = self.authenticated(server, &self.credentials(), tls, resolver)?;
        Ok(SentinelConfig {
            master: master.to_owned(),
            sentinels: all_like(first, &others),
            server,
        })
    }

    fn cluster(&self, resolver: &mut Resolver<'_>) -> Result<Vec<Address>, String> {
        let (first, others) = self.list(ServerKind::Server, self.url()?, resolver)?;
        let tls = self.tls(&first, resolver)?;
        let first = self.authenticated(first, &self.credentials(), tls, resolver)?;
        Ok(all_like(first, &others))
    }

    fn url(&self) -> Result<&str, String> {
        let Names {
            url,
            socket_type,
            socket_default,
            ..
        } = self.names;
        let default = match self.socket_type {
            SocketType::Unix => Some(*socket_default),
            SocketType::Tcp => self.names.url_default,
        };
        self.url
            .as_ref()
            .map(Secret::reveal)
            .or(default)
            .ok_or_else(|| {
                format!("{url} is not set; set it to host:port, or {socket_type} to unix for {socket_default}")
            })
    }

    /// Parses addresses with commas between them: the first, whose credentials and TLS apply to
    /// all, and the others.
    fn list(
        &self,
        kind: ServerKind,
        text: &str,
        resolver: &mut Resolver<'_>,
    ) -> Result<(Address, Vec<Address>), String> {
        let Names {
            url, redis_type, ..
        } = self.names;
        // A single address may have a comma in its password; in a list it is `%2C`.
        let items: Vec<&str> = match parse::address(kind, text) {
            Ok(_) => vec![text],
            Err(_) => {
                let items = text.split(',').map(str::trim);
                items.filter(|item| !item.is_empty()).collect()
            }
        };
        let mut addresses = Vec::new();
        for item in &items {
            addresses.push(self.address(kind, item, resolver)?);
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
        let urls = others.iter().zip(&items[1..]);
        let mut urls = urls
            .filter(|(_, item)| item.contains("://"))
            .map(|(address, _)| address);
        if urls
            .clone()
            .any(|address| address.is_tls() != first.is_tls())
        {
            resolver.warn(format!(
                "{url} has addresses with and without TLS: the first address decides for all"
            ));
        }
        if urls.any(|address| address.contradicts(&first)) {
            resolver.warn(format!(
                "{url} has several users or passwords: those of the first address apply to all"
            ));
        }
        Ok((first, others))
    }

    fn address(
        &self,
        kind: ServerKind,
        text: &str,
        resolver: &mut Resolver<'_>,
    ) -> Result<Address, String> {
        let Names {
            url,
            redis_type,
            auth,
            ..
        } = self.names;
        let parsed = parse::address(kind, text).map_err(|error| match error {
            AddressError::List => {
                format!("{url} {error}: set {redis_type} to CLUSTER or SENTINEL, or {url} to one host:port")
            }
            AddressError::Unescaped | AddressError::NoScheme => {
                format!("{url} {error}, or set {auth}")
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
    ) -> Result<Option<Reloadable<TlsClient>>, String> {
        let Names { tls, url, .. } = self.names;
        if !address.is_tls() && !self.tls {
            return Ok(None);
        }
        if address.is_socket() {
            return Err(format!(
                "{tls}: a Unix socket has no TLS; set it to false, or {url} to host:port"
            ));
        }
        if !self.tls && resolver.environment.is_set(tls) {
            resolver.warn(format!(
                "{tls} is false, and {url} begins with rediss: connecting by TLS"
            ));
        }
        resolver.tls_client().map(Some)
    }

    fn credentials(&self) -> Credentials<'_> {
        Credentials {
            value: self.auth.as_ref(),
            value_setting: self.names.auth,
            file: self.auth_file.as_deref(),
            file_setting: self.names.auth_file,
        }
    }

    fn sentinel_credentials(&self) -> Credentials<'_> {
        Credentials {
            value: self.sentinel_auth.as_ref(),
            value_setting: self.names.sentinel_auth,
            file: self.sentinel_auth_file.as_deref(),
            file_setting: self.names.sentinel_auth_file,
        }
    }

    /// Adds credentials and TLS to an address.
    fn authenticated(
        &self,
        address: Address,
        credentials: &Credentials<'_>,
        tls: Option<Reloadable<TlsClient>>,
        resolver: &mut Resolver<'_>,
    ) -> Result<Address, String> {
        let mut address = address.with_settings(AddressSettings {
            url: self.names.url,
            auth: credentials.set().unwrap_or(credentials.value_setting),
        });
        if let Some(auth) = credentials.load(resolver)? {
            address = address.with_credentials(auth);
        }
        if let Some(tls) = tls {
            address = address.with_tls(tls);
        }
        if address.has_only_user() {
            resolver.warn("Redis gets a user without a password; for a password alone use redis://:password@host:port");
        }
        Ok(address)
    }
}

impl Credentials<'_> {
    /// The setting that is set.
    fn set(&self) -> Option<&'static str> {
        let file = self.file.map(|_| self.file_setting);
        self.value.map(|_| self.value_setting).or(file)
    }

    fn load(&self, resolver: &mut Resolver<'_>) -> Result<Option<Reloadable<Secret>>, String> {
        match (self.value, self.file) {
            (Some(_), Some(_)) => Err(format!(
                "{} and {} are both set; set one of them",
                self.value_setting, self.file_setting
            )),
            (Some(secret), None) => {
                if secret.reveal().ends_with('\n') {
                    resolver.warn(format!(
                        "{} ends with a line break, which is sent as part of the password",
                        self.value_setting
                    ));
                }
                Ok(Some(Reloadable::new(secret.clone())))
            }
            (None, Some(path)) => {
                let file = AuthFile::new(self.file_setting, path);
                let auth = resolver.files.auth(file);
                auth.map(Some).map_err(|error| error.to_string())
            }
            (None, None) => Ok(None),
        }
    }
}

/// The first address, and others with its credentials and TLS.
fn all_like(first: Address, others: &[Address]) -> Vec<Address> {
    let others = others.iter().filter_map(Address::endpoint);
    let others: Vec<Address> = others.map(|(host, port)| first.at(host, port)).collect();
    std::iter::once(first).chain(others).collect()
}
