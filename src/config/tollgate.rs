//! The `tollgate` block in the `metadata` of a descriptor or of a file.
//!
//! envoyproxy/ratelimit ignores it, so a file that has one loads there, too. Tollgate ignores
//! nothing in it: an operator who writes a key relies on it. Each value is checked on its own here;
//! `resolve.rs` checks how they fit together.

use crate::config::error::SourceFindings;
use crate::config::tollgate::options::RULE_KEYS;
use crate::config::tollgate::reader::Reader;
use crate::config::yaml::{Location, Node};

pub(crate) use options::{Block, Layer, Layers, ResolvedOptions, Sourced};
pub(crate) use value::OnLimitWord;

mod options;
pub(crate) mod reader;
mod value;

const ROOT_KEYS: [&str; 2] = ["all_or_nothing", "defaults"];

/// The block of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct RootBlock {
    pub(crate) all_or_nothing: Option<bool>,
    pub(crate) defaults: Option<Block>,
    pub(crate) location: Location,
}

/// Reads the block of a rule; `place` is its path in the rules.
pub(crate) fn read_block(
    node: &Node,
    place: &str,
    findings: &mut SourceFindings<'_>,
) -> Option<Block> {
    let mut reader = Reader {
        elsewhere: &[(&ROOT_KEYS, "in the block at the top of the file")],
        ..Reader::new(place, findings)
    };
    let pairs = reader.map(node, RULE_KEYS)?;
    let mut block = Block {
        location: node.location,
        ..Block::default()
    };
    for (key, value) in pairs {
        let key = reader.key(key, RULE_KEYS);
        block.set(key, value, &mut reader);
    }
    block.is_faulty = reader.has_reported;
    Some(block)
}

/// Reads the block of a file.
pub(crate) fn read_root_block(
    node: &Node,
    place: &str,
    findings: &mut SourceFindings<'_>,
) -> Option<RootBlock> {
    let mut reader = Reader {
        elsewhere: &[(RULE_KEYS, "in the block of a rule, or in `defaults`")],
        ..Reader::new(place, findings)
    };
    let pairs = reader.map(node, &ROOT_KEYS)?;
    let mut block = RootBlock {
        location: node.location,
        ..RootBlock::default()
    };
    for (key, value) in pairs {
        match reader.key(key, &ROOT_KEYS) {
            key @ "all_or_nothing" => block.all_or_nothing = Some(reader.flag(value, key)),
            "defaults" => {
                block.defaults = read_block(value, &format!("{place}.defaults"), reader.findings);
            }
            _ => {}
        }
    }
    Some(block)
}
