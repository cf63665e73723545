//! What people on call read and do: statistics, the admin port and the console.

pub mod admin;
pub(crate) mod console;
pub mod observe;
