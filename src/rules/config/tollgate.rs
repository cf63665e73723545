//! The `tollgate` block in the `metadata` of a descriptor or of a file.
//!
//! envoyproxy/ratelimit ignores it, so a file that has one loads there, too. Tollgate ignores
//! nothing in it: an operator who writes a key relies on it. Each value is checked on its own here;
//! `resolve.rs` checks how they fit together.

use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::keys;
use crate::rules::config::yaml::{Diagnostic, Location, Node};

pub(crate) use options::{
    Block, Defaults, Layer, Layers, LimitItem, Options, ResolvedOptions, RuleBlock, Sourced,
};
pub(crate) use value::OnLimitWord;

mod budget;
mod conditions;
mod options;
pub(crate) mod reader;
mod value;

keys! {
    /// Options for every rule of a domain.
    pub(crate) enum FileBlock {
        /// A request that one limit rejects consumes nothing from the others
        all_or_nothing: bool;
        /// Rule keys, for every rule of the domain without its own
        defaults: Defaults;
    }
}

/// The block of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct RootBlock {
    pub(crate) all_or_nothing: Option<bool>,
    pub(crate) defaults: Option<Block>,
    pub(crate) location: Location,
}

/// Reads the block of a rule.
pub(crate) fn read_block(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Block> {
    let problems = findings.problem_count();
    let mut block = Block { location: node.location, ..Block::default() };
    let elsewhere = (FileBlock::KEYS, "in the block at the top of the file");
    for (key, value) in reader::map(node, Options::KEYS, findings)? {
        let key = reader::key(key, Options::KEYS, elsewhere, findings);
        block.set(key, value, findings);
    }
    block.is_faulty = findings.problem_count() > problems;
    Some(block)
}

/// Reads the block of a file.
pub(crate) fn read_root_block(node: &Node, findings: &mut SourceFindings<'_>) -> Option<RootBlock> {
    let mut block = RootBlock { location: node.location, ..RootBlock::default() };
    let elsewhere = (Options::KEYS, "in the block of a rule, or in `defaults`");
    for (key, value) in reader::map(node, FileBlock::KEYS, findings)? {
        match reader::key(key, FileBlock::KEYS, elsewhere, findings) {
            key @ "all_or_nothing" => {
                block.all_or_nothing = Some(reader::flag(value, key, findings));
            }
            "defaults" => {
                let findings = &mut findings.at(".defaults");
                block.defaults = read_block(value, findings);
                if let Some(Block { limits, .. }) = &block.defaults
                    && let Some(limits) = limits
                {
                    let problem = Diagnostic::new(limits.location, "`limits` for many rules");
                    findings.problem(problem.hint("write `limits` in the block of each rule"));
                }
            }
            _ => {}
        }
    }
    Some(block)
}
