//! Settings of envoyproxy/ratelimit and of earlier versions that have no effect here; setting one
//! is a warning.

use crate::base::removed;

/// Names, and why they have no effect.
const WARNED: [(&str, &str); 12] = [
    ("GOSTATS_FLUSH_INTERVAL_SECONDS", "STATS_FLUSH_INTERVAL sets the interval"),
    ("GOSTATS_LOGGING_SINK_DISABLED", "metrics are never logged"),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "XDS_CLIENT_BACKOFF_* set the waits; it has no effect in envoyproxy/ratelimit either",
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
    "memcached cannot count exactly and is not supported; use Redis or the memory store";

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    WARNED.into_iter().map(|(name, _)| name).chain(removed::settings())
}

/// A sentence for each that is set, in the order of the variables.
pub(crate) fn warnings(variables: &[(String, String)]) -> Vec<String> {
    let set = variables.iter().filter(|(_, value)| !value.is_empty());
    let reason = |name: &str| {
        let warned = WARNED.into_iter().find(|(warned, _)| *warned == name);
        warned.map(|(_, reason)| reason).or_else(|| removed::replacement(name))
    };
    set.filter_map(|(name, _)| Some(format!("{name} has no effect: {}", reason(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_settings_are_warned_about_unless_empty() {
        let set = [("MEMCACHE_TLS", "true"), ("PATH", "/bin"), ("MEMCACHE_SRV", "")];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(warnings(&set), [format!("MEMCACHE_TLS has no effect: {NO_MEMCACHED}")]);
    }
}
