//! The overview of the console beside Envoy's counters: both say what callers got.

use crate::e2e::env::http::Request;
use crate::e2e::env::{Env, Outcome};

/// A rule of each kind. /unknown has none.
const RULES: &str = "
domain: web
descriptors:
  - {key: path, value: /limited, descriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 4}}]}
  - {key: path, value: /beta, descriptors: [{key: remote_address, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - key: path
    value: /cheap
    descriptors:
      - key: remote_address
        rate_limit: {unit: day, requests_per_unit: 1}
        metadata: {tollgate: {on_limit: degrade}}
  - {key: path, value: /quota, descriptors: [{key: remote_address, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}]}
  - {key: path, value: /free, descriptors: [{key: remote_address, rate_limit: {unlimited: true}}]}
";
const PATHS: [&str; 6] = ["/limited", "/beta", "/cheap", "/quota", "/free", "/unknown"];
/// Of each path.
const REQUESTS: u64 = 10;

#[test]
fn share_over_limit_is_that_of_envoy() {
    for env in Env::with_every_store("envoy.yaml") {
        let env = env.with_rules("web.yaml", RULES).start();
        for _ in 0..REQUESTS {
            for path in PATHS {
                env.send(Request::get(path));
            }
        }
        // What clients got is what Envoy counted.
        let [ok, over] = [Outcome::Passed, Outcome::OverLimit].map(|outcome| env.seen(outcome));
        assert_eq!([ok, over], [46, 14]);
        env.assert_verdicts(ok, over);
        let page = env.tollgate.server().admin("/");
        let (_, tile) = page.split_once("<dt>Over limit</dt>").expect("the overview has its tile");
        let tile = tile.split("<dt").next().unwrap_or_default();
        let figure = tile.split('>').nth(1).unwrap_or_default();
        let figure = figure.split(" %").next().unwrap_or_default();
        let shown: f64 = figure.parse().unwrap_or_else(|_| panic!("a percentage: {tile}"));
        let [over, all] = [over, ok + over].map(|count| u32::try_from(count).map(f64::from));
        let envoys = 100.0 * over.expect("few") / all.expect("few");
        assert!((shown - envoys).abs() <= 1.0, "{shown} % is shown, Envoy has {envoys} %: {tile}");
        for admitted in ["shadow 9", "degrade 9"] {
            assert!(tile.contains(admitted), "{admitted}: {tile}");
        }
        assert!(page.contains("no rule for this value of path"), "{page}");
    }
}
