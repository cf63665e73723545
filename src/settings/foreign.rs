//! Settings of the reference that this version does not have. Ignoring one in silence would be wrong in one of two ways: what an
//! operator relies on is refused, what only saves or shows less is warned about.

/// Settings that stand for something which is not there, and what to do about it.
const REFUSED: [(&str, &str); 2] = [
    ("GRPC_SERVER_USE_TLS", "this version serves plain text only; set it to false and let a sidecar do TLS"),
    ("GRPC_UDS", "this version listens on TCP only; unset it, and set GRPC_HOST and GRPC_PORT"),
];
/// Settings without which the service works all the same.
const WARNED: [(&str, &str); 3] = [
    ("EXTRA_TAGS", "this version sends no statsd"),
    ("PROMETHEUS_MAPPER_YAML", "the metrics page has the default names"),
    ("GRPC_MAX_CONNECTION_AGE", "connections are not closed by age"),
];

/// Refuses what cannot be ignored.
///
/// # Errors
/// The first setting of that kind that is set to something, in the order of their names.
pub fn check(variables: impl IntoIterator<Item = (String, String)>) -> Result<(), String> {
    let is_off = |value: &str| crate::setting::flag(value) == Ok(false) || value.is_empty();
    let found = variables.into_iter().filter(|(_, value)| !is_off(value)).filter_map(|(name, _)| {
        let (_, reason) = REFUSED.into_iter().find(|(refused, _)| *refused == name)?;
        Some(format!("{name} is set: {reason}"))
    });
    found.min().map_or(Ok(()), Err)
}

/// A sentence for each setting that is passed over.
pub fn warnings(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let told = |name: String| {
        let (_, reason) = WARNED.into_iter().find(|(warned, _)| *warned == name)?;
        Some(format!("{name} has no effect: {reason}"))
    };
    let mut warnings: Vec<String> = names.into_iter().filter_map(told).collect();
    warnings.sort();
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn what_would_count_wrongly_is_refused_by_name() {
        let refused = check(set("GRPC_UDS", "/run/tollgate.sock")).expect_err("it is refused");
        assert!(refused.starts_with("GRPC_UDS is set: this version listens on TCP only"), "{refused}");
        assert!(check(set("GRPC_SERVER_USE_TLS", "true")).is_err());
        assert_eq!(check(set("GRPC_SERVER_USE_TLS", "false")), Ok(()));
        assert_eq!(check(set("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt")), Ok(()));
    }

    #[test]
    fn what_only_shows_less_is_warned_about() {
        let warned = warnings(["EXTRA_TAGS".to_owned(), "PATH".to_owned()]);
        assert_eq!(warned, ["EXTRA_TAGS has no effect: this version sends no statsd"]);
    }
}
