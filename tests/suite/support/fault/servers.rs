//! What a service under test counts on: one Redis server, Sentinel, or a cluster.

use crate::support::cluster::ClusterProcess;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::SentinelProcess;

/// Threads of the service.
pub(crate) const WORKERS: usize = 2;

/// A deployment of Redis.
pub(crate) trait Servers {
    /// The settings of a service that uses it.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// All of its servers.
    fn all(&self) -> Vec<&RedisProcess>;

    /// The address of each server, as the service logs it.
    fn addresses(&self) -> Vec<String>;

    /// How many connections the service may have to each server: one a worker, and one each for
    /// heartbeats and discovery.
    fn connections_max(&self) -> usize {
        WORKERS + 2
    }
}

/// One server, with or without a proxy in front.
pub(crate) struct Single {
    pub(crate) redis: RedisProcess,
    proxy: Option<Proxy>,
}

impl Single {
    pub(crate) fn direct(redis: RedisProcess) -> Self {
        Self { redis, proxy: None }
    }

    pub(crate) fn proxied(redis: RedisProcess) -> Self {
        let proxy = Proxy::before(redis.port());
        Self { redis, proxy: Some(proxy) }
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("this server was started with a proxy")
    }
}

impl Servers for Single {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![(
            "REDIS_URL",
            self.proxy
                .as_ref()
                .map_or(self.redis.url(), |proxy| format!("redis://{}", proxy.addr())),
        )]
    }

    fn all(&self) -> Vec<&RedisProcess> {
        vec![&self.redis]
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.proxy.as_ref().map_or(self.redis.address(), |proxy| proxy.addr().to_string())]
    }

    fn connections_max(&self) -> usize {
        WORKERS + 1
    }
}

impl Servers for SentinelProcess {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("REDIS_TYPE", "sentinel".to_owned()), ("REDIS_URL", self.url())]
    }

    fn all(&self) -> Vec<&RedisProcess> {
        self.servers.iter().collect()
    }

    fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(RedisProcess::address).collect()
    }
}

impl Servers for ClusterProcess {
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("REDIS_TYPE", "cluster".to_owned()), ("REDIS_URL", self.url())]
    }

    fn all(&self) -> Vec<&RedisProcess> {
        (0..self.len()).map(|number| self.server(number)).collect()
    }

    fn addresses(&self) -> Vec<String> {
        (0..self.len()).map(|number| self.place(number)).collect()
    }
}
