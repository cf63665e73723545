//! Reads YAML into a tree in which every node has its line and column.
//!
//! Rules written for envoyproxy/ratelimit keep their meaning, and it reads them with Go's
//! `gopkg.in/yaml.v2`. The syntax comes from a YAML 1.2 parser; what a scalar means (`yes`, `010`,
//! `1_000`), how `<<` merges and which of two equal keys counts follow yaml.v2. Two constructs that
//! only yaml.v2 accepts are syntax errors; docs/compatibility.md lists them.
//!
//! ```text
//! text --> precheck --> tree (lines, scalar, merge) --> Document
//! ```

pub use node::{
    Diagnostic, Document, FILE_BYTES_MAX, Kind, Located, Location, NOT_UTF8, Node, Scalar, Value,
};
pub(crate) use node::{FILE_NODES_MAX, NODES_MAX, shortened};

mod input;
mod lines;
mod memory;
mod merge;
mod node;
mod precheck;
mod scalar;
mod tree;

/// Reads the first document of a text.
///
/// # Errors
/// The first syntax error, or a size or depth beyond the bounds.
pub fn read(text: &str) -> Result<Document, Diagnostic> {
    read_within(text, NODES_MAX)
}

/// [`read`] for a text that has at most `nodes_max` nodes.
///
/// # Errors
/// The errors of [`read`].
pub(crate) fn read_within(text: &str, nodes_max: usize) -> Result<Document, Diagnostic> {
    precheck::check(text)?;
    tree::build(text, nodes_max)
}

#[cfg(test)]
mod tests;
