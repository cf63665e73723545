//! The lowest layer, which everything may use.

pub(crate) mod backoff;
pub mod environment;
pub mod file_watch;
pub mod http;
pub(crate) mod named_enum;
pub mod net;
pub mod parse;
pub mod proto;
pub(crate) mod regular_file;
pub(crate) mod removed;
pub(crate) mod revision;
pub mod runtime;
pub mod sampling;
pub mod shutdown;
pub mod text;
pub mod time;
