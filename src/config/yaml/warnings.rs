//! Collects what yaml.v2 passes over in silence, up to a bound.

use crate::config::yaml::{Location, Warning};

/// After so many nobody reads on; a generated file could otherwise earn one per line.
const WARNINGS_MAX: usize = 100;

/// Warnings in the order in which they were made.
#[derive(Default)]
pub struct Warnings(Vec<Warning>);

impl Warnings {
    /// Takes a warning, or leaves it out and says so once.
    pub fn add(&mut self, location: Location, text: impl Into<String>) {
        if self.0.len() < WARNINGS_MAX {
            self.0.push(Warning {
                location,
                text: text.into(),
            });
        } else if self.0.len() == WARNINGS_MAX {
            self.0.push(Warning {
                location,
                text: "there is more of this kind from here on".into(),
            });
        }
    }

    /// All of them, in file order.
    pub fn in_file_order(mut self) -> Vec<Warning> {
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
    fn there_are_no_more_than_anybody_reads() {
        let warnings = read(&"k: v\n".repeat(100_000)).unwrap().warnings;
        assert_eq!(warnings.len(), WARNINGS_MAX + 1);
        assert!(warnings.last().unwrap().text.starts_with("there is more"));
    }
}
