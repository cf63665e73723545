//! Collects warnings up to a bound: a generated file could have one per line.

use crate::config::yaml::node::{Location, Warning};

const WARNINGS_MAX: usize = 100;

#[derive(Default)]
pub(super) struct Warnings(Vec<Warning>);

impl Warnings {
    /// Adds a warning; beyond the bound, one that says so.
    pub(super) fn add(&mut self, location: Location, text: impl Into<String>) {
        if self.0.len() < WARNINGS_MAX {
            self.0.push(Warning {
                location,
                text: text.into(),
            });
        } else if self.0.len() == WARNINGS_MAX {
            self.0.push(Warning {
                location,
                text: "more warnings from here on are not shown".into(),
            });
        }
    }

    pub(super) fn in_file_order(mut self) -> Vec<Warning> {
        self.0
            .sort_by_key(|warning| (warning.location.line, warning.location.column));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::yaml::read;

    #[test]
    fn warnings_are_bounded() {
        let warnings = read(&"k: v\n".repeat(100_000)).unwrap().warnings;
        assert_eq!(warnings.len(), WARNINGS_MAX + 1);
        assert!(warnings.last().unwrap().text.starts_with("more warnings"));
    }
}
