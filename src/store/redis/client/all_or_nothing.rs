//! All or nothing for checks that one call of the script cannot decide.

use crate::limits::OverLimitHits;
use crate::limits::check::{Blocked, Check, CheckError, Decisions, Hits, Verdict};
use crate::store::redis::client::encode::Mode;
use crate::store::redis::client::{RedisClient, Request};

impl RedisClient {
    /// All or nothing on several nodes, or of more checks than one call may have: a dry run, then
    /// each check is charged or only read.
    ///
    /// Not atomic: a concurrent request may consume quota between the two phases. Then a check is
    /// over limit in the second phase, and others are charged although the request is over limit.
    /// Never over-admits.
    pub(super) async fn try_and_charge(&self, request: &Request<'_>) -> Decisions {
        let checks = request.checks;
        let mut dry_run = Request { mode: Mode::DryRun, ..*request };
        let mut batches = self.encode_by_redis_time(&mut dry_run).await;
        let mut decisions = self.send_batches(&dry_run, &mut batches).await;
        let is_over =
            |decision: &Result<Verdict, CheckError>| decision.is_ok_and(|verdict| verdict.over);
        let blocked = Blocked::of(checks.iter().zip(decisions.iter().map(is_over)));
        let mut indices = Vec::new();
        let mut second = Vec::new();
        for (index, (check, decision)) in checks.iter().zip(&decisions).enumerate() {
            let is_blocked = blocked.has(check);
            let drops = check.limit.over_limit_hits == OverLimitHits::Drop;
            let stays_over = is_blocked && is_over(decision) && drops;
            if decision.is_err() || stays_over {
                continue;
            }
            indices.push(index);
            second.push(Check {
                group: 0,
                ..if is_blocked && !is_over(decision) {
                    check.with_hits(Hits::Peek)
                } else {
                    check.clone()
                }
            });
        }
        let mut second = Request { checks: &second, ..*request };
        let mut batches = self.encode_by_redis_time(&mut second).await;
        let sent = self.send_batches(&second, &mut batches).await;
        for (index, decision) in indices.into_iter().zip(sent) {
            decisions[index] = decision;
        }
        decisions
    }
}
