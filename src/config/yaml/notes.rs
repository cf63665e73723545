//! Collects what yaml.v2 passes over in silence, up to a bound.

use crate::config::yaml::{Note, Spot};

/// After so many nobody reads on; a generated file could otherwise earn one per line.
const NOTES_MAX: usize = 100;

/// Notes in the order in which they were made.
#[derive(Default)]
pub struct Notes(Vec<Note>);

impl Notes {
    /// Takes a note, or leaves it out and says so once.
    pub fn add(&mut self, spot: Spot, text: impl Into<String>) {
        if self.0.len() < NOTES_MAX {
            self.0.push(Note {
                spot,
                text: text.into(),
            });
        } else if self.0.len() == NOTES_MAX {
            self.0.push(Note {
                spot,
                text: "there is more of this kind from here on".into(),
            });
        }
    }

    /// All of them, in file order.
    pub fn in_file_order(mut self) -> Vec<Note> {
        self.0
            .sort_by_key(|note| (note.spot.line, note.spot.column));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::yaml::read;

    #[test]
    fn there_are_no_more_than_anybody_reads() {
        let notes = read(&"k: v\n".repeat(100_000)).unwrap().notes;
        assert_eq!(notes.len(), NOTES_MAX + 1);
        assert!(notes.last().unwrap().text.starts_with("there is more"));
    }
}
