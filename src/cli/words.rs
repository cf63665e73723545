//! `[RULES] DOMAIN KEY=VALUE...`: rules and a descriptor as words of a command line.

use std::path::PathBuf;

use crate::cli::output::CliError;

/// The help of the words.
pub(super) const HELP: &str = "\
RULES: a directory, file or manifest of rules [default: as for serve]. DOMAIN: that of Envoy's \
filter. KEY=VALUE: the entries of one descriptor, the outermost first; KEY= is an empty value";

/// A descriptor, and the rules that it is matched with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words<'w> {
    /// `None` for those that `serve` reads.
    pub(super) rules: Option<PathBuf>,
    pub(super) domain: &'w str,
    pub(super) entries: &'w [String],
}

impl<'w> Words<'w> {
    /// Reads the words. The first one with a `=` is the first entry.
    ///
    /// # Errors
    /// The domain or the entries are missing, or there are other words before them.
    pub(super) fn read(words: &'w [String]) -> Result<Self, CliError> {
        let is_entry = |word: &String| word.contains('=');
        let first = words.iter().position(is_entry).unwrap_or(words.len());
        let (before, entries) = words.split_at(first);
        let (rules, domain) = match before {
            [domain] if !entries.is_empty() => (None, domain),
            [rules, domain] if !entries.is_empty() => (Some(rules.into()), domain),
            _ => {
                let words = words.join(" ");
                return Err(CliError::Usage(format!(
                    "`{words}` is not [RULES] DOMAIN KEY=VALUE...; write an entry without a value as KEY="
                )));
            }
        };
        Ok(Self { rules, domain, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_domain_and_entries_are_told_apart() {
        for (line, rules, domain, entries) in [
            ("shop user=42", None, "shop", "user=42"),
            ("config shop user=42 vip", Some("config"), "shop", "user=42 vip"),
            ("a/b.yaml shop k= x=y=z", Some("a/b.yaml"), "shop", "k= x=y=z"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let read = Words::read(&words).expect("they are complete");
            let expected = (rules.map(PathBuf::from), domain, entries.to_owned());
            assert_eq!((read.rules, read.domain, read.entries.join(" ")), expected);
        }
        for line in ["shop", "shop user", "user=42", "a b c user=42", ""] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert!(Words::read(&words).is_err(), "{line}");
        }
    }
}
