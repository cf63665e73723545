//! Names of rules files, as operators write them.

use std::fmt;
use std::path::Path;

use crate::rules::source::files::has_cases;

/// Bytes of the name of a rules file, on the usual file systems.
const NAME_BYTES_MAX: usize = 255;

/// The name of a file directly in the folder of rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileName(String);

/// Why a text names no rules file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("name a file directly in the folder of rules, without a slash")]
    Slash,
    #[error("files whose names begin with a dot are no rules files here")]
    Dot,
    #[error("files of test cases (.test.yaml, .test.yml) are no rules files")]
    Cases,
    #[error("the name of a file has 1 to {NAME_BYTES_MAX} bytes, without control characters")]
    Characters,
}

impl FileName {
    /// # Errors
    /// It cannot be the name of a rules file.
    pub(crate) fn new(name: &str) -> Result<Self, NameError> {
        if name.contains('/') {
            Err(NameError::Slash)
        } else if name.starts_with('.') {
            Err(NameError::Dot)
        } else if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.contains(char::is_control) {
            Err(NameError::Characters)
        } else if has_cases(Path::new(name)) {
            Err(NameError::Cases)
        } else {
            Ok(Self(name.to_owned()))
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_directly_in_the_folder_can_be_named() {
        for valid in ["shop.yaml", "rules", "a b", "x..y", "\u{fc}.yml", "test.yaml"] {
            assert_eq!(FileName::new(valid).map(|name| name.0), Ok(valid.into()));
        }
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        for (invalid, expected) in [
            ("below/shop.yaml", NameError::Slash),
            ("../shop.yaml", NameError::Slash),
            ("/etc/passwd", NameError::Slash),
            ("..", NameError::Dot),
            ("..data", NameError::Dot),
            (".shop.yaml", NameError::Dot),
            ("", NameError::Characters),
            ("shop\0.yaml", NameError::Characters),
            ("shop\n.yaml", NameError::Characters),
            (&*long, NameError::Characters),
            ("shop.test.yaml", NameError::Cases),
            ("shop.test.yml", NameError::Cases),
        ] {
            assert_eq!(FileName::new(invalid), Err(expected), "{invalid:?}");
        }
    }
}
