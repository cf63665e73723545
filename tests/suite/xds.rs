//! Rules from a control plane by xDS.

mod connect;
mod errors;
mod helpers;
mod rules;
mod stream;
