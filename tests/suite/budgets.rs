//! Several limits on one descriptor on one Redis: exact on any number of replicas, and on a cluster.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio::runtime;

use crate::races::{SERVICES, race};
use crate::support::cluster::ClusterProcess;
use crate::support::counting::answered_by_redis;
use crate::support::fault::Servers as _;
use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually, request};

mod features;

const LEVELS: &str = "
domain: d
descriptors:
  - key: org
    rate_limit: {unit: year, requests_per_unit: 60}
    descriptors:
      - key: team
        rate_limit: {unit: year, requests_per_unit: 35}
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 20}
            metadata: {tollgate: {parents: true}}
";
/// Of a user, a team and the organization.
const LIMITS: [u64; 3] = [20, 35, 60];
const ROUNDS: usize = 40;
const CALLS: usize = 4;

/// What is counted of each list of entries.
type Counts = BTreeMap<Vec<String>, u64>;

/// The hits of all counters of a Redis, by the values of their entries.
fn counts(redis: &RedisProcess) -> Counts {
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    let values = keys.into_iter().map(|key| {
        // `d_org_1_team_2_START`, or in one slot `tg:{d:org:1}:team:2:fixed_window:…`.
        let entries = key.replace(['{', '}'], "").replace("tg:", "").replace('_', ":");
        let parts: Vec<&str> = entries.split(':').collect();
        let names = ["org", "team", "user"];
        let values = parts.windows(2).filter(|part| names.contains(&part[0]));
        let values = values.map(|part| part[1].to_owned()).collect();
        (values, redis.command(&["GET", &key]))
    });
    values.collect()
}

/// Waits until a service has verdicts of all servers, without counting.
async fn ready(service: &TestServer) {
    let mut client = service.client().await;
    eventually("all servers give verdicts", async || {
        for round in 0..ROUNDS {
            let mut peek = request("d", &[&[("org", &round.to_string())]]);
            peek.descriptors[0].hits_addend = Some(0);
            if client.call(peek).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
}

/// More calls than any level admits: 96 of each round, 48 of a team and 24 of a user.
fn race_of_levels(settings: &[(&'static str, String)]) -> Vec<usize> {
    let start = || answered_by_redis(TestServer::with_rules(LEVELS), settings).start();
    let services: Vec<TestServer> = (0..SERVICES).map(|_| start()).collect();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    runtime.block_on(join_all(services.iter().map(ready)));
    race(&services, ROUNDS, CALLS, |call| {
        let [org, team, user] =
            [call.round, call.client % 2, call.client / 2 % 2].map(|number| number.to_string());
        request("d", &[&[("org", &org), ("team", &team), ("user", &user)]])
    })
}

fn assert_levels(counts: &Counts, granted: &[usize]) {
    for (round, granted) in granted.iter().enumerate() {
        let org = vec![round.to_string()];
        assert_eq!((counts[&org], *granted as u64), (60, 60), "round {round}");
    }
    for (entries, used) in counts {
        let most = LIMITS[3 - entries.len()];
        assert!(*used <= most, "{entries:?}: {used} of {most}");
        let below = counts
            .iter()
            .filter(|(other, _)| other.len() == entries.len() + 1 && other.starts_with(entries));
        let sum: u64 = below.map(|(_, used)| used).sum();
        assert!(entries.len() == 3 || sum == *used, "{entries:?}: {used}, and {sum} below");
    }
    assert_eq!(counts.len(), granted.len() * (1 + 2 + 4));
}

#[test]
fn no_level_exceeds_its_limit_and_each_equals_the_sum_below() {
    let redis = RedisProcess::start();
    let granted = race_of_levels(&[("REDIS_URL", redis.url())]);
    assert_levels(&counts(&redis), &granted);
}

#[test]
fn levels_are_exact_on_a_cluster_in_one_slot() {
    let cluster = ClusterProcess::start();
    let granted = race_of_levels(&cluster.settings());
    let mut all = Counts::new();
    for number in 0..cluster.len() {
        all.extend(counts(cluster.server(number)));
    }
    assert_levels(&all, &granted);
    let keys: Vec<String> = (0..cluster.len())
        .flat_map(|number| cluster.server(number).command::<Vec<String>>(&["KEYS", "*"]))
        .collect();
    let slots: BTreeMap<&str, Vec<u16>> = keys.iter().fold(BTreeMap::new(), |mut slots, key| {
        let org = &key[..key.find('}').expect("a hash tag")];
        slots.entry(org).or_insert_with(Vec::new).push(cluster.slot_of(key));
        slots
    });
    for (org, slots) in slots {
        assert!(slots.iter().all(|slot| *slot == slots[0]), "{org}: {slots:?}");
    }
}
