//! What operators read: types without I/O, each field named once.

pub(crate) mod outcome;
