//! The lowest layer: what components define their settings with.

pub mod environment;
pub mod parse;
