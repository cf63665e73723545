//! Rules: matching a request to them, and the names and keys of their counters. [`config`] reads
//! them, and [`source`] loads and publishes them.
//!
//! Matching is pure: no clock, no I/O, no lock. Only [`live`] and [`stats`], which threads share,
//! have atomics and a lock.

pub use enforced_share::EnforcedShare;
pub use key::KeyFormat;
pub use live::LiveRules;
pub use plan::{Plan, plan};
pub use query::{Descriptor, Entry, Override, Query};
pub use rule::{
    Allowance, EffectiveOption, FurtherLimit, Metadata, Naming, OnLimit, OnStoreError, Origin,
    Provenance, Rule,
};
pub(crate) use step::OWN_LIMIT;
pub use step::{Link, Step};
pub use tree::RuleSet;

pub mod config;
mod enforced_share;
pub mod explain;
pub mod key;
mod live;
pub(crate) mod lookup;
pub(crate) mod metric_name;
pub mod plan;
pub mod query;
mod rule;
pub mod source;
pub mod stats;
mod step;
pub mod tree;
pub(crate) mod unmatched;
pub(crate) mod wildcard;
