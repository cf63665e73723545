//! The YAML tree: nodes with their locations, scalars, and the errors and warnings about a file.

use std::rc::Rc;

/// Bytes of a file, and of all rules files together. Twice what 100,000 rules take; a ConfigMap
/// holds at most 1 MiB.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// Replaces bytes that are not UTF-8, so that the error about them has a line and a column. YAML
/// does not allow this character.
pub const NOT_UTF8: char = '\u{FFFF}';

/// Nodes of a file, aliases expanded. 100,000 rules have one to two million.
///
/// A chain of aliases ("billion laughs") is rejected much earlier, by the share of nodes that come
/// from aliases.
pub(crate) const NODES_MAX: usize = 4_000_000;

/// Nodes of an overlay, and of a file that maps metrics.
pub(crate) const FILE_NODES_MAX: usize = 100_000;

/// Items of a list, and pairs of a map: a growing vector takes up to three times the memory of its
/// items.
pub(crate) const ITEMS_MAX: usize = 250_000;

/// Levels of lists and maps in a file, aliases expanded. A descriptor takes two levels.
///
/// Dropping, cloning and walking a tree recurse once a level; this depth fits the smallest stack
/// of a thread.
pub(crate) const DEPTH_MAX: usize = 128;

/// Warnings of a file: a generated one could have one per line.
pub(crate) const WARNINGS_MAX: usize = 100;

/// A range of characters on one line of a file. The default, line 0, is of values without a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Location {
    /// 1-based.
    pub line: u32,
    /// 1-based, in characters; a tab is one.
    pub column: u32,
    /// In characters, on this line only; at least 1.
    pub width: u32,
}

/// A value and its location.
#[derive(Debug, Clone, Default)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The location in the file.
    pub location: Location,
}

/// A value of the tree, or a key.
///
/// An alias shares the lists and maps of its anchor, so it takes no memory. Its own location is
/// that of the alias, the locations within are those of the anchor. A value left empty has the
/// location of its key.
#[derive(Debug, Clone)]
pub struct Node {
    /// For a list or map in block style the location of its first item or key.
    pub location: Location,
    /// The value.
    pub kind: Kind,
}

/// Aliases and merge keys are resolved.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Text, a number and so on: see [`Scalar::value`].
    Scalar(Scalar),
    /// In file order.
    List(Rc<[Node]>),
    /// In file order. Keys are scalars with distinct texts.
    Map(Rc<[(Node, Node)]>),
}

/// A scalar as written, after unquoting and folding.
#[derive(Debug, Clone)]
pub struct Scalar {
    /// The text that yaml.v2 stores in a string field, whatever [`Scalar::value`] is (`yes`,
    /// `0x10`).
    pub text: Rc<str>,
    /// Text whatever it looks like: quoted, a block, `!!str`, or with an unknown tag.
    pub(super) literal: bool,
}

/// The meaning of a scalar by YAML 1.1, as yaml.v2 reads it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Empty, `~`, `null`, `Null` or `NULL`.
    Null,
    /// `y`, `yes`, `on`, `true` and their opposites, in lower case, upper case and capitalized.
    Bool(bool),
    /// Decimal, `0x1F`, `0b11`, `0o17` and `017`, with an optional sign and underscores.
    Int(i64),
    /// Fits `u64` but not `i64`.
    BigInt(u64),
    /// `1.5`, `1e3`, `.5`, `.inf`, `.nan`; also integers too large for `u64`, and `08`.
    Float(f64),
    /// See [`Scalar::text`]. Dates, times and quoted numbers are text.
    Text,
}

/// The first document of a file; yaml.v2 reads no further.
#[derive(Debug, Clone)]
pub struct Document {
    /// `None` for an empty file or only comments.
    pub root: Option<Node>,
    /// Warnings about text that yaml.v2 ignores silently, in file order; at most
    /// [`WARNINGS_MAX`].
    pub warnings: Vec<Diagnostic>,
}

/// A problem or a warning about a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {text}", .location.line, .location.column)]
pub struct Diagnostic {
    /// The part of the text that it is about.
    pub location: Location,
    /// A sentence without a full stop.
    pub text: String,
    /// The remedy: a text to write instead.
    pub hint: Option<String>,
}

impl<T> Located<T> {
    pub(crate) const fn new(value: T, location: Location) -> Self {
        Self { value, location }
    }
}

impl Location {
    pub(crate) fn new(line: usize, column: usize, width: usize) -> Self {
        let bounded = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self { line: bounded(line), column: bounded(column), width: bounded(width) }
    }
}

impl Node {
    pub(crate) fn scalar(&self) -> Option<&Scalar> {
        match &self.kind {
            Kind::Scalar(scalar) => Some(scalar),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// The value of a scalar.
    pub(crate) fn value(&self) -> Option<Value> {
        self.scalar().map(Scalar::value)
    }

    /// The text of a scalar, else an empty one.
    pub(crate) fn text(&self) -> &str {
        self.scalar().map_or("", |scalar| &scalar.text)
    }

    /// The pairs of a map.
    pub(crate) fn pairs(&self) -> Option<&[(Self, Self)]> {
        match &self.kind {
            Kind::Map(pairs) => Some(pairs),
            Kind::Scalar(_) | Kind::List(_) => None,
        }
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> Option<&[Self]> {
        match &self.kind {
            Kind::List(items) => Some(items),
            Kind::Scalar(_) | Kind::Map(_) => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        self.value() == Some(Value::Null)
    }

    /// A value without a file.
    pub(crate) fn of(kind: Kind) -> Self {
        Self { location: Location::default(), kind }
    }
}

impl Scalar {
    pub(crate) fn plain(text: impl Into<Rc<str>>) -> Self {
        Self { text: text.into(), literal: false }
    }

    pub(crate) fn quoted(text: impl Into<Rc<str>>) -> Self {
        Self { text: text.into(), literal: true }
    }
}

impl Diagnostic {
    pub(crate) fn new(location: Location, text: impl Into<String>) -> Self {
        Self { location, text: text.into(), hint: None }
    }

    #[must_use]
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// For messages: one line of at most 60 characters.
pub(crate) fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && line.chars().count() <= CHARS_MAX {
        return line.to_owned();
    }
    line.chars().take(CHARS_MAX).chain("..".chars()).collect()
}
