//! Settings of the reference that this version does not have, and without which it works all the same: they are warned about.

/// Settings without which the service works all the same.
const WARNED: [(&str, &str); 3] = [
    ("TRACING_ENABLED", "this version sends no traces"),
    ("EXTRA_TAGS", "this version sends no statsd"),
    ("PROMETHEUS_MAPPER_YAML", "the metrics page has the default names"),
];

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

    #[test]
    fn what_only_shows_less_is_warned_about() {
        let warned = warnings(["TRACING_ENABLED".to_owned(), "PATH".to_owned()]);
        assert_eq!(warned, ["TRACING_ENABLED has no effect: this version sends no traces"]);
    }
}
