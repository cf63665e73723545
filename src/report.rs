//! Data that operators read: answers of the API and output of commands.
//!
//! Each field is named once. Producers return these types, JSON is what `serde` makes of them, and
//! pages and tables read them. Of answers of the API the doc comments are the descriptions of the
//! OpenAPI document.

mod cases;
mod finding;
mod rule_check;
mod serialize;
mod simulation;

pub(crate) use cases::{CaseFailure, CaseReport, CaseResult, Coverage, Mismatch, UnreachedRule};
pub(crate) use finding::Finding;
pub(crate) use rule_check::{
    ChangedKey, Mode, RuleCheck, RuleSimulation, SimulatedSide, Treatment,
};
pub(crate) use simulation::{CallChart, Run, RunChart, Scene, Simulation};
