//! Calendar months in UTC, in seconds since the Unix epoch.
//!
//! Days are converted as in Howard Hinnant's "chrono-compatible low-level date algorithms": a year
//! begins on March 1, so that a leap day is the last day of its year and no month needs a table.
//!
//! ```text
//! day of the year    0    31    61    92   122   153   184   214   245   275   306   337
//! month              Mar   Apr   May   Jun   Jul   Aug   Sep   Oct   Nov   Dec   Jan   Feb
//! ```

const SECS_PER_DAY: u64 = 86_400;
/// Days from March 1 of year 0 to January 1, 1970.
const DAYS_TO_EPOCH: u64 = 719_468;
/// Days of 400 years, after which leap years repeat.
const DAYS_PER_ERA: u64 = 146_097;
const YEARS_PER_ERA: u64 = 400;
const MONTHS_PER_YEAR: u64 = 12;
/// Months from January of year 0 to January 1970.
const MONTHS_TO_EPOCH: u64 = 1_970 * MONTHS_PER_YEAR;

/// The calendar month that a second lies in, as the number of months since January 1970.
pub const fn month_of(secs: u64) -> u64 {
    let days = secs / SECS_PER_DAY + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    // January and February belong to the year before. A month is counted from January of year 0,
    // which has index 0.
    (era * YEARS_PER_ERA + year_of_era) * MONTHS_PER_YEAR + months_since_march + 2 - MONTHS_TO_EPOCH
}

/// The first second of a month that [`month_of`] returned, or of the one after it.
pub const fn month_start(month: u64) -> u64 {
    let months = month + MONTHS_TO_EPOCH - 2;
    let (year, months_since_march) = (months / MONTHS_PER_YEAR, months % MONTHS_PER_YEAR);
    let (era, year_of_era) = (year / YEARS_PER_ERA, year % YEARS_PER_ERA);
    let day_of_year = (153 * months_since_march + 2) / 5;
    let day_of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * DAYS_PER_ERA + day_of_era - DAYS_TO_EPOCH) * SECS_PER_DAY
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::*;

    /// The last second of the year 9999, up to which humantime formats.
    const SECS_MAX: u64 = 253_402_300_799;

    fn date(secs: u64) -> String {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(secs)).to_string()
    }

    /// The month that a second lies in, as a library formats it.
    fn month_by_library(secs: u64) -> u64 {
        let date = date(secs);
        let number = |part: &str| part.parse::<u64>().expect("a number");
        (number(&date[..4]) - 1970) * 12 + number(&date[5..7]) - 1
    }

    #[test]
    fn months_start_and_end_where_the_calendar_says() {
        for (within, starts, next) in [
            (
                "1970-01-01T00:00:00Z",
                "1970-01-01T00:00:00Z",
                "1970-02-01T00:00:00Z",
            ),
            (
                "2024-02-29T23:59:59Z",
                "2024-02-01T00:00:00Z",
                "2024-03-01T00:00:00Z",
            ),
            (
                "2026-02-28T23:59:59Z",
                "2026-02-01T00:00:00Z",
                "2026-03-01T00:00:00Z",
            ),
            (
                "2100-02-28T12:00:00Z",
                "2100-02-01T00:00:00Z",
                "2100-03-01T00:00:00Z",
            ),
            (
                "2000-02-29T12:00:00Z",
                "2000-02-01T00:00:00Z",
                "2000-03-01T00:00:00Z",
            ),
            (
                "2026-12-31T23:59:59Z",
                "2026-12-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
            ),
            (
                "2027-01-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
                "2027-02-01T00:00:00Z",
            ),
            (
                "2026-08-31T00:00:00Z",
                "2026-08-01T00:00:00Z",
                "2026-09-01T00:00:00Z",
            ),
            (
                "2026-04-30T23:59:59Z",
                "2026-04-01T00:00:00Z",
                "2026-05-01T00:00:00Z",
            ),
        ] {
            let time = humantime::parse_rfc3339(within)
                .expect("a date")
                .duration_since(UNIX_EPOCH)
                .expect("after 1970");
            let month = month_of(time.as_secs());
            assert_eq!(
                (date(month_start(month)), date(month_start(month + 1))),
                (starts.to_owned(), next.to_owned()),
                "{within}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_month_contains_its_seconds_and_is_the_one_a_library_names(secs in 0..SECS_MAX) {
            let month = month_of(secs);
            let (start, end) = (month_start(month), month_start(month + 1));
            prop_assert_eq!(month, month_by_library(secs));
            prop_assert!(start <= secs && secs < end, "{} in {}..{}", secs, start, end);
            let secs_in_month = end - start;
            prop_assert!((28..=31).contains(&(secs_in_month / SECS_PER_DAY)));
            prop_assert_eq!(secs_in_month % SECS_PER_DAY, 0);
            prop_assert_eq!(month_of(start), month);
            prop_assert_eq!(month_of(end - 1), month);
            prop_assert_eq!(month_of(end), month + 1);
        }
    }
}
