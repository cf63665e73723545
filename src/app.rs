//! The application: its components are built and bound ([`build`]), announced ([`banner`]), run and
//! drained ([`run`]).

pub(crate) mod admin;
mod banner;
pub(crate) mod build;
mod console;
mod rules;
pub(crate) mod run;
