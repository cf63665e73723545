//! What an operator does to one counter in Redis.

use crate::check::{Check, CheckError, Hits, Reading};
use crate::store::redis::client::RedisClient;
use crate::store::redis::client::encode::Mode;
use crate::time::{Span, Time};

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
}
