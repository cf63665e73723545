//! Actions of an operator on a counter in Redis.

use std::time::Duration;

use crate::base::time::{Span, Time};
use crate::limits::check::{Check, CheckError, Hits, Reading};
use crate::store::redis::client::RedisClient;
use crate::store::redis::client::encode::Mode;
use crate::store::redis::fallback::change::{Change, key_hash};

/// Time to announce a change of an operator to other replicas.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(1);

impl RedisClient {
    /// Reads a counter. Its value and its lifetime stay.
    ///
    /// # Errors
    /// Redis gave no verdict.
    pub async fn peek(&self, check: &Check, now: Time) -> Result<Reading, CheckError> {
        let mut checks = vec![check.with_hits(Hits::Peek)];
        if check.book_ahead > Span::ZERO {
            checks.push(check.with_hits(Hits::Add(1)));
        }
        let decisions = self.decide_in(Mode::DryRun, &checks, now).await;
        let one_more = decisions.get(1).copied().transpose()?;
        Ok(Reading::new(decisions[0]?, one_more))
    }

    /// Unused hits that this process holds of a counter.
    pub(crate) fn leased(&self, check: &Check) -> u64 {
        let shared = &self.shared;
        let now = shared.server_now(check);
        shared.leases.with(check, |counter| counter.usable(now)).unwrap_or(0)
    }

    /// Deletes a counter, whatever is stored at its key.
    ///
    /// # Errors
    /// Redis gave no verdict.
    pub async fn reset(&self, check: &Check, now: Time) -> Result<(), CheckError> {
        let deleted =
            Change::Deleted { key: key_hash(&check.key), at: self.shared.server_now(check) };
        let changes = [Change::Refunded, deleted];
        self.change(Mode::Reset, check.with_hits(Hits::Peek), &changes, now).await
    }

    /// Gives hits back, and what is spent over the limit.
    ///
    /// # Errors
    /// Redis gave no verdict.
    pub async fn grant(&self, check: &Check, hits: u64, now: Time) -> Result<(), CheckError> {
        let check = check.with_hits(Hits::Refund(hits));
        self.change(Mode::Grant, check, &[Change::Refunded], now).await
    }

    /// Whatever the reply, no process uses an older verdict: Redis may have executed it.
    async fn change(
        &self,
        mode: Mode,
        check: Check,
        changes: &[Change],
        now: Time,
    ) -> Result<(), CheckError> {
        let decisions = self.decide_in(mode, &[check], now).await;
        let shared = &self.shared;
        for change in changes {
            shared.on_change(*change);
        }
        if let Some(node) = shared.home() {
            let messages = changes.iter().map(|change| change.message());
            let announced = shared.membership.announce(&node, messages);
            // Best effort: other processes use a cached verdict for a second at most.
            let _ = tokio::time::timeout(ANNOUNCE_TIMEOUT, announced).await;
        }
        decisions[0].map(drop)
    }
}
