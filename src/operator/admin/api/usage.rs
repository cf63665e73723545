//! `/api/v1/usage`: how much is used of the limits that decide a descriptor.

use futures_util::future::join_all;

use crate::base::text::Text;
use crate::limits::check::Hits;
use crate::operator::admin::api::answer::Answer;
use crate::operator::admin::api::counters::{Counters, no_rules, query_of_pairs};
use crate::operator::admin::api::top::reject_removed;
use crate::operator::admin::query_string::Pairs;
use crate::report::usage::{LimitUsage, Usage};

impl Counters {
    /// GET: the limits of one descriptor, with an entry for each `e` in the query string.
    pub(crate) async fn usage(&self, pairs: &Pairs) -> Answer<Usage> {
        reject_removed(pairs, "rule")?;
        let mut query = query_of_pairs(pairs)?;
        query.descriptors[0].hits = Hits::Peek;
        let rules = self.rules.load();
        let rules = rules.as_ref().ok_or_else(no_rules)?;
        let now = self.clock.now();
        let plan = self.plan(rules, &query, now)?;
        let limits = plan.steps[0].links().iter().map(|link| async {
            let check = &plan.request.checks[link.check];
            let (reading, counted_in) = self.read_check(check, now).await;
            LimitUsage::new(link, check, &reading, counted_in, now)
        });
        Ok(Usage {
            domain: Text(query.domain).shown().into_owned(),
            limits: join_all(limits).await,
        })
    }
}
