//! Variables whose names resemble a setting: a misspelled setting is a warning.

/// Envoy Gateway sets it in every deployment. envoyproxy/ratelimit never reads it, and neither does
/// Tollgate: as the clients' authority it would reject clients without a certificate.
const IGNORED: [&str; 1] = ["GRPC_SERVER_TLS_CA_CERT"];

/// OpenTelemetry's names resemble each other, and clusters set them for every pod.
const IGNORED_PREFIX: &str = "OTEL_";

/// Shorter names resemble too many others.
const NAME_BYTES_MIN: usize = 7;

/// A sentence for each variable that is set, is not a setting, and resembles one.
pub(crate) fn warnings(environment: &[(String, String)], known: &[String]) -> Vec<String> {
    let is_candidate = |name: &str, value: &str| {
        let is_ignored = IGNORED.contains(&name) || name.starts_with(IGNORED_PREFIX);
        !value.is_empty()
            && !is_ignored
            && !known.iter().any(|known| known == name)
            && !is_set_by_kubernetes(name, value)
    };
    let candidates = environment
        .iter()
        .filter(|(name, value)| is_candidate(name, value));
    let warned = candidates.filter_map(|(name, _)| {
        Some(format!(
            "{name} is not a setting; did you mean {}?",
            nearest(name, known)?
        ))
    });
    warned.collect()
}

fn nearest<'k>(name: &str, known: &'k [String]) -> Option<&'k str> {
    let near = known
        .iter()
        .filter_map(|known| Some((distance(name, known)?, known)));
    near.min().map(|(_, known)| known.as_str())
}

/// The edit distance of two names; `None` if they do not resemble each other. Of names with the
/// same first word, such as `REDIS_`, the rest is compared: with a third of its letters different
/// it is another word.
fn distance(name: &str, known: &str) -> Option<usize> {
    let max = match (name.split_once('_'), known.split_once('_')) {
        (Some((family, rest)), Some((known_family, _))) if family == known_family => {
            (rest.len() / 3).max(1)
        }
        _ if name.len() >= NAME_BYTES_MIN => (name.len() / 8).max(1),
        _ => return None,
    };
    // Names differ by at least their difference in length. This skips nearly every comparison, each
    // of which would take longer than the rest of a start.
    let at_least = name.chars().count().abs_diff(known.chars().count());
    let distance = || strsim::osa_distance(name, known);
    (at_least <= max)
        .then(distance)
        .filter(|&found| found <= max)
}

/// `<SERVICE>_SERVICE_HOST`, `<SERVICE>_SERVICE_PORT_<NAME>`, `<SERVICE>_PORT=tcp://…`,
/// `<SERVICE>_PORT_6379_TCP_ADDR`: Kubernetes sets them in every pod beside a Service.
fn is_set_by_kubernetes(name: &str, value: &str) -> bool {
    let is_port = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && value.contains("://"))
        || name
            .match_indices("_PORT_")
            .any(|(at, port)| is_port(&name[at + port.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(name: &str, value: &str) -> Vec<String> {
        let known = [
            "HOST",
            "PORT",
            "GRPC_HOST",
            "GRPC_SERVER_TLS_CERT",
            "LOG_LEVEL",
            "PROMETHEUS_PATH",
            "REDIS_URL",
            "REDIS_POOL_SIZE",
        ];
        let known: Vec<String> = [
            &known[..],
            &[
                "REDIS_TLS",
                "REDIS_TLS_CACERT",
                "RUNTIME_ROOT",
                "REPLICAS",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            ],
        ]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect();
        warnings(&[(name.to_owned(), value.to_owned())], &known)
    }

    #[test]
    fn a_misspelled_setting_is_warned_about_with_the_nearest_name() {
        for (name, meant) in [
            ("REDIS_URI", "REDIS_URL"),
            ("REDIS_TLS_CA_CERT", "REDIS_TLS_CACERT"),
            ("REDIS_POOLSIZE", "REDIS_POOL_SIZE"),
            ("LOG_LEVLE", "LOG_LEVEL"),
            ("RUNTIM_ROOT", "RUNTIME_ROOT"),
            ("REPLICA", "REPLICAS"),
            ("LOG_LÉVÈL", "LOG_LEVEL"),
        ] {
            assert_eq!(
                warned(name, "x"),
                [format!("{name} is not a setting; did you mean {meant}?")]
            );
        }
    }

    #[test]
    fn settings_and_unrelated_variables_are_not_warned_about() {
        for (name, value) in [
            ("REDIS_URL", "redis:6379"),
            ("REDIS_HOST", "10.0.0.5"),
            ("REDIS_PASSWORD", "x"),
            ("REDIS_URI", ""),
            ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
            ("GRPC_VERBOSITY", "debug"),
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://collector"),
            ("HOSTNAME", "pod-1"),
            ("HOME", "/root"),
            ("PROMETHEUS_PORT", "tcp://10.96.0.12:9090"),
            ("REDIS_TLS_PORT_6379_TCP_ADDR", "10.96.0.14"),
            ("REDIS_POOL_SERVICE_PORT_X", "1"),
        ] {
            assert_eq!(warned(name, value), [""; 0], "{name}");
        }
    }
}
