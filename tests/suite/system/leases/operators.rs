//! Counters with leases that an operator resets, or grants hits of.

use serde_json::{Value, json};

use crate::support::{PATIENCE, TestServer, eventually, http};
use crate::system::leases::fleet::{Fleet, leased, per_year};

const LIMIT: u64 = 3_000;
const TOKEN: &str = "s3cret-of-admins";

fn act(service: &TestServer, action: &str, body: &Value) {
    let headers = [http::bearer(TOKEN)];
    let path = format!("/api/v1/counters/{action}");
    let reply = http::post_with(&headers, service.admin, &path, &body.to_string());
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// Unused hits of a value, by service.
fn held(fleet: &Fleet, value: &str) -> Vec<u64> {
    let path = format!("/api/v1/counters?domain=d&e=key%3D{value}");
    let of = |service: &TestServer| service.admin_json(&path)["leased"].as_u64().expect("a count");
    fleet.services.iter().map(of).collect()
}

#[tokio::test]
async fn reset_and_grant_change_the_leases_of_one_counter() {
    let rules = leased(&per_year(LIMIT), ", lease: 60s");
    let fleet = Fleet::with_rules(3, &rules, &[("ADMIN_TOKEN", TOKEN)]).await;
    for value in ["hot", "other"] {
        let admitted = fleet.in_turn(value, 100).await;
        assert_eq!(admitted, 300);
        eventually("no take is in flight", async || {
            fleet.used(value) == admitted + held(&fleet, value).iter().sum::<u64>()
        })
        .await;
        assert!(held(&fleet, value).iter().all(|held| *held > 0), "{value}");
    }
    let (dropped, kept) = (held(&fleet, "hot").iter().sum::<u64>(), held(&fleet, "other"));

    act(&fleet.services[0], "reset", &json!({"domain": "d", "descriptor": [["key", "hot"]]}));
    eventually("leases of the counter are dropped", async || {
        fleet.sum("tollgate_lease_stranded_hits_total{cause=\"dropped\"}") == dropped
    })
    .await;
    let admitted = fleet.use_up("hot").await;
    assert!((LIMIT..=LIMIT + LIMIT / 10).contains(&admitted), "{admitted}");

    let granted = 500;
    act(
        &fleet.services[0],
        "grant",
        &json!({"domain": "d", "descriptor": [["key", "hot"]], "hits": granted}),
    );
    let passes = async {
        let mut admitted = 0;
        while admitted < granted {
            admitted += fleet.in_turn("hot", 1).await;
        }
        admitted
    };
    let admitted = tokio::time::timeout(PATIENCE, passes).await;
    let admitted = admitted.expect("all that is granted passes") + fleet.use_up("hot").await;
    assert!((granted..=granted + LIMIT / 10).contains(&admitted), "{admitted}");
    assert_eq!(held(&fleet, "other"), kept);
}
