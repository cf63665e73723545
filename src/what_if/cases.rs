//! Test cases of rules, decided in this process on a manual clock.
//!
//! ```text
//!  *.test.yaml --> [`read`] --> cases --> [`play`] --> a report of each case and of reached rules
//! ```

pub(crate) use play::play;
pub(crate) use read::{Tests, read};

pub(crate) mod case;
mod expectation;
mod play;
mod read;
mod request;
mod value;
