//! Turns the text of a rules file into a tree in which every node knows its line and column.
//!
//! Files written for the reference must mean the same here, and it reads them with Go's
//! `gopkg.in/yaml.v2`. So the syntax comes from a YAML 1.2 parser, but what a scalar means (`yes`,
//! `010`, `1_000`), how `<<` merges and which of two equal keys counts are yaml.v2's, and what many
//! people write and only yaml.v2 takes is padded until the parser takes it too. Keys and rules are
//! not known here.
//!
//! ```text
//! text --> precheck --> tree (locator, scalar, merge, warnings) --> Document
//!                         ^  |
//!                leniency-+  +--> error --> SyntaxError
//!                 (outline)      (outline)
//! ```

use std::rc::Rc;

use crate::config::yaml::leniency::Padded;
use crate::config::yaml::tree::Fault;

mod leniency;
mod locate;
mod merge;
mod outline;
mod precheck;
mod scalar;
mod syntax_error;
mod tree;
mod warnings;

/// How long a file may be. Ten times what 100,000 rules take, and a ConfigMap cannot hold more than
/// 1 MiB.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// Stands for bytes that are not UTF-8 in a text, so that the error about them has a line and a
/// column like any other. YAML does not allow this character.
pub const NOT_UTF8: char = '\u{FFFF}';

/// How many nodes a file may have, each use of an alias counted anew. 100,000 rules have one to two
/// million.
///
/// A chain of aliases ("billion laughs") is rejected much earlier, by the share of nodes that come
/// from aliases.
pub const NODES_MAX: usize = 4_000_000;

/// How many lists and maps may stand within one another, aliases followed.
///
/// A descriptor takes two, so this is 60 levels of them. Dropping, cloning and walking a tree
/// recurse once a level: at this depth, on the smallest stack a thread gets, there is no need to
/// worry.
pub const DEPTH_MAX: usize = 128;

/// Where something stands in a file: 1-based line and column (in characters), and how many
/// characters wide it is on that line (at least 1): what the caret underlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Location {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters and not bytes; a tab is one.
    pub column: u32,
    /// On that line only, however many lines it goes on for.
    pub width: u32,
}

/// One value of the tree, or one key.
///
/// An alias shares the lists and maps of its anchor, so it costs no memory. Its own location is where
/// the alias is, the locations within are those of the anchor. A value left empty has the location of its
/// key.
#[derive(Debug, Clone)]
pub struct Node {
    /// Of a map in block style: that of its first key. Of a list so written: that of its first
    /// item.
    pub location: Location,
    /// What stands there.
    pub kind: Kind,
}

/// The three things a node can be. Aliases and merge keys are gone by now.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A text, a number and so on: see [`Scalar::value`].
    Scalar(Scalar),
    /// In file order.
    List(Rc<Vec<Node>>),
    /// Pairs in file order; keys are scalars, and no two of them have the same text.
    ///
    /// Of repeated keys the last counts, and a `<<` counts as if its pairs stood in its place, so
    /// that it replaces what is above it and is replaced by what is below. Where both the old
    /// and the new value are maps the new one's pairs are laid over the old one's: yaml.v2 does
    /// so when it fills a struct (a `rate_limit` that overrides one number of the merged one keeps
    /// its unit).
    Map(Rc<Vec<(Node, Node)>>),
}

/// A scalar as it was written, after unquoting and folding.
#[derive(Debug, Clone)]
pub struct Scalar {
    /// What yaml.v2 puts into a string field: the text itself, whatever [`Scalar::value`] makes of
    /// it (`yes`, `0x10`).
    pub text: Rc<str>,
    /// It is text whatever it looks like: in quotes, a block, `!!str`, or with a tag of the
    /// operator's own.
    literal: bool,
}

/// What a scalar means by YAML 1.1, as yaml.v2 understands it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing at all, `~`, `null`, `Null` or `NULL`.
    Null,
    /// `y`, `yes`, `on`, `true` and their opposites, in lower case, upper case and capitalised.
    Bool(bool),
    /// Decimal, `0x1F`, `0b11`, `0o17` and `017`, with a sign and underscores if you like.
    Int(i64),
    /// Fits `u64` but not `i64`.
    BigInt(u64),
    /// `1.5`, `1e3`, `.5`, `.inf`, `.nan`; also integers too large for `u64`, and `08`.
    Float(f64),
    /// None of these: see [`Scalar::text`]. Dates, times and quoted numbers are texts.
    Text,
}

/// The first document of a text; yaml.v2 reads no further.
#[derive(Debug, Clone)]
pub struct Document {
    /// None: an empty text or only comments.
    pub root: Option<Node>,
    /// In file order, at most about a hundred.
    pub warnings: Vec<Warning>,
}

/// What yaml.v2 passes over in silence and an operator would want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The second of two equal keys, the `---` of the second document.
    pub location: Location,
    /// A sentence without a full stop.
    pub text: String,
}

/// Why a text is no YAML, or exceeds a bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {text}", .location.line, .location.column)]
pub struct SyntaxError {
    /// Where the fault is believed to be, which is not always where the parser noticed it.
    pub location: Location,
    /// A sentence without a full stop.
    pub text: String,
    /// What to write instead, when that can be guessed.
    pub hint: Option<String>,
}

/// Reads the first document of a text.
///
/// # Errors
/// When it is no YAML, or larger or deeper than the bounds of this module.
pub fn read(text: &str) -> Result<Document, SyntaxError> {
    precheck::check(text)?;
    let mut source = Padded::not_at_all(text);
    let mut read = tree::build(&source);
    if let Err(Fault::Syntax(error)) = &read
        && leniency::may_help(error)
    {
        source = Padded::new(text);
        read = tree::build(&source);
    }
    read.map_err(|fault| match fault {
        Fault::Refused(error) => error,
        Fault::Syntax(error) => {
            syntax_error::explain(text, error.info(), source.location(*error.marker()))
        }
    })
}

impl Location {
    fn new(line: usize, column: usize, width: usize) -> Location {
        let bounded = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Location {
            line: bounded(line),
            column: bounded(column),
            width: bounded(width),
        }
    }
}

impl Scalar {
    /// As if it had been written without quotes.
    pub fn plain(text: impl Into<Rc<str>>) -> Scalar {
        Scalar {
            text: text.into(),
            literal: false,
        }
    }

    /// As if it had been written in quotes.
    pub fn quoted(text: impl Into<Rc<str>>) -> Scalar {
        Scalar {
            text: text.into(),
            literal: true,
        }
    }

    /// What the text means, by yaml.v2's `resolve.go`. Only plain scalars and tagged ones (`!!int
    /// "7"`) can be anything but text.
    pub fn value(&self) -> Value {
        if self.literal {
            Value::Text
        } else {
            scalar::resolve(&self.text)
        }
    }
}

impl SyntaxError {
    fn new(location: Location, text: impl Into<String>) -> SyntaxError {
        SyntaxError {
            location,
            text: text.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> SyntaxError {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod scalar_cases;
#[cfg(test)]
mod shape;
