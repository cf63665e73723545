//! More hot counters than the table of leases has room for: the further ones are exact, and nothing
//! is lost.

use super::fleet::Fleet;
use crate::support::{Client, Code, descriptor, eventually, request, resident_peak_kib};

const COUNTERS: u64 = 100_000;
const COUNTERS_PER_REQUEST: usize = 100;
/// By these a counter is hot at once.
const HITS: u64 = 4;
/// Of each counter.
const CALLS: u64 = 3;
/// `leases_max`.
const LEASES_MAX: u64 = 65_536;
const MEMORY_MAX_KIB: u64 = 256 * 1024;

#[tokio::test]
async fn counters_beyond_leases_max_are_exact() {
    let limit = "rate_limit: {unit: year, requests_per_unit: 100_000}";
    // As long as may be, so that as many as possible are there at once.
    let fleet = Fleet::of(1, limit, ", lease: 60s").await;
    let service = &fleet.services[0];
    let mut client = service.client().await;
    let values: Vec<String> = (0..COUNTERS).map(|value| value.to_string()).collect();
    // After the first call a counter is hot, the second one takes, and the third one may use it.
    for some in values.chunks(COUNTERS_PER_REQUEST) {
        admits(&mut client, some).await;
    }
    for some in values.chunks(COUNTERS_PER_REQUEST) {
        admits(&mut client, some).await;
        admits(&mut client, some).await;
        let leases = fleet.sum("tollgate_leases");
        assert!(leases <= LEASES_MAX, "{leases}");
    }
    assert!(fleet.sum("tollgate_leases_full_total") > 0);
    assert!(fleet.hits("used") > 0);
    let peak = resident_peak_kib(service.pid());
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");

    let charged = || {
        let keys: Vec<String> = fleet.redis.command(&["KEYS", "d_key_*"]);
        let keys = keys.iter().map(String::as_str);
        let get: Vec<&str> = ["MGET"].into_iter().chain(keys).collect();
        fleet.redis.command::<Vec<u64>>(&get)
    };
    eventually("each hit is used or held", async || {
        let held = fleet.sum("tollgate_leased_hits");
        charged().iter().sum::<u64>() == COUNTERS * CALLS * HITS + held
    })
    .await;
    let exact = charged()
        .into_iter()
        .filter(|&hits| hits == CALLS * HITS)
        .count();
    assert!(exact as u64 >= COUNTERS - LEASES_MAX, "{exact}");
    let [taken, used, given_back, stranded] =
        ["taken", "used", "given_back", "stranded"].map(|event| fleet.hits(event));
    assert_eq!(stranded, 0);
    let held = fleet.sum("tollgate_leased_hits");
    assert_eq!(taken, used + given_back + held);
}

/// Calls with hits of each of these.
async fn admits(client: &mut Client, values: &[String]) {
    let mut calls = request("d", &[]);
    for value in values {
        let mut call = descriptor(&[("key", value)]);
        call.hits_addend = Some(HITS);
        calls.descriptors.push(call);
    }
    assert_eq!(client.answer(calls).await.overall_code(), Code::Ok);
}
