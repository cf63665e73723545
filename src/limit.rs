//! Limits: requests per period, burst and algorithm.

pub use algorithm::{Algorithm, Kind, LimitOption, OverLimitHits};
pub use calendar::{Calendar, CalendarSpec, DAYS_OF_SHORTEST_MONTH, Weekday, Window};
pub use lease::{
    Consistency, LEASED_LIMIT_MIN, LIFETIME_MAX, LIFETIME_MIN, LeaseError, LeaseTerms,
    SUB_WINDOW_MIN,
};
pub use share::Share;
pub use terms::{BUCKETS_MAX, HOLDERS_MAX, LimitError, Terms};
pub use unit::{Tick, Unit};
pub use validated::{AMOUNT_MAX, EXACT_MAX, LOG_ENTRIES_MAX, Limit};
pub use warn_at::{WARN_AT_MAX, WarnAt, used_percent};
pub use windows::Windows;

mod algorithm;
pub(crate) mod calendar;
mod lease;
mod share;
mod terms;
mod unit;
mod validated;
mod warn_at;
mod windows;
