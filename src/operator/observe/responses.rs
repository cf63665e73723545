//! Responses by what callers got: what Envoy counts as `ok` and `over_limit`, and calls that passed
//! over a limit.

use crate::base::named_enum::named_enum;
use crate::telemetry::metric::{Counter, Metrics};

named_enum! {
    /// Why a call over a limit is answered with OK.
    pub enum Admitted {
        /// `shadow_mode`, SHADOW_MODE, or a key that `enforce_percent` leaves out.
        Shadow = "shadow",
        /// A quota, beside one that is left.
        Quota = "quota",
        /// `on_limit: degrade`.
        Degrade = "degrade",
    }
}

/// The responses of the process. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Responses {
    ok: Counter,
    over_limit: Counter,
    /// By [`Admitted`].
    admitted: [Counter; Admitted::ALL.len()],
}

/// Responses to calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CallCounts {
    /// OK and OVER_LIMIT.
    pub(crate) calls: u64,
    /// OVER_LIMIT.
    pub(crate) over_limit: u64,
    /// OK over a limit, by [`Admitted`].
    pub(crate) admitted: [u64; Admitted::ALL.len()],
}

impl Responses {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let by_code = |code| {
            let help = "Responses to gRPC and /json calls, as Envoy counts them: OK or OVER_LIMIT. Calls that get an error have none.";
            metrics.counter_with("tollgate_responses_total", help, &[("code", code)])
        };
        Self {
            ok: by_code("OK"),
            over_limit: by_code("OVER_LIMIT"),
            admitted: Admitted::ALL.map(|by| {
                let help = "Responses of OK to calls over a limit that does not reject them: in shadow mode, a quota while another is left, or with on_limit: degrade. A call counts once.";
                metrics.counter_with("tollgate_responses_admitted_total", help, &[("by", by.name())])
            }),
        }
    }

    pub(crate) fn record(&self, over_limit: bool) {
        if over_limit {
            self.over_limit.inc();
        } else {
            self.ok.inc();
        }
    }

    /// Records why a response is OK although the call is over a limit.
    pub(crate) fn record_admitted(&self, by: Admitted) {
        self.admitted[by as usize].inc();
    }

    /// Since the start of the process.
    pub(crate) fn totals(&self) -> CallCounts {
        let over_limit = self.over_limit.get();
        let admitted = self.admitted.each_ref().map(Counter::get);
        CallCounts { calls: self.ok.get() + over_limit, over_limit, admitted }
    }
}

impl CallCounts {
    /// Those after an earlier count.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut admitted = self.admitted;
        for (count, before) in admitted.iter_mut().zip(earlier.admitted) {
            *count = count.saturating_sub(before);
        }
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            over_limit: self.over_limit.saturating_sub(earlier.over_limit),
            admitted,
        }
    }
}
