//! Plays test cases: the limiter that serves decides their requests, on a manual clock.

use std::collections::HashSet;
use std::sync::Arc;

use crate::api::convert;
use crate::cli::test::answer::Answer;
use crate::cli::test::case::{Case, Step};
use crate::cli::test::expectation;
use crate::config::yaml::Location;
use crate::limiter::LimiterError;
use crate::limiter::decision::Decision;
use crate::offline::Engine;
use crate::rules::{Rule, RuleSet};
use crate::text::Text;
use crate::time::Time;

/// Plays cases one after the other, each with its own counters.
pub(super) struct Player {
    engine: Engine,
    rules: Arc<RuleSet>,
    /// Addresses of rules that a descriptor matched.
    reached: HashSet<*const Rule>,
}

/// A case that was played.
#[derive(Debug)]
pub(super) struct Outcome<'c> {
    pub(super) case: &'c Case,
    /// `None` if the case passes.
    pub(super) failure: Option<Failure>,
}

/// The first response of a case that is not as expected.
#[derive(Debug)]
pub(super) struct Failure {
    /// Which of the requests of the step; from 1.
    pub(super) request: u32,
    /// The requests of the step.
    pub(super) requests: u32,
    pub(super) time: Time,
    /// In the form of `expect`, or the error that the service would answer with.
    pub(super) response: String,
    /// At least one.
    pub(super) mismatches: Vec<Mismatch>,
}

/// A field that is not as expected.
#[derive(Debug)]
pub(super) struct Mismatch {
    /// Such as `tests[0].steps[1].expect.statuses[0].remaining`.
    pub(super) place: String,
    pub(super) location: Location,
    /// Such as `statuses[0].remaining`.
    pub(super) name: String,
    /// `None` is an absent field.
    pub(super) expected: Option<String>,
    pub(super) found: Option<String>,
}

impl Player {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            rules: engine.rules(),
            engine,
            reached: HashSet::new(),
        }
    }

    /// Plays a case up to the first response that is not as expected: those after it would differ for
    /// the same reason.
    pub(super) fn play<'c>(&mut self, case: &'c Case) -> Outcome<'c> {
        self.engine.restart();
        let requests = case
            .steps
            .iter()
            .flat_map(|step| (1..=step.times).map(move |number| (step, number)));
        for (step, number) in requests {
            let (response, mismatches) = match self.decide(step) {
                Ok(answer) => {
                    let mismatches = compare(step, &answer);
                    if mismatches.is_empty() {
                        continue;
                    }
                    (expectation::shown(&answer), mismatches)
                }
                Err(error) => (error.to_string(), vec![of_error(step, &error)]),
            };
            let failure = Some(Failure {
                request: number,
                requests: step.times,
                time: step.time,
                response,
                mismatches,
            });
            return Outcome { case, failure };
        }
        let failure = None;
        Outcome { case, failure }
    }

    /// The rules that no descriptor matched so far, and how many there are in all.
    pub(super) fn unreached(&self) -> (Vec<&Rule>, usize) {
        let mut rules = self.rules.rules();
        let count = rules.len();
        rules.retain(|rule| !self.reached.contains(&std::ptr::from_ref(*rule)));
        (rules, count)
    }

    fn decide(&mut self, step: &Step) -> Result<Answer, LimiterError> {
        let query = convert::query(&step.request);
        let mut rules = Vec::with_capacity(query.descriptors.len());
        let reached = &mut self.reached;
        let inspect = |decision: &Decision<'_, '_, '_>| {
            for step in &decision.plan.steps {
                let rule = step.matched();
                reached.extend(rule.map(std::ptr::from_ref));
                rules.push(rule.map(|rule| rule.path.clone()));
            }
        };
        let response = self.engine.decide(&query, step.time, inspect)?;
        Ok(Answer {
            domain: Text(query.domain).to_string(),
            response,
            rules,
        })
    }
}

fn compare(step: &Step, answer: &Answer) -> Vec<Mismatch> {
    let differing = step.expected.iter().filter_map(|expectation| {
        let found = expectation.found(answer);
        (found != expectation.value).then(|| Mismatch {
            place: format!("{}.expect.{}", step.place, expectation.name),
            location: expectation.location,
            name: expectation.name.clone(),
            expected: expectation.value.clone(),
            found,
        })
    });
    differing.collect()
}

fn of_error(step: &Step, error: &LimiterError) -> Mismatch {
    Mismatch {
        place: format!("{}.request", step.place),
        location: step.location,
        name: "request".to_owned(),
        expected: Some("a response".to_owned()),
        found: Some(format!("the error: {error}")),
    }
}
