//! What may be counted: limits (requests per period, burst, algorithm), checks of them, and the
//! decisions of the algorithms.

pub use calendar::{Calendar, CalendarSpec, DAYS_OF_SHORTEST_MONTH, Weekday, Window};
pub use lease::{
    Consistency, LEASED_LIMIT_MIN, LIFETIME_MAX, LIFETIME_MIN, LeaseError, LeaseTerms,
    SUB_WINDOW_MIN,
};
pub use named_algorithm::{Algorithm, LimitOption, OverLimitHits};
pub use share::Share;
pub use terms::{BUCKETS_MAX, HOLDERS_MAX, LimitError, Terms};
pub use unit::{Tick, Unit};
pub use validated::{AMOUNT_MAX, EXACT_MAX, LOG_ENTRIES_MAX, Limit};
pub use warn_at::{WARN_AT_MAX, WarnAt, used_percent};
pub use windows::Windows;

pub mod algorithm;
pub(crate) mod calendar;
pub mod check;
mod lease;
mod named_algorithm;
mod share;
mod terms;
mod unit;
mod validated;
mod warn_at;
mod windows;
