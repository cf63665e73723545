//! What befalls servers that belong together, and what befalls one that only several servers, clocks or files can show: under load, and
//! with the promises of every fault (`support/scene.rs`).
//!
//! Where Redis mends itself, by a failover, it is well again when it says so itself; from then on the service has a second.

use std::fs;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::cluster::ClusterProcess;
use crate::support::look_until;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::RedisProcess;
use crate::support::scene::{AWAY, Report, Scene, Servers, Single, UNREACHABLE};
use crate::support::sentinel::SentinelProcess;

/// How long a failover of the tests' Sentinel or Cluster takes, more or less.
const FAILOVER: Duration = Duration::from_secs(3);
/// How long packets are lost: long enough that a connection is given up.
const LOSSY: Duration = Duration::from_secs(3);
/// The node of a cluster that something befalls. With replicas, the one of its own is three further on.
const NODE: usize = 1;

fn behind_sentinel() -> Scene<SentinelProcess> {
    // What the replica had not been told is lost.
    Scene::new(SentinelProcess::start(), &[]).that_forgets()
}

fn on_cluster_with_replicas() -> Scene<ClusterProcess> {
    Scene::new(ClusterProcess::builder().with_replicas(1).start(), &[]).that_forgets()
}

fn on_cluster_that_serves_what_it_has() -> Scene<ClusterProcess> {
    Scene::new(ClusterProcess::builder().with_arguments(&["--cluster-require-full-coverage", "no"]).start(), &[]).that_forgets()
}

#[test]
fn sentinel_fails_over_to_a_replica() {
    behind_sentinel().under_load(
        AWAY,
        |scene| scene.servers.fail_over(),
        |report| {
            report.each_is_told_at_most_once();
        },
    );
}

#[test]
fn the_master_of_sentinel_is_killed() {
    behind_sentinel().under_load(
        FAILOVER,
        |scene| {
            let master = scene.servers.master_by_name().expect("they agree");
            scene.servers.master_mut().kill();
            scene.servers.wait_until_replaced(master);
        },
        |report| {
            report.was_answered_by_policy();
            report.one_is_told_to_be_away();
        },
    );
}

#[test]
fn a_node_with_a_replica_is_killed() {
    on_cluster_with_replicas().under_load(
        FAILOVER,
        |scene| {
            let node = scene.servers.a_master_with_a_replica();
            scene.servers.server_mut(node).kill();
            scene.servers.wait_until_replaced(node);
        },
        |report| {
            report.was_answered_by_policy();
            report.one_is_told_to_be_away();
        },
    );
}

#[test]
fn a_node_with_a_replica_is_stopped() {
    on_cluster_with_replicas().under_load(
        FAILOVER,
        |scene| {
            let node = scene.servers.a_master_with_a_replica();
            scene.servers.server(node).stop();
            scene.servers.wait_until_replaced_by_all_but(node);
            // It wakes up as a master, and hears that it is none.
            scene.servers.server(node).cont();
            scene.servers.wait_until_replaced(node);
        },
        |report| {
            report.was_answered_by_policy();
            report.one_is_told_to_be_away();
        },
    );
}

#[test]
fn a_node_without_a_replica_is_killed_and_comes_back() {
    on_cluster_that_serves_what_it_has().under_load(
        AWAY,
        |scene| {
            scene.servers.server_mut(NODE).kill();
            thread::sleep(AWAY);
            scene.servers.server_mut(NODE).restart();
            scene.servers.wait_until_whole();
        },
        |report| {
            report.was_answered_by_policy();
            report.each_is_told_at_most_once();
        },
    );
}

#[test]
fn a_node_without_a_replica_is_stopped_for_a_second() {
    on_cluster_that_serves_what_it_has().under_load(
        AWAY,
        |scene| {
            scene.servers.server(NODE).stop();
            thread::sleep(AWAY);
            scene.servers.server(NODE).cont();
            scene.servers.wait_until_whole();
        },
        |report| {
            report.was_answered_by_policy();
            report.each_is_told_at_most_once();
        },
    );
}

/// The nodes see each other: nothing fails over, and what lives on the others is counted all the while.
#[test]
fn a_partition_between_the_service_and_one_node() {
    let cluster = ClusterProcess::builder().behind_proxies().start();
    Scene::new(cluster, &[]).under_load(
        AWAY,
        |scene| {
            scene.servers.proxy(NODE).set(Fault::Stall);
            thread::sleep(AWAY);
            scene.servers.proxy(NODE).set(Fault::None);
        },
        |report| {
            report.was_answered_by_policy();
            report.one_is_told_to_be_away();
        },
    );
}

/// Only what lives on it suffers.
#[test]
fn half_of_the_packets_to_one_node_lost_and_200_ms_to_and_fro() {
    let cluster = ClusterProcess::builder().behind_proxies().start();
    Scene::new(cluster, &[]).under_load(
        LOSSY,
        |scene| loses_packets(scene.servers.proxy(NODE)),
        |report| {
            report.was_answered_by_policy();
            report.one_is_told_to_be_away();
        },
    );
}

/// No client notices.
#[test]
fn slots_are_moved() {
    Scene::new(ClusterProcess::start(), &[]).under_load(
        AWAY * 2,
        |scene| {
            let keys = scene.servers.keys("d_*");
            let mut slots: Vec<u16> = keys.iter().map(|key| scene.servers.slot_of(key)).collect();
            slots.truncate(100);
            slots.dedup();
            for slot in slots {
                scene.servers.migrate(slot);
            }
        },
        |report| {
            report.was_answered_by_redis(4);
            assert!(report.told().is_empty() || report.is_excused(), "{:?}", report.said);
        },
    );
}

#[test]
fn half_of_the_packets_lost_and_200_ms_to_and_fro() {
    Scene::proxied().under_load(
        LOSSY,
        |scene| loses_packets(scene.proxy()),
        |report| {
            report.was_answered_by_policy();
            // A connection that is lucky now and then is a slow one.
            report.one_is_told_to_be_away();
        },
    );
}

fn loses_packets(proxy: &Proxy) {
    proxy.set(Fault::Lossy(Duration::from_millis(200)));
    thread::sleep(LOSSY);
    proxy.set(Fault::None);
}

/// It reads what it kept, a key each ms, and says so to whoever asks meanwhile.
#[test]
fn loading() {
    let redis = RedisProcess::builder().with_arguments(&["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]);
    let redis = redis.start();
    let fill = "for number = 1, 1500 do redis.call('SET', 'ballast ' .. number, string.rep('x', 50)) end";
    redis.command::<()>(&["EVAL", fill, "0"]);
    Scene::of(redis, &[]).under_load(
        AWAY * 2,
        |scene| {
            scene.servers.redis.shut_down();
            scene.servers.redis.restart();
        },
        |report| {
            report.was_answered_by_policy();
            let told = report.said.ready.iter().any(|line| line.contains("loading"));
            assert!(told || report.is_excused(), "what it is doing is told: {:?}", report.said);
            report.each_is_told_at_most_once();
        },
    );
}

#[test]
fn a_password_is_rotated() {
    rotated(Single::direct(RedisProcess::start()));
}

#[test]
fn a_password_of_sentinels_servers_is_rotated() {
    rotated(SentinelProcess::start());
}

#[test]
fn a_password_of_a_clusters_nodes_is_rotated() {
    rotated(ClusterProcess::start());
}

/// First Redis knows both passwords, then the service learns the new one, and then the old one is gone, with all who came by it.
fn rotated(servers: impl Servers) {
    let calls_under_way_max = 8 * servers.all().len() as u64;
    with_a_password_in_a_file(
        servers,
        |scene, file| {
            set_user(&scene.servers, &[&format!(">second{}", scene.play)]);
            write_password(file, scene.play);
            // As long as an operator would give it, at the least.
            thread::sleep(AWAY);
            set_user(&scene.servers, &["resetpass", &format!(">second{}", scene.play)]);
            hang_up(&scene.servers);
        },
        |report| {
            let are_few = report.said.other.iter().all(|verdicts| *verdicts <= calls_under_way_max);
            assert!(are_few || report.is_excused(), "those under way when connections were killed: {:?}", report.said);
            report.each_is_told_at_most_once();
        },
    );
}

/// Redis knows the new password before the service does.
#[test]
fn a_password_is_changed_before_the_service_is_told() {
    with_a_password_in_a_file(
        Single::direct(RedisProcess::start()),
        |scene, file| {
            set_user(&scene.servers, &["resetpass", &format!(">second{}", scene.play)]);
            hang_up(&scene.servers);
            thread::sleep(AWAY);
            write_password(file, scene.play);
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(UNREACHABLE);
        },
    );
}

/// A service that knows its password from a file, and what is done to both.
fn with_a_password_in_a_file<S: Servers>(servers: S, fault: impl Fn(&mut Scene<S>, &TempDir), this_one: impl Fn(&Report)) {
    set_user(&servers, &["on", ">second0", "~*", "&*", "+@all"]);
    let file = TempDir::new().expect("a temporary directory can be made");
    write_password(&file, 0);
    let path = file.path().join("auth").display().to_string();
    Scene::new(servers, &[("REDIS_AUTH_FILE", &path)]).under_load(AWAY, |scene| fault(scene, &file), this_one);
}

/// Changes the user that the service is.
fn set_user(servers: &impl Servers, rules: &[&str]) {
    for redis in servers.all() {
        redis.command::<()>(&[&["ACL", "SETUSER", "app"], rules].concat());
    }
}

/// Closes its connections.
fn hang_up(servers: &impl Servers) {
    for redis in servers.all() {
        redis.command::<usize>(&["CLIENT", "KILL", "USER", "app"]);
    }
}

/// As most tools do it: a new file takes the place of the old one.
fn write_password(directory: &TempDir, number: u32) {
    let (new, file) = (directory.path().join("new"), directory.path().join("auth"));
    fs::write(&new, format!("app:second{number}\n")).expect("a file can be written");
    fs::rename(new, file).expect("both are in one directory");
}

#[test]
fn who_waits_for_a_cluster_that_comes_late_is_answered_by_policy_until_then() {
    let mut cluster = ClusterProcess::start();
    for number in 0..3 {
        cluster.server_mut(number).kill();
    }
    let mut scene = Scene::new(cluster, &[]);
    scene.wait_until_redis_does_not_count();
    look_until("the log says so", || scene.server.log().contains("WARN"));
    for number in 0..3 {
        scene.servers.server_mut(number).restart();
    }
    scene.servers.wait_until_whole();
    scene.wait_until_redis_counts();
}
