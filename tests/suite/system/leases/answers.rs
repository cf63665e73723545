//! Compares answers of leased rules with those of exact ones.

use std::collections::BTreeMap;

use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse;

/// Asserts that answers are equal, but what remains may differ by so much, and seconds by one,
/// since a second may begin between two calls.
#[track_caller]
pub(super) fn assert_equal(
    leased: RateLimitResponse,
    exact: RateLimitResponse,
    remaining_within: u64,
    what: &str,
) {
    let what = format!("{what}: {leased:?} instead of {exact:?}");
    let (leased_numbers, leased) = take_numbers(leased);
    let (exact_numbers, exact) = take_numbers(exact);
    assert_eq!(leased, exact, "{what}");
    for (name, exact) in exact_numbers {
        let differs_by = leased_numbers[&name].abs_diff(exact);
        let is_remaining = name.ends_with("emaining");
        let most = if is_remaining { remaining_within } else { 1 };
        assert!(differs_by <= most, "{what}: {name}");
    }
}

/// Takes the numbers out of a response that may differ.
fn take_numbers(mut response: RateLimitResponse) -> (BTreeMap<String, u64>, RateLimitResponse) {
    let mut numbers = BTreeMap::new();
    for header in &mut response.response_headers_to_add {
        if let Ok(number) = header.value.parse() {
            numbers.insert(header.key.clone(), number);
            header.value.clear();
        }
    }
    for (index, status) in response.statuses.iter_mut().enumerate() {
        let remaining = std::mem::take(&mut status.limit_remaining);
        numbers.insert(format!("{index} remaining"), remaining.into());
        if let Some(reset) = status.duration_until_reset.take() {
            let seconds = u64::try_from(reset.seconds).expect("it is not negative");
            numbers.insert(format!("{index} reset"), seconds);
        }
    }
    (numbers, response)
}
