//! What other rules would do: requests decided by the code that serves, without a service.

pub(crate) mod cases;
pub(crate) mod engine;
mod keys;
pub(crate) mod replay;
pub(crate) mod simulate;
pub(crate) mod traffic;
