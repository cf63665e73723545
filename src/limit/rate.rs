//! The limit of a rule's terms with the number and unit of a request.

use crate::limit::error::LimitError;
use crate::limit::terms::Terms;
use crate::limit::unit::Unit;
use crate::limit::validated::Limit;

impl Terms {
    /// The limit of these terms with another number and unit. The period is one unit. A stated burst
    /// keeps its proportion to the number, rounded half up, from 1 to the largest that is exact.
    ///
    /// # Errors
    /// As [`Limit::new`].
    pub fn with_rate(&self, requests: u32, unit: Unit) -> Result<Limit, LimitError> {
        let burst = self
            .burst
            .map(|burst| in_proportion(burst, self.requests, requests));
        let terms = Self {
            requests,
            unit,
            unit_multiplier: 1,
            burst,
            ..*self
        };
        match Limit::new(&terms) {
            Err(LimitError::BurstTooLarge { burst_max, .. }) => Limit::new(&Self {
                burst: Some(u32::try_from(burst_max).unwrap_or(u32::MAX)),
                ..terms
            }),
            limit => limit,
        }
    }
}

/// A burst for `to` requests where `burst` is for `from`; unchanged if `from` is 0.
fn in_proportion(burst: u32, from: u32, to: u32) -> u32 {
    if from == 0 {
        return burst;
    }
    let (burst, from, to) = (u64::from(burst), u64::from(from), u64::from(to));
    // At most 2^64 - 2^33 + 1, and half of `from`: below 2^64.
    let scaled = (burst * to + from / 2) / from;
    u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
}
