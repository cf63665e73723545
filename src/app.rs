//! The application: its components are built and bound ([`build`]), announced ([`banner`]), run and
//! drained ([`run`]). Most are built with the parts of [`core`], and start, reload and finish as
//! [`background`].

pub(crate) mod admin;
mod background;
pub(crate) mod banner;
pub(crate) mod build;
mod core;
mod port_holder;
mod rules;
pub(crate) mod run;
pub mod settings;
