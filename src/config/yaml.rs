//! Reads YAML into a tree in which every node has its line and column.
//!
//! Rules written for envoyproxy/ratelimit keep their meaning, and it reads them with Go's
//! `gopkg.in/yaml.v2`. The syntax comes from a YAML 1.2 parser; what a scalar means (`yes`, `010`,
//! `1_000`), how `<<` merges and which of two equal keys counts follow yaml.v2. Two constructs that
//! only yaml.v2 accepts are syntax errors; docs/compatibility.md lists them.
//!
//! ```text
//! text --> precheck --> tree (locate, scalar, merge, warnings) --> Document
//! ```

pub use node::{
    Document, FILE_BYTES_MAX, Kind, Location, NOT_UTF8, Node, Scalar, SyntaxError, Value, Warning,
};

mod locate;
mod merge;
mod node;
mod precheck;
mod scalar;
mod syntax_error;
mod tree;
mod warnings;

/// Reads the first document of a text.
///
/// # Errors
/// The first syntax error, or a size or depth beyond the bounds.
pub fn read(text: &str) -> Result<Document, SyntaxError> {
    precheck::check(text)?;
    tree::build(text)
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod scalar_cases;
#[cfg(test)]
mod shape;
