//! Names and tags of lines: for statsd tags are a part of the name, for DogStatsD they follow the
//! value. Those are from EXTRA_TAGS, and from mogrifiers, which extract them from names.
//!
//! A mogrifier replaces names that match its pattern by another name and tags. The first that
//! matches applies, in the order of the list; envoyproxy/ratelimit tries them in a random order.

use regex::Regex;

use crate::base::environment::Environment;
use crate::telemetry::mapper::{self, expanded};
use crate::telemetry::tags::Tags;

/// Mogrifiers: each is tried on each name of each flush.
const MOGRIFIERS_MAX: usize = 100;
/// Prefixes of their settings; the second is from the manual of envoyproxy/ratelimit.
const PREFIXES: [&str; 2] = ["DOG_STATSD_MOGRIFIER_", "DOG_STATSD_MOGRIFIERS_"];
/// Characters with a meaning in lines.
const OF_LINES: [char; 4] = ['|', ',', '#', '\n'];

/// Suffix of every name, tags of every line, and mogrifiers.
#[derive(Debug, Clone, Default)]
pub struct Tagging {
    suffix: String,
    tags: Vec<String>,
    mogrifiers: Vec<Mogrifier>,
}

/// A pattern, and the name and tags that replace what it matches, as templates of `regex`.
#[derive(Debug, Clone)]
struct Mogrifier {
    pattern: Regex,
    name: String,
    tags: Vec<(String, String)>,
}

impl Tagging {
    /// The names of statsd.
    pub(crate) fn statsd(tags: &Tags) -> Self {
        Self { suffix: tags.as_suffix(), ..Self::default() }
    }

    /// The names of DogStatsD. Reads the mogrifiers of a comma-separated list from the settings
    /// that are named after them.
    ///
    /// # Errors
    /// The first that is incomplete or invalid, by the name of its setting.
    pub fn read(tags: &Tags, list: &str, environment: &Environment) -> Result<Self, String> {
        let names: Vec<&str> =
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        if names.len() > MOGRIFIERS_MAX {
            return Err(format!(
                "USE_DOG_STATSD_MOGRIFIERS has more than {MOGRIFIERS_MAX} names; write fewer, with patterns that match more"
            ));
        }
        let mogrifiers = names
            .into_iter()
            .map(|name| Mogrifier::read(name, environment))
            .collect::<Result<_, _>>()?;
        Ok(Self { suffix: String::new(), tags: tags.as_pairs(), mogrifiers })
    }

    /// The name of a metric, and its tags: `|#a:b,c:d` or nothing.
    pub(crate) fn tag(&self, name: &str) -> (String, String) {
        let found = self
            .mogrifiers
            .iter()
            .find_map(|mogrifier| Some((mogrifier, mogrifier.pattern.captures(name)?)));
        let mut tags = self.tags.clone();
        let name = match found {
            Some((mogrifier, captures)) => {
                let own = mogrifier.tags.iter();
                tags.extend(
                    own.map(|(tag, value)| format!("{tag}:{}", expanded(&captures, value))),
                );
                expanded(&captures, &mogrifier.name)
            }
            None => format!("{name}{}", self.suffix),
        };
        let tags: Vec<String> = tags.iter().map(|tag| tag.replace(OF_LINES, "_")).collect();
        let prefix = if tags.is_empty() { "" } else { "|#" };
        // These would end the name or the line. Mogrifiers and domains may have them.
        (name.replace([':', '|', '\n'], "_"), format!("{prefix}{}", tags.join(",")))
    }
}

impl Mogrifier {
    fn read(name: &str, environment: &Environment) -> Result<Self, String> {
        let set = |suffix: &str| {
            let names = PREFIXES.map(|prefix| format!("{prefix}{name}_{suffix}"));
            let found = names
                .into_iter()
                .find_map(|setting| Some((environment.get(&setting)?.to_owned(), setting)));
            found.map(|(value, setting)| (setting, value))
        };
        let missing = |suffix: &str| {
            format!(
                "USE_DOG_STATSD_MOGRIFIERS names {name}, but {}{name}_{suffix} is not set",
                PREFIXES[0]
            )
        };
        let (setting, pattern) = set("PATTERN").ok_or_else(|| missing("PATTERN"))?;
        let pattern = Regex::new(&pattern).map_err(|error| {
            format!(
                "{setting} is not a regular expression: {}",
                mapper::one_line(&error.to_string())
            )
        })?;
        let groups = pattern.captures_len() - 1;
        let (setting, name) = set("NAME").ok_or_else(|| missing("NAME"))?;
        let name = template(&setting, &name, groups)?;
        let (setting, text) = set("TAGS").unwrap_or_default();
        let mut tags = Vec::new();
        for tag in text.split(',').filter(|tag| !tag.is_empty()) {
            let pair = tag.split_once(':').filter(|(tag, value)| {
                !tag.is_empty() && !value.is_empty() && !value.contains(':')
            });
            let (tag, value) = pair.ok_or_else(|| {
                format!(
                    "{setting}: {tag:?} is not a tag; write name:value, with commas between tags"
                )
            })?;
            tags.push((tag.to_owned(), template(&setting, value, groups)?));
        }
        tags.sort_unstable();
        Ok(Self { pattern, name, tags })
    }
}

/// A template of `regex` for one in which `$n` is the n-th group, with all digits that follow, and
/// nothing else has a meaning.
fn template(setting: &str, text: &str, groups: usize) -> Result<String, String> {
    let mut parts = text.split('$');
    let mut template = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let digits = &part[..part.len() - rest.len()];
        template += &match digits.parse::<usize>() {
            Ok(group) if group <= groups => format!("${{{group}}}{rest}"),
            Ok(group) => {
                return Err(format!(
                    "{setting} has ${group}, but the pattern has {groups} groups; write $0 to ${groups}"
                ));
            }
            Err(_) => format!("$${part}"),
        };
    }
    Ok(template)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: &str = r"^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$";

    fn tagging(list: &str, settings: &[(&str, &str)]) -> Result<Tagging, String> {
        let variables =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let tags = Tags::read("zone:eu").expect("a tag");
        Tagging::read(&tags, list, &Environment::new(variables, []))
    }

    #[test]
    fn the_first_of_the_list_that_matches_is_applied() {
        let settings = [
            ("DOG_STATSD_MOGRIFIERS_B_PATTERN", PATTERN),
            ("DOG_STATSD_MOGRIFIERS_B_NAME", "rl.$3"),
            ("DOG_STATSD_MOGRIFIER_B_TAGS", "key:$2,domain:$1"),
            ("DOG_STATSD_MOGRIFIER_A_PATTERN", "total_hits"),
            ("DOG_STATSD_MOGRIFIER_A_NAME", "all$$0$"),
        ];
        let tagging = tagging("B, A", &settings).expect("both are good");
        let tagged = |name: &str, tags: &str| (name.to_owned(), tags.to_owned());
        let hits = "ratelimit.service.rate_limit.shop.a,b.c|d.total_hits";
        assert_eq!(tagging.tag(hits), tagged("rl.total_hits", "|#zone:eu,domain:shop,key:a_b.c_d"));
        assert_eq!(tagging.tag("my.total_hits"), tagged("all$total_hits$", "|#zone:eu"));
        assert_eq!(tagging.tag("other:|"), tagged("other__", "|#zone:eu"));
        let statsd = Tagging::statsd(&Tags::read("zone:eu.west").expect("a tag"));
        assert_eq!(statsd.tag("a:b"), tagged("a_b.__zone=eu_west", ""));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_setting() {
        let with = |name: &str, tags: &str, pattern: &str| {
            let settings = [
                ("DOG_STATSD_MOGRIFIER_A_PATTERN", pattern),
                ("DOG_STATSD_MOGRIFIER_A_NAME", name),
                ("DOG_STATSD_MOGRIFIER_A_TAGS", tags),
            ];
            tagging("A", &settings).expect_err("it is wrong")
        };
        assert!(with("x", "", "").contains("DOG_STATSD_MOGRIFIER_A_PATTERN is not set"));
        assert!(with("", "", "a").contains("DOG_STATSD_MOGRIFIER_A_NAME is not set"));
        assert_eq!(
            with("x", "", "a(b"),
            "DOG_STATSD_MOGRIFIER_A_PATTERN is not a regular expression: unclosed group"
        );
        assert!(
            with("$2", "", "(a)")
                .starts_with("DOG_STATSD_MOGRIFIER_A_NAME has $2, but the pattern has 1 groups")
        );
        for tags in ["a", "a:", ":b", "a:b:c"] {
            assert!(with("x", tags, "a").starts_with("DOG_STATSD_MOGRIFIER_A_TAGS: "), "{tags}");
        }
    }
}
