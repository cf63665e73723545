//! What operators read: plain types without I/O, each field named once.
//!
//! A producer returns such a type; JSON, text and the console present it, and commands read it from
//! a service.

pub(crate) use cases::{CaseFailure, CaseReport, CaseResult, Coverage, Mismatch, UnreachedRule};
pub(crate) use finding::{CheckFinding, CheckReport, Finding, Severity};
pub(crate) use replay::{
    InvalidLine, KeyReplay, Minute, Replay, RuleReplay, RulesReplay, TrafficStats,
};
pub(crate) use serialize::json;
pub(crate) use simulation::{CallChart, Run, RunChart, Scene, Simulation};

pub(crate) mod answer;
pub(crate) mod build;
mod cases;
pub(crate) mod change;
pub(crate) mod comparison;
pub(crate) mod counter;
pub mod dump;
pub(crate) mod effective;
mod finding;
pub(crate) mod outcome;
mod replay;
pub(crate) mod rule;
pub(crate) mod rule_file;
mod serialize;
mod simulation;
pub(crate) mod top;
pub(crate) mod usage;
