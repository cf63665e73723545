//! Lets through what yaml.v2 takes and a YAML 1.2 parser refuses, by padding it: only white space
//! that means nothing is added or changed.
//!
//! The parser wants what is inside brackets and quotes indented, down to the closing bracket, and
//! no tab after a colon. yaml.v2 wants neither, and a closing bracket at the margin is how many
//! people write lists:
//! ```text
//! descriptors: [          descriptors: [
//!   {key: a},        =>                {key: a},
//! ]                                    ]
//! ```

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Marker, ScanError};

use crate::config::yaml::Location;
use crate::config::yaml::outline::Outline;

/// How much padding a text may get. 100,000 rules of five lines below a `descriptors: [` take six
/// million.
const PADDING_BYTES_MAX: usize = 8 << 20;

/// A text as the parser gets it, which knows where everything stood before.
pub struct Padded<'t> {
    /// The same content on the same lines.
    pub text: Cow<'t, str>,
    /// By line: how many spaces were put before it, which its columns must not count.
    pads: HashMap<usize, usize>,
}

/// Whether the parser refuses for a reason that yaml.v2 does not know.
pub fn may_help(error: &ScanError) -> bool {
    error.info().contains("indentation") || error.info().starts_with("':' must be followed")
}

impl<'t> Padded<'t> {
    /// The text as it was written.
    pub fn not_at_all(text: &'t str) -> Self {
        Self {
            text: text.into(),
            pads: HashMap::new(),
        }
    }

    /// Moves what is inside brackets and quotes to the right of where they opened.
    pub fn new(written: &str) -> Self {
        let mut text = String::with_capacity(written.len() + written.len() / 8);
        let mut padding = 0;
        let mut pads = HashMap::new();
        let mut outline = Outline::default();
        for (number, line) in (1..).zip(written.split_inclusive('\n')) {
            let indent = line.len() - line.trim_start_matches(' ').len();
            let pad = outline
                .inside()
                .map_or(0, |column| column.saturating_sub(indent));
            if pad > 0 && padding + pad <= PADDING_BYTES_MAX && !line.trim().is_empty() {
                padding += pad;
                pads.insert(number, pad);
                text.extend(std::iter::repeat_n(' ', pad));
            }
            let mut tabs = outline.read(line).into_iter().peekable();
            text.extend(
                line.chars()
                    .enumerate()
                    .map(|(column, c)| tabs.next_if_eq(&column).map_or(c, |_| ' ')),
            );
        }
        Self {
            text: text.into(),
            pads,
        }
    }

    /// Where a mark of the parser stands in the text as it was written, one character wide.
    pub fn location(&self, mark: Marker) -> Location {
        let pad = self.pads.get(&mark.line()).copied().unwrap_or_default();
        Location::new(mark.line(), mark.col().saturating_sub(pad) + 1, 1)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::yaml::shape::{shape, shape_of, value_at};
    use crate::config::yaml::{Kind, Location, read};

    #[test]
    fn what_only_yaml_1_2_refuses_is_read_and_keeps_its_spots() {
        let text = "domain:\td\ndescriptors: [\n{key: a},\n\t{key: \"b\n c\"},\n]\nx: |\n  [ 'kept\nz: 1\n";
        let root = read(text).unwrap().root.unwrap();
        assert_eq!(
            shape(&root),
            "{domain: d, descriptors: [{key: a}, {key: b c}], x: [ 'kept\n, z: 1}"
        );
        assert_eq!(value_at(&root, 0).location, Location::new(1, 9, 1));
        let Kind::List(items) = &value_at(&root, 1).kind else {
            panic!("no list")
        };
        assert_eq!(items[0].location, Location::new(3, 1, 1));
        assert_eq!(value_at(&items[0], 0).location, Location::new(3, 7, 1));
        assert_eq!(items[1].location, Location::new(4, 2, 1));
        assert_eq!(shape_of("a: \"one\ntwo\"\n"), "{a: one two}");
        assert_eq!(
            shape_of("a:\tb\nc: |\n d:\te\n'f':\t1\ng: ':\t'\n"),
            "{a: b, c: d:\te\n, f: 1, g: :\t}"
        );
        // The fault that remains is told where it stands in the file as written.
        let error = read("a: [\n{b: c d: e}\n]\n").unwrap_err();
        assert_eq!(
            (error.location.line, error.location.column),
            (2, 8),
            "{error}"
        );
    }
}
