//! Names near a setting's that are none. Whoever misspells one would wait for its effect in vain.

/// Set by Envoy Gateway in every deployment. The reference never reads it, and neither do we: to
/// take it for the authority of clients would shut out who has no certificate.
const PASSED_OVER: [&str; 1] = ["GRPC_SERVER_TLS_CA_CERT"];

/// OpenTelemetry's names are alike, and there are more of them than of ours: who runs a cluster
/// sets them for every pod in it.
const PASSED_OVER_FAMILY: &str = "OTEL_";

/// Shorter names are near too many others.
const NAME_BYTES_MIN: usize = 7;

/// A sentence for each name that is set, no setting, and near one.
pub fn warnings(environment: &[(String, String)], known: &[String]) -> Vec<String> {
    let is_candidate = |name: &str, value: &str| {
        let is_passed_over = PASSED_OVER.contains(&name) || name.starts_with(PASSED_OVER_FAMILY);
        !value.is_empty()
            && !is_passed_over
            && !known.iter().any(|known| known == name)
            && !is_of_kubernetes(name, value)
    };
    let candidates = environment
        .iter()
        .filter(|(name, value)| is_candidate(name, value));
    let told = candidates.filter_map(|(name, _)| {
        Some(format!(
            "{name} is no setting; did you mean {}?",
            nearest(name, known)?
        ))
    });
    told.collect()
}

/// The setting that somebody probably meant.
fn nearest<'k>(name: &str, known: &'k [String]) -> Option<&'k str> {
    let near = known
        .iter()
        .filter_map(|known| Some((distance(name, known)?, known)));
    near.min().map(|(_, known)| known.as_str())
}

/// How many letters part two names; `None` if they have nothing to do with each other. Of those of
/// a family, such as `REDIS_`, what follows is compared: a third of its letters wrong is another
/// word.
fn distance(name: &str, known: &str) -> Option<usize> {
    let distance = strsim::osa_distance(name, known);
    let is_near = match (name.split_once('_'), known.split_once('_')) {
        (Some((family, rest)), Some((known_family, _))) if family == known_family => {
            distance <= (rest.len() / 3).max(1)
        }
        _ => name.len() >= NAME_BYTES_MIN && distance <= (name.len() / 8).max(1),
    };
    is_near.then_some(distance)
}

/// `<SERVICE>_SERVICE_HOST`, `<SERVICE>_SERVICE_PORT_<NAME>`, `<SERVICE>_PORT=tcp://…`,
/// `<SERVICE>_PORT_6379_TCP_ADDR`: Kubernetes sets them in every pod beside a Service, and they are
/// nobody's mistake.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
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
    fn a_name_near_a_settings_is_told_with_the_nearest() {
        for (name, meant) in [
            ("REDIS_URI", "REDIS_URL"),
            ("REDIS_TLS_CA_CERT", "REDIS_TLS_CACERT"),
            ("REDIS_POOLSIZE", "REDIS_POOL_SIZE"),
            ("LOG_LEVLE", "LOG_LEVEL"),
            ("RUNTIM_ROOT", "RUNTIME_ROOT"),
            ("REPLICA", "REPLICAS"),
        ] {
            assert_eq!(
                warned(name, "x"),
                [format!("{name} is no setting; did you mean {meant}?")]
            );
        }
    }

    #[test]
    fn what_is_a_setting_or_nobodys_mistake_is_not_told() {
        for (name, value) in [
            ("REDIS_URL", "redis:6379"),
            ("REDIS_HOST", "10.0.0.5"),
            ("REDIS_PASSWORD", "x"),
            ("REDIS_URI", ""),
            ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
            ("GRPC_VERBOSITY", "debug"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://collector"),
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
