//! Counts the memory of a tree while it is built, and of the tokens that the parser keeps
//! meanwhile.

use std::collections::HashSet;
use std::rc::Rc;

use crate::rules::config::yaml::node::{Diagnostic, Location, Node};

/// Memory of the tree of a file. 100,000 rules of five keys take 50 MiB; `{},` makes 13 times as
/// much of a text.
const TREE_BYTES_MAX: usize = 54 << 20;

/// Memory of a node in the list or map around it.
const NODE_BYTES: usize = size_of::<Node>();
/// Memory of a text, a list or a map besides its characters or nodes.
const SHARED_BYTES: usize = 32;
/// Memory of a token that the parser keeps: 104 bytes, in a queue that doubles.
const TOKEN_BYTES: usize = 288;
/// Bytes of a text that all nodes share, such as a key, a unit or a number.
const SHARED_TEXT_BYTES_MAX: usize = 24;
/// Texts that all nodes share.
const SHARED_TEXTS_MAX: usize = 1_000;

/// The memory of a tree so far.
#[derive(Debug, Default)]
pub(super) struct TreeMemory {
    bytes: usize,
    /// The most tokens that the parser has kept: its queue does not shrink.
    tokens: usize,
    texts: HashSet<Rc<str>>,
}

impl TreeMemory {
    /// # Errors
    /// The tree is too large with these nodes.
    pub(super) fn add_nodes(&mut self, count: usize, location: Location) -> Result<(), Diagnostic> {
        self.add(count * NODE_BYTES, location)
    }

    /// Adds a list or a map without its nodes.
    ///
    /// # Errors
    /// The tree is too large with it.
    pub(super) fn add_shared(&mut self, location: Location) -> Result<(), Diagnostic> {
        self.add(SHARED_BYTES, location)
    }

    fn add(&mut self, bytes: usize, location: Location) -> Result<(), Diagnostic> {
        self.bytes += bytes;
        let fits = self.bytes + self.tokens * TOKEN_BYTES <= TREE_BYTES_MAX;
        fits.then_some(()).ok_or_else(|| too_large(location))
    }

    /// Adds tokens that the parser kept at a time.
    pub(super) fn add_tokens(&mut self, count: usize) {
        self.tokens = self.tokens.max(count);
    }

    /// The number of tokens that the parser may keep at a time.
    pub(super) fn tokens_max(&self) -> usize {
        TREE_BYTES_MAX.saturating_sub(self.bytes) / TOKEN_BYTES
    }

    /// A text of the tree. Most texts of rules are the same few keys and values, which are shared.
    pub(super) fn text(&mut self, text: &str) -> Rc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        self.bytes += SHARED_BYTES + text.len();
        // Exactly as long as the text; the parser's buffers are three times that.
        let new: Rc<str> = text.into();
        if text.len() <= SHARED_TEXT_BYTES_MAX && self.texts.len() < SHARED_TEXTS_MAX {
            self.texts.insert(new.clone());
        }
        new
    }
}

/// The tree, or what the parser keeps of the brackets that begin here, has more memory than it may.
pub(super) fn too_large(location: Location) -> Diagnostic {
    let mib = TREE_BYTES_MAX >> 20;
    let text = format!("the text takes more than {mib} MiB of memory (rules_tree_bytes_max)");
    let hint = "write large lists in block style, or into several files";
    Diagnostic::new(location, text).hint(hint)
}
