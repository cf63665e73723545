//! EXTRA_TAGS: tags of every metric, in the formats of statsd, DogStatsD and Prometheus.

/// Characters with a meaning in lines and names of statsd.
const OF_STATSD: [char; 3] = ['.', ':', '|'];

/// Names and values, sorted by name; names are unique.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tags(Vec<(String, String)>);

impl Tags {
    /// Parses `name:value,name:value`. As in envoyproxy/ratelimit, an empty name or value is
    /// ignored.
    ///
    /// # Errors
    /// The first invalid tag.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut tags: Vec<(String, String)> = Vec::new();
        for tag in text.split(',').filter(|tag| !tag.is_empty()) {
            let (name, value) = tag
                .split_once(':')
                .filter(|(_, value)| !value.contains(':'))
                .ok_or_else(|| {
                    format!("{tag:?} is not a tag; write name:value, with commas between tags and no colon in a value")
                })?;
            // A line break would start another line.
            if tag.contains(char::is_control) {
                return Err(format!(
                    "the tag {tag:?} has a control character in it; write it without"
                ));
            }
            if name.is_empty() || value.is_empty() {
                continue;
            }
            tags.retain(|(known, _)| known != name);
            tags.push((name.to_owned(), value.to_owned()));
        }
        tags.sort_unstable();
        Ok(Self(tags))
    }

    /// The suffix of statsd names, as in envoyproxy/ratelimit: `.__name=value` for each.
    pub fn as_suffix(&self) -> String {
        let tags: Vec<String> = self
            .0
            .iter()
            .map(|(name, value)| format!(".__{name}={}", value.replace(OF_STATSD, "_")))
            .collect();
        tags.concat()
    }

    /// For DogStatsD: `name:value`.
    pub fn as_pairs(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(name, value)| format!("{name}:{}", value.replace(OF_STATSD, "_")))
            .collect()
    }

    /// For Prometheus: names of letters, digits and `_`, and any value.
    pub fn as_labels(&self) -> Vec<(String, String)> {
        self.0.iter().map(|(name, value)| (label_name(name), value.clone())).collect()
    }
}

/// A valid label name. Prometheus reserves `le`, `quantile` and names that begin with two
/// underscores.
fn label_name(tag: &str) -> String {
    let name = super::mapper::escaped(tag);
    if name == "le" || name == "quantile" || name.starts_with("__") {
        format!("tag_{}", name.trim_start_matches('_'))
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_formatted_for_each_sink() {
        let tags = Tags::read("zone:eu.west,app-name:b,le:1").expect("they are tags");
        assert_eq!(tags.as_suffix(), ".__app-name=b.__le=1.__zone=eu_west");
        assert_eq!(tags.as_pairs(), ["app-name:b", "le:1", "zone:eu_west"]);
        let labels = [("app_name", "b"), ("tag_le", "1"), ("zone", "eu.west")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(tags.as_labels(), labels);
    }

    #[test]
    fn the_last_of_equal_names_counts_and_empty_ones_are_ignored() {
        assert_eq!(Tags::read("a:1,a:2,b:,:c,"), Tags::read("a:2"));
        assert_eq!(Tags::read(""), Ok(Tags::default()));
    }

    #[test]
    fn invalid_tags_are_errors() {
        for text in ["zone", "zone:eu:west", "a:1,b", "a:b\nc"] {
            assert!(Tags::read(text).is_err(), "{text}");
        }
    }
}
