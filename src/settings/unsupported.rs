//! Settings of the reference that this version does not have, and without which it works all the
//! same: they are warned about.

/// Settings without which the service works all the same.
const WARNED: [(&str, &str); 12] = [
    (
        "GOSTATS_FLUSH_INTERVAL_SECONDS",
        "STATS_FLUSH_INTERVAL says how often statsd is sent to",
    ),
    ("GOSTATS_LOGGING_SINK_DISABLED", "metrics are never logged"),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "XDS_CLIENT_BACKOFF_* say when to connect again; it has none in the reference, too",
    ),
    ("MEMCACHE_HOST_PORT", NO_MEMCACHED),
    ("MEMCACHE_MAX_IDLE_CONNS", NO_MEMCACHED),
    ("MEMCACHE_SRV", NO_MEMCACHED),
    ("MEMCACHE_SRV_REFRESH", NO_MEMCACHED),
    ("MEMCACHE_TLS", NO_MEMCACHED),
    ("MEMCACHE_TLS_CLIENT_CERT", NO_MEMCACHED),
    ("MEMCACHE_TLS_CLIENT_KEY", NO_MEMCACHED),
    ("MEMCACHE_TLS_CACERT", NO_MEMCACHED),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", NO_MEMCACHED),
];
const NO_MEMCACHED: &str =
    "memcached cannot count exactly, and is not supported; counts are on Redis, or in memory";

/// The names of all of these.
pub fn names() -> impl Iterator<Item = &'static str> {
    WARNED.into_iter().map(|(name, _)| name)
}

/// A sentence for each setting that is passed over, in the order of the variables.
pub fn warnings(variables: &[(String, String)]) -> Vec<String> {
    let set = variables.iter().filter(|(_, value)| !value.is_empty());
    let told = set.filter_map(|(name, _)| WARNED.into_iter().find(|(warned, _)| warned == name));
    told.map(|(name, reason)| format!("{name} has no effect: {reason}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_shows_less_is_warned_about() {
        let set = [
            ("MEMCACHE_TLS", "true"),
            ("PATH", "/bin"),
            ("MEMCACHE_SRV", ""),
        ];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(
            warnings(&set),
            [format!("MEMCACHE_TLS has no effect: {NO_MEMCACHED}")]
        );
    }
}
