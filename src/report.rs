//! What operators read: plain types without I/O, each field named once.
//!
//! A producer returns such a type; JSON, text, Markdown, the console and the OpenAPI document present
//! it, and commands read it from a service.

pub(crate) mod change;
pub mod dump;
pub(crate) mod rule;
