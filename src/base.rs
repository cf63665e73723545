//! The lowest layer, which everything may use.

pub(crate) mod backoff;
pub mod environment;
pub(crate) mod named_enum;
pub mod parse;
pub(crate) mod regular_file;
pub(crate) mod removed;
pub(crate) mod revision;
pub mod runtime;
pub mod sampling;
pub mod shutdown;
pub mod text;
pub mod time;
