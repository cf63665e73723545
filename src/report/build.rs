//! What a binary was built from, and how.

use serde::Serialize;

use crate::base::revision::{REVISION, TZDATA};

/// This binary.
pub(crate) const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: REVISION,
    profile: env!("TOLLGATE_PROFILE"),
    target: env!("TOLLGATE_TARGET"),
    features: env!("TOLLGATE_FEATURES"),
    rustc: env!("TOLLGATE_RUSTC"),
    tzdata: TZDATA,
};

/// A build.
#[derive(Debug, Serialize)]
pub(crate) struct Build {
    pub(crate) version: &'static str,
    /// Or `unknown`.
    pub(crate) commit: &'static str,
    /// The profile of cargo: `debug`, or `release` for all profiles that inherit from it.
    pub(crate) profile: &'static str,
    /// The target triple.
    pub(crate) target: &'static str,
    /// Processor features that it needs, separated by commas.
    pub(crate) features: &'static str,
    /// The compiler.
    pub(crate) rustc: &'static str,
    /// The version of the IANA Time Zone Database that is compiled in.
    pub(crate) tzdata: &'static str,
}

impl Build {
    /// What `--version` prints after the name.
    pub(crate) fn versions(&self) -> String {
        format!("{} (tzdata {})", self.version, self.tzdata)
    }
}
