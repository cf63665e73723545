//! Errors and warnings about rules.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error or a warning about rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Finding {
    /// Its path below the folder of rules, or the path of the overlay
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
    pub(crate) message: String,
    /// The place in the rules, such as `domain shop > descriptors[0]`
    pub(crate) place: Option<String>,
    /// What to write instead
    pub(crate) hint: Option<String>,
}

impl Finding {
    /// An error of rules that could not be read.
    pub(crate) fn unread(message: impl Into<String>) -> Self {
        Self {
            file: None,
            line: None,
            column: None,
            message: message.into(),
            place: None,
            hint: None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.message;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(formatter, "{file}:{line}: {message}"),
            (Some(file), None) => write!(formatter, "{file}: {message}"),
            (None, _) => formatter.write_str(message),
        }
    }
}
