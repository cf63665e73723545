//! doors
