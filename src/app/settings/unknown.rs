//! Variables whose names resemble a setting: a misspelled setting is a warning, and so is one that
//! other software calls so.

use std::collections::BTreeSet;

/// Envoy Gateway sets it in every deployment. envoyproxy/ratelimit never reads it, and neither does
/// Tollgate: as the clients' authority it would reject clients without a certificate.
const IGNORED: [&str; 1] = ["GRPC_SERVER_TLS_CA_CERT"];

/// OpenTelemetry's names resemble each other, and clusters set them for every pod.
const IGNORED_PREFIX: &str = "OTEL_";

/// Shorter names resemble too many others.
const NAME_BYTES_MIN: usize = 7;

/// Words of settings, and those of other software.
const SYNONYMS: [(&str, &str); 5] = [
    ("AUTH", "PASSWORD PASSWD PASS USERNAME USER"),
    ("CACERT", "CA"),
    ("CERT", "CERTIFICATE"),
    ("TLS", "SSL"),
    ("URL", "HOST HOSTNAME ADDR ADDRESS ENDPOINT DATABASE"),
];

/// Words that names have or not.
const OPTIONAL_WORDS: [&str; 5] = ["USE", "ENABLE", "ENABLED", "CLIENT", "SERVER"];

/// A second Redis has few settings of its own: the others are those of the first.
const OF_SECOND_REDIS: &str = "_PERSECOND";

/// A sentence for each variable that is set, is not a setting, and resembles one.
pub(crate) fn warnings(environment: &[(String, String)], known: &[String]) -> Vec<String> {
    let is_candidate = |name: &str, value: &str| {
        let is_ignored = IGNORED.contains(&name) || name.starts_with(IGNORED_PREFIX);
        !value.is_empty()
            && !is_ignored
            && !known.iter().any(|known| known == name)
            && !is_set_by_kubernetes(name, value)
    };
    let candidates = environment.iter().filter(|(name, value)| is_candidate(name, value));
    let settings: Vec<_> = environment.iter().filter(|(name, _)| known.contains(name)).collect();
    // Kubernetes expands `redis://:$(REDIS_PASSWORD)@redis` from a variable beside it.
    let is_expanded = |value: &str, meant: &str| {
        settings.iter().any(|(name, set)| {
            !set.is_empty() && name == meant || set.len() > value.len() && set.contains(value)
        })
    };
    let warned = candidates.filter_map(|(name, value)| {
        let meant = match same_words(name, known) {
            Some(meant) if is_expanded(value, meant) => return None,
            Some(meant) => meant,
            None => nearest(name, known)?,
        };
        Some(format!("{name} is not a setting; did you mean {meant}?"))
    });
    warned.collect()
}

/// The setting whose name has words of the same meaning, in any order.
fn same_words<'k>(name: &str, known: &'k [String]) -> Option<&'k str> {
    let has_words_of = |name: &str| {
        let wanted = words(name);
        let mut known = known.iter().map(String::as_str);
        known.find(|known| wanted.len() > 1 && words(known) == wanted)
    };
    has_words_of(name).or_else(|| has_words_of(&name.replacen(OF_SECOND_REDIS, "", 1)))
}

fn words(name: &str) -> BTreeSet<&str> {
    let words = name.split('_').filter(|word| !OPTIONAL_WORDS.contains(word));
    let words = words.map(|word| {
        let is_meant = |others: &str| others.split(' ').any(|other| other == word);
        let own = SYNONYMS.iter().find(|(_, others)| is_meant(others));
        own.map_or(word, |(own, _)| own)
    });
    words.collect()
}

fn nearest<'k>(name: &str, known: &'k [String]) -> Option<&'k str> {
    let near = known.iter().filter_map(|known| Some((distance(name, known)?, known)));
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
    (at_least <= max).then(distance).filter(|&found| found <= max)
}

/// `<SERVICE>_SERVICE_HOST`, `<SERVICE>_SERVICE_PORT_<NAME>`, `<SERVICE>_PORT=tcp://…`,
/// `<SERVICE>_PORT_6379_TCP_ADDR`: Kubernetes sets them in every pod beside a Service.
fn is_set_by_kubernetes(name: &str, value: &str) -> bool {
    let is_port = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && value.contains("://"))
        || name.match_indices("_PORT_").any(|(at, port)| is_port(&name[at + port.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(name: &str, value: &str) -> Vec<String> {
        warned_of(&[(name, value)])
    }

    fn warned_of(environment: &[(&str, &str)]) -> Vec<String> {
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
                "REDIS_AUTH",
                "REDIS_PERSECOND_AUTH",
                "REDIS_PERSECOND_TLS",
                "REDIS_TLS",
                "REDIS_TLS_CACERT",
                "REDIS_TLS_CLIENT_KEY",
                "RUNTIME_ROOT",
                "REPLICAS",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            ],
        ]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect();
        let environment =
            environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        warnings(&environment.collect::<Vec<_>>(), &known)
    }

    #[test]
    fn a_variable_that_is_expanded_in_a_setting_is_not_warned_about() {
        let password = ("REDIS_PASSWORD", "s3cret");
        for setting in [
            ("REDIS_AUTH", "s3cret"),
            ("REDIS_AUTH", "user:s3cret"),
            ("REDIS_URL", "redis://:s3cret@redis:6379"),
        ] {
            assert_eq!(warned_of(&[password, setting]), [""; 0], "{setting:?}");
        }
        for setting in [("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "")] {
            assert_eq!(warned_of(&[password, setting]).len(), 1, "{setting:?}");
        }
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
            ("REDIS_PASSWORD", "REDIS_AUTH"),
            ("REDIS_USERNAME", "REDIS_AUTH"),
            ("REDIS_PERSECOND_PASSWORD", "REDIS_PERSECOND_AUTH"),
            ("REDIS_USE_TLS", "REDIS_TLS"),
            ("REDIS_TLS_ENABLED", "REDIS_TLS"),
            ("REDIS_SSL", "REDIS_TLS"),
            ("REDIS_HOST", "REDIS_URL"),
            ("REDIS_TLS_CA", "REDIS_TLS_CACERT"),
            ("REDIS_TLS_KEY", "REDIS_TLS_CLIENT_KEY"),
            ("REDIS_PERSECOND_TLS_CACERT", "REDIS_TLS_CACERT"),
            ("REDIS_PERSECOND_TLS_KEY", "REDIS_TLS_CLIENT_KEY"),
            ("GRPC_TLS_CERT", "GRPC_SERVER_TLS_CERT"),
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
            ("TLS_CERT", "/tls/tls.crt"),
            ("REDIS_SERVICE_HOST", "10.96.0.3"),
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
