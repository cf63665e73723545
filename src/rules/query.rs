//! A request in our words, borrowed from wherever it came.

use smallvec::SmallVec;

use crate::check::Hits;
use crate::limit::Unit;
use crate::time::Time;

/// One call: a domain and its descriptors.
#[derive(Debug, Clone, Default)]
pub struct Query<'q> {
    /// Which rules to ask; not empty.
    pub domain: &'q str,
    /// At least one.
    pub descriptors: SmallVec<[Descriptor<'q>; 2]>,
    /// As sent for the whole request; 0 is not set.
    pub hits_addend: u32,
    /// When the caller has no use for an answer any more, if it says.
    pub deadline: Option<Time>,
}

/// What is to be limited.
#[derive(Debug, Clone)]
pub struct Descriptor<'q> {
    /// From the outermost to the innermost.
    pub entries: SmallVec<[Entry<'q>; 4]>,
    /// A limit of the caller's own, instead of any rule.
    pub limit: Option<Override>,
    /// What to do to its counter.
    pub hits: Hits,
    /// As sent for this descriptor alone.
    pub hits_addend: Option<u64>,
}

/// A key and a value, which may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'q> {
    /// Key.
    pub key: &'q str,
    /// Value.
    pub value: &'q str,
}

/// A limit that comes with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Override {
    /// How many in a unit.
    pub requests_per_unit: u32,
    /// The unit's number on the wire.
    pub wire_unit: i32,
    /// The unit, if the number is one's.
    pub unit: Option<Unit>,
}
