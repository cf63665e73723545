//! Texts of rules, and values with their locations in them.

use std::sync::Arc;

use crate::config::yaml::Location;

/// A file of rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// As envoyproxy/ratelimit names it in messages: the path below the watched directory, with
    /// dots for slashes.
    pub name: Arc<str>,
    /// Where an operator finds it.
    pub path: Arc<str>,
    /// Its content.
    pub text: Arc<str>,
}

/// A value and its location.
#[derive(Debug, Clone, Default)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it is written.
    pub location: Location,
}
