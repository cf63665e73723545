//! What clients and the service saw of a fault, and what must hold for every fault on any machine.

use std::collections::BTreeMap;

use crate::support::binary::sum_on;
use crate::support::fault_log::{self, FAULTS};
use crate::support::traffic::{Answers, ValueAnswers};

/// The rules of a scenario, by their `on_store_error`, which is also their key.
pub(crate) const POLICIES: [&str; 4] = ["local", "allow", "deny", "error"];
/// Values of each key.
pub(crate) const VALUES: usize = 20;
/// The limit of each value.
pub(crate) const LIMIT: u64 = 4;

/// What happened.
#[derive(Debug)]
pub(crate) struct Report {
    /// How many hits of each value Redis may grant: twice the limit if it lost its data.
    pub(crate) granted_max: u64,
    /// By policy, in the order of [`POLICIES`].
    pub(crate) answers: [Answers; 4],
    pub(crate) history: History,
    /// Whether calls had a grpc-timeout, which may run out.
    pub(crate) has_deadline: bool,
}

/// What the service says of itself.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Verdicts of each policy, in the order of [`POLICIES`].
    pub(crate) fallbacks: [u64; 4],
    /// How often a server was given up.
    pub(crate) outages: u64,
    /// Log lines about faults of the servers.
    pub(crate) log: Vec<String>,
}

impl History {
    /// What a page of `/metrics` and a log say of servers with these addresses.
    pub(crate) fn read(metrics: &str, log: &str, addresses: &[String]) -> Self {
        let is_about_a_fault = |line: &&str| FAULTS.iter().any(|fault| line.contains(fault));
        let is_of_these = |line: &&str| addresses.iter().any(|address| line.contains(address));
        Self {
            fallbacks: POLICIES.map(|policy| {
                sum_on(metrics, "tollgate_store_fallbacks_total", &format!("policy=\"{policy}\""))
            }),
            outages: sum_on(metrics, "tollgate_store_breaker_opened_total", ""),
            log: log
                .lines()
                .filter(is_about_a_fault)
                .filter(is_of_these)
                .map(str::to_owned)
                .collect(),
        }
    }

    /// What is new since then.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (count, before) in self.fallbacks.iter_mut().zip(before.fallbacks) {
            *count -= before;
        }
        Self {
            outages: self.outages - before.outages,
            log: self.log.split_off(before.log.len()),
            ..self
        }
    }

    /// Whether this fault was logged for a server, and not yet logged as over.
    pub(crate) fn has_open(&self, fault: &str) -> bool {
        self.open().any(|(open, _)| open == fault)
    }

    /// Whether every fault that was logged was also logged as over, for each address.
    pub(crate) fn is_over(&self) -> bool {
        self.open().next().is_none()
    }

    /// Faults that were logged more or less often than they were logged as over, with the address
    /// of the server.
    fn open(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut open: BTreeMap<(&str, &str), i32> = BTreeMap::new();
        for line in &self.log {
            let fault = FAULTS
                .into_iter()
                .find(|fault| line.contains(fault))
                .expect("the line is about a fault");
            let address = line
                .split("address=")
                .nth(1)
                .and_then(|rest| rest.split(' ').next())
                .expect("the line has an address");
            *open.entry((fault, address)).or_default() +=
                if fault_log::is_end(line) { -1 } else { 1 };
        }
        open.into_iter().filter(|(_, count)| *count != 0).map(|(fault, _)| fault)
    }
}

impl Report {
    /// What must hold whatever the fault was. The limits are those of docs/operations.md.
    pub(crate) fn check(&self) {
        let [local, allow, deny, error] = &self.answers;
        for (policy, answers) in POLICIES.iter().zip(&self.answers) {
            let is_expected = |status: &tonic::Code| match status {
                tonic::Code::Unavailable => *policy == "error",
                // A busy machine may need more than the margin that an answer leaves its caller.
                tonic::Code::Cancelled => self.has_deadline,
                _ => false,
            };
            assert!(answers.errors.iter().all(is_expected), "{policy}: {:?}", answers.errors);
        }
        let [_, allowed, _, failed] = self.history.fallbacks;
        let unavailable =
            error.errors.iter().filter(|status| **status == tonic::Code::Unavailable).count();
        assert!(
            unavailable as u64 <= failed,
            "{unavailable} calls failed, and {failed} verdicts were by policy error"
        );

        for answers in [deny, error] {
            assert!(
                answers.values.iter().all(|value| value.ok <= self.granted_max),
                "over-granted: {self:#?}"
            );
        }
        let granted_max = VALUES as u64 * self.granted_max + allowed;
        assert!(
            allow.ok() <= granted_max,
            "{} of at most {granted_max} granted: {self:#?}",
            allow.ok()
        );
        // Once by Redis, and once more by the replica in each outage.
        let granted_max = self.granted_max + self.history.outages.max(1) * LIMIT;
        assert!(
            local.values.iter().all(|value| value.ok <= granted_max),
            "over-granted: {self:#?}"
        );

        // With these two every OVER_LIMIT is Redis' own verdict, after a whole limit was granted or
        // failed.
        for answers in [allow, error] {
            let is_early =
                |value: &ValueAnswers| value.over_limit > 0 && value.ok + value.errors < LIMIT;
            assert!(!answers.values.iter().any(is_early), "over limit too early: {self:#?}");
        }
    }

    /// No client noticed: every verdict is Redis' own, exactly the limit of each value passed, and
    /// nothing was logged.
    pub(crate) fn is_unnoticed(&self) {
        assert_eq!(self.history.fallbacks, [0; 4], "{self:#?}");
        assert!(self.history.log.is_empty(), "{:?}", self.history.log);
        for answers in &self.answers {
            assert!(answers.values.iter().all(|value| value.ok == LIMIT), "{self:#?}");
        }
    }
}
