//! Redis breaks in every way it is known to, under load: every call gets an answer before its deadline, from the policy of its rule, no
//! more is let through than that policy says, and a moment after Redis is well again it counts.
//!
//! What is done to Redis is done to a real one, or to the bytes on their way to it, while clients of four rules keep calling, each rule
//! with another policy (`support/scene.rs`). A sleep here is how long something is broken, and never the passing of a window: those are a
//! year long. What befalls several servers that belong together is in `topology_faults.rs`.

use std::thread;
use std::time::Duration;

use crate::support::look_until;
use crate::support::proxy::Fault;
use crate::support::redis::RedisProcess;
use crate::support::scene::{AWAY, FOREIGN, REFUSING, SLOW, Scene, Single, UNREACHABLE};
use crate::support::traffic::Traffic;

#[test]
fn killed() {
    Scene::direct().that_forgets().under_load(
        AWAY,
        |scene| {
            scene.servers.redis.kill();
            thread::sleep(AWAY);
            scene.servers.redis.restart();
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(UNREACHABLE);
        },
    );
}

#[test]
fn stopped_for_a_second() {
    stopped_for(AWAY);
}

#[test]
fn stopped_for_half_a_minute() {
    stopped_for(Duration::from_secs(30));
}

fn stopped_for(away: Duration) {
    Scene::direct().under_load(
        away,
        |scene| {
            scene.servers.redis.stop();
            thread::sleep(away);
            scene.servers.redis.cont();
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(UNREACHABLE);
        },
    );
}

/// Longer than a caller waits, and not as long as STORE_TIMEOUT: nobody's verdict comes in time, and Redis is not away.
#[test]
fn every_reply_25_ms_late() {
    let long = AWAY * 3;
    Scene::proxied().under_load(
        long,
        |scene| {
            scene.proxy().set(Fault::Delay(Duration::from_millis(25)));
            thread::sleep(long);
            scene.proxy().set(Fault::None);
        },
        |report| {
            report.was_answered_by_policy();
            assert!(report.said.log.iter().any(|line| line.contains(SLOW)), "{:?}", report.said);
            report.may_be_told(SLOW);
        },
    );
}

#[test]
fn half_of_the_connections_reset_in_mid_reply() {
    Scene::proxied().under_load(
        AWAY,
        |scene| {
            let opened = scene.proxy().opened();
            // Whoever is reset ends up in the other half.
            for half in 0..10 {
                scene.proxy().set(Fault::ResetHalf(half % 2));
                thread::sleep(AWAY / 10);
            }
            assert!(scene.proxy().opened() >= opened + 5, "they were opened again {} times", scene.proxy().opened() - opened);
            scene.proxy().set(Fault::None);
        },
        |report| {
            report.may_be_told(UNREACHABLE);
        },
    );
}

#[test]
fn a_reply_cut_in_half() {
    Scene::proxied().under_load(
        AWAY,
        |scene| {
            for _ in 0..5 {
                scene.proxy().cut_next(1);
                look_until("a reply is cut", || scene.proxy().cuts_left() == 0);
                thread::sleep(AWAY / 10);
            }
        },
        |report| {
            report.may_be_told(UNREACHABLE);
        },
    );
}

#[test]
fn restarted_empty() {
    Scene::direct().that_forgets().under_load(
        AWAY,
        |scene| scene.servers.redis.restart(),
        |report| {
            report.may_be_told(UNREACHABLE);
        },
    );
}

/// No client notices.
#[test]
fn its_scripts_flushed() {
    Scene::direct().under_load(
        AWAY,
        |scene| {
            for _ in 0..10 {
                scene.servers.redis.command::<()>(&["SCRIPT", "FLUSH"]);
                thread::sleep(AWAY / 10);
            }
        },
        |report| {
            report.was_answered_by_redis(4);
            assert!(report.told().is_empty() || report.is_excused(), "{:?}", report.said);
        },
    );
}

#[test]
fn its_password_changed() {
    let redis = RedisProcess::builder().with_user("user app on >right ~* &* +@all").start();
    Scene::of(redis, &[("REDIS_AUTH", "app:right")]).under_load(
        AWAY,
        |scene| {
            scene.servers.redis.command::<()>(&["ACL", "SETUSER", "app", "resetpass", ">other"]);
            // Who is in stays in.
            scene.servers.redis.command::<usize>(&["CLIENT", "KILL", "USER", "app"]);
            thread::sleep(AWAY);
            scene.servers.redis.command::<()>(&["ACL", "SETUSER", "app", "resetpass", ">right"]);
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(UNREACHABLE);
        },
    );
}

#[test]
fn out_of_memory() {
    Scene::direct().under_load(
        AWAY,
        |scene| {
            scene.servers.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
            thread::sleep(AWAY);
            scene.servers.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(REFUSING);
        },
    );
}

#[test]
fn a_replica_of_a_master_that_is_gone() {
    Scene::direct().under_load(
        AWAY,
        |scene| {
            // Port 1 is nobody's.
            scene.servers.redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
            thread::sleep(AWAY);
            scene.servers.redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        },
        |report| {
            report.was_answered_by_policy();
            report.is_told(REFUSING);
        },
    );
}

/// The policy of one key answers, and nobody else's verdict changes.
#[test]
fn a_wrong_type_at_one_key() {
    Scene::direct().that_forgets().under_load(
        AWAY,
        |scene| {
            let keys: Vec<String> = scene.servers.redis.command(&["KEYS", &format!("d_error_{}-*", scene.play)]);
            let key = keys.first().expect("somebody has asked").clone();
            // In one step: it is in use.
            let script = "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')";
            scene.servers.redis.command::<()>(&["EVAL", script, "1", &key]);
            thread::sleep(AWAY);
            scene.servers.redis.command::<usize>(&["DEL", &key]);
        },
        |report| {
            report.was_answered_by_redis(3);
            assert!(report.said.other[3] > 0, "{:?}", report.said);
            report.is_told(FOREIGN);
        },
    );
}

#[test]
fn outage_after_outage_leaves_nothing_behind() {
    Scene::proxied().leaves_nothing_behind(2, break_in_every_way);
}

/// One outage of each kind, each as long as it takes to be noticed.
fn break_in_every_way(scene: &mut Scene<Single>) {
    type Step = fn(&mut Scene<Single>);
    let faults: [(Step, Step); 4] = [
        (|scene| scene.servers.redis.kill(), |scene| scene.servers.redis.restart()),
        (|scene| scene.servers.redis.stop(), |scene| scene.servers.redis.cont()),
        (|scene| scene.proxy().set(Fault::Refuse), |scene| scene.proxy().set(Fault::None)),
        (|scene| scene.proxy().set(Fault::Stall), |scene| scene.proxy().set(Fault::None)),
    ];
    for (break_it, mend_it) in faults {
        let traffic = Traffic::to(&scene.server, &[scene.options("local", AWAY / 2)]);
        break_it(scene);
        scene.wait_until_redis_does_not_count();
        mend_it(scene);
        scene.wait_until_redis_counts();
        let [seen] = traffic.finish();
        seen.has_no_error_but(&[]);
    }
}
