//! The span of one request to Redis, named as in envoyproxy/ratelimit.

use crate::limits::check::{CheckError, CheckRequest, Decisions, Source, Verdict};
use crate::store::redis::shared::Redis;
use crate::telemetry::metric::gauged;
use crate::telemetry::traces::LiveSpan;

/// Checks for the per-second Redis are counted apart.
const CHECKS: &str = "pipeline length";
const PER_SECOND_CHECKS: &str = "perSecondPipeline length";

pub(crate) fn start(shared: &Redis, parent: &LiveSpan, request: &CheckRequest) -> LiveSpan {
    let checks = request.checks.iter();
    let per_second = checks.filter(|check| shared.is_per_second(&check.limit)).count();
    let mut span = parent.child("Redis Pipeline Execution");
    span.set_number(CHECKS, gauged(request.checks.len() - per_second));
    span.set_number(PER_SECOND_CHECKS, gauged(per_second));
    span
}

/// Ends the span. Checks that this process decided were not sent; without any other there is no
/// span.
pub(crate) fn end(mut span: LiveSpan, decisions: &Decisions) {
    let is_local = |decision: &&Result<Verdict, CheckError>| {
        decision.is_ok_and(|verdict| verdict.source != Source::Store)
    };
    let sent = decisions.len() - decisions.iter().filter(is_local).count();
    if sent == 0 {
        span.discard();
        return;
    }
    span.set_number(CHECKS, gauged(sent));
    if let Some(failed) = decisions.iter().find_map(|decision| decision.err()) {
        span.fail(failed.error.to_string());
    }
}
