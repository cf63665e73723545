"""The faults of the drill: how each is caused, and what the product should report about it."""

from collections.abc import Callable
from dataclasses import dataclass

from fleet import ENVOY_TIMEOUT, FLOOD_CLIENTS, FLOOD_RATE, FLOODING_TENANT, INVALID_LINE, INVALID_REASON, INVALID_RULES, RULES_FILE


@dataclass(frozen=True)
class Nowhere:
    """The reason why a fault does not appear there."""

    reason: str


@dataclass(frozen=True)
class Fault:
    """What is caused, and what the product reports about it: patterns, in which ADDRESS is that of Redis."""

    name: str
    cause: Callable
    log: str | Nowhere
    ready: str | Nowhere
    badge: str | Nowhere
    alert: str
    # In the log, in /ready, in the badge, or in the alert.
    cure: str
    # Alerts that may fire as well. Those of SLOW_MACHINE may fire always.
    also: tuple = ()
    # The replicas that name it.
    replicas: tuple = (0, 1, 2)
    # Redis is reached through a proxy, which delays replies so long before the fault.
    redis_delay_s: float | None = None
    # Of Envoy's filter before the fault.
    envoy_timeout: str = ENVOY_TIMEOUT
    # What `tollgate top` shows.
    top: str | None = None


def redis_killed(fleet):
    fleet.redis.process.stop()


def redis_delayed(fleet):
    fleet.redis.proxy.delay_s = 0.15


def redis_blocked(fleet):
    fleet.redis.block_repeatedly(0.08, 0.1)


def rules_edited(fleet):
    fleet.publish(INVALID_RULES)


def restarted_with_invalid_rules(fleet):
    fleet.publish(INVALID_RULES)
    restart(fleet, [0], f"redis://{fleet.redis_address}")


def without_redis_url(fleet):
    restart(fleet, range(len(fleet.replicas)), None)


def restart(fleet, numbers, redis_url):
    for number in numbers:
        fleet.replicas[number].process.stop()
        fleet.replicas[number].start(redis_url)


def flood(fleet):
    fleet.load.start(FLOOD_CLIENTS, FLOOD_RATE, [FLOODING_TENANT])


def replica_killed(fleet):
    fleet.replicas[0].process.stop()


def envoy_timeout(timeout):
    return lambda fleet: fleet.start_envoy(timeout)


HEALTHY_REPLICAS = Nowhere("The replicas are healthy. `tollgate top` names the tenant after {top}")
DEAD_REPLICA = Nowhere("A dead process reports nothing, and the others answer the calls")
LOCAL_CLIENTS = Nowhere("The log has a line when the first client of another machine connects; those of the drill are on this one")
# More than 1 % of the answers take 10 ms on a busy machine.
SLOW_MACHINE = ("TollgateResponsesSlow",)
STORE_ALSO = ("TollgateFallbackVerdicts", "TollgateHeartbeatsFailing", "TollgateStoreFlapping")
SHORT_TIMEOUTS = (("Envoy's timeout is 1 ms", "0.001s", None), ("Envoy's timeout is 20 ms, and Redis needs 25 ms", "0.02s", 0.025))
FAULTS = [
    Fault(
        "Redis is killed",
        redis_killed,
        log="Redis unreachable.*ADDRESS",
        ready="ADDRESS.*unreachable",
        badge="unreachable|answered by on_store_error",
        alert="TollgateStoreNodeUnavailable",
        cure="[Cc]heck Redis|check that it runs",
        also=STORE_ALSO,
    ),
    Fault(
        "Redis answers after 150 ms",
        redis_delayed,
        log="answers? .*STORE_TIMEOUT",
        ready="answers? .*STORE_TIMEOUT",
        badge="answered by on_store_error",
        alert="TollgateStoreNodeUnavailable",
        cure="SLOWLOG",
        also=(*STORE_ALSO, "TollgateStoreRepliesLate"),
        redis_delay_s=0,
    ),
    Fault(
        "Redis is blocked for 80 of each 100 ms, and Envoy waits 50 ms",
        redis_blocked,
        log="answers in .*callers give 50 ms",
        ready="answers in .*callers give 50 ms",
        badge="answered by on_store_error",
        alert="TollgateStoreRepliesLate",
        cure="SLOWLOG",
        also=(*STORE_ALSO, "TollgateStoreNodeUnavailable", "TollgateEnvoyErrors", "TollgateEnvoyUnlimited"),
        envoy_timeout="0.05s",
    ),
    Fault(
        "Rules are edited, and invalid",
        rules_edited,
        log=f"{RULES_FILE}:{INVALID_LINE}",
        ready=f"200.*{RULES_FILE}:{INVALID_LINE}",
        badge="rules rejected",
        alert="TollgateRulesRejected",
        cure=INVALID_REASON,
    ),
    Fault(
        "A replica restarts with invalid rules",
        restarted_with_invalid_rules,
        log=f"{RULES_FILE}:{INVALID_LINE}",
        ready=f"503.*{RULES_FILE}:{INVALID_LINE}",
        badge="no rules",
        alert="TollgateNoRules",
        cure=f"tollgate check|{INVALID_REASON}",
        also=("TollgateRulesRejected", "TollgateEnvoyErrors", "TollgateEnvoyUnlimited"),
        replicas=(0,),
    ),
    Fault(
        "One tenant sends 80 % of the calls",
        flood,
        log=HEALTHY_REPLICAS,
        ready=HEALTHY_REPLICAS,
        badge=HEALTHY_REPLICAS,
        alert="TollgateRuleLimitsMore",
        cure=f"tollgate top|{FLOODING_TENANT}",
        top=FLOODING_TENANT,
    ),
    Fault(
        "REDIS_URL is missing",
        without_redis_url,
        log=LOCAL_CLIENTS,
        ready="memory|in this process",
        badge="memory|this process|REDIS_URL",
        alert="TollgateCountsInMemory",
        cure="REDIS_URL",
    ),
    *(
        Fault(
            name,
            envoy_timeout(timeout),
            log="timeout of Envoy's filter",
            ready="timeout of Envoy's filter",
            badge="answered by on_store_error",
            alert="TollgateCallerDeadlinesShort",
            cure=ENVOY_TIMEOUT,
            also=(*STORE_ALSO, "TollgateEnvoyErrors", "TollgateEnvoyUnlimited"),
            redis_delay_s=redis_delay_s,
        )
        for name, timeout, redis_delay_s in SHORT_TIMEOUTS
    ),
    Fault(
        "A replica is dead",
        replica_killed,
        log=DEAD_REPLICA,
        ready=DEAD_REPLICA,
        badge=DEAD_REPLICA,
        alert="TollgateDown",
        cure="Check the events and the log of the pod",
        also=("TollgateEnvoyErrors", "TollgateEnvoyUnlimited", "TollgateReplicasMiscounted"),
    ),
]
