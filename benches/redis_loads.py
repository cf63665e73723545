"""The loads of redis_compare.py, and what is compared: the rows of its table, and the targets on a cluster."""

from dataclasses import dataclass, field

from sides import OK, OVER_LIMIT

TOLLGATE, REFERENCE, BARE = "tollgate", "reference", "bare tonic"
TOLLGATE_CACHED, REFERENCE_CACHED = "tollgate, cache", "reference, cache"
TOLLGATE_MEMORY = "tollgate, memory"
# The same binary, whose requests reach other rules.
TOLLGATE_OTHER = "tollgate, other"
BOTH = (TOLLGATE, REFERENCE)
SELF = (TOLLGATE, TOLLGATE_OTHER)
KEYS = 100_000
FLOOD_KEYS = 1_000
DESCRIPTORS = 10


@dataclass(frozen=True)
class Load:
    """Options of `load`, and those of one service. `{round}` is the number of the round."""

    options: list
    sides: tuple = BOTH
    of_side: dict = field(default_factory=dict)
    expected: str = OK
    # Counters of a request, where each descriptor has not exactly one.
    counters: int = None
    # Share of requests that may miss their deadline: they fail, or are answered without Redis.
    late_max: float = 0
    # Counters that exist before the measurement: a new key costs Redis more, and a slow service would create more of them per round.
    existing: tuple = ("user", KEYS)
    # Whether some of its requests must be decided by leases.
    leases: bool = False
    # Removes its counters from Redis afterwards, so that the loads that follow find the same keys in every round.
    removes: bool = False


@dataclass(frozen=True)
class Row:
    """A row of the table: one service beside another in a load. A target is a bound, and None where there is none."""

    title: str
    load: str
    ours: str = TOLLGATE
    theirs: str = REFERENCE
    # CPU of the reference, Redis included, over that of Tollgate.
    ratio_min: float = None
    # Tollgate's over the reference's.
    redis_max: float = None
    p99_max: float = None
    # CPU of Tollgate's process over that of the bare server, or of Tollgate with other rules.
    service_max: float = None


UNIFORM = ["--keys", str(KEYS)]
CLOSED = [*UNIFORM, "--in-flight", "64"]
BUCKET = ["--key", "bucket"]
ONE = ["--in-flight", "64", "--pick", "one"]
ZIPF = ["--pick", "zipf", "--zipf-exponent", "1.1"]
OPEN = ["--rate", "5000", "--deadline", "20ms"]


def leased(key="leased"):
    """Tollgate's key, where the reference counts fixed windows of another one."""
    return {TOLLGATE: ["--key", key]}


def beside(keys, separate):
    """Tollgate's descriptor with several limits, where another Tollgate has a descriptor for each."""
    return {
        TOLLGATE: ["--key", keys],
        TOLLGATE_OTHER: ["--domain", "bench-separate", "--key", separate, "--descriptors", str(len(separate.split(",")))],
    }


LOADS = {
    "uniform": Load(CLOSED, (*BOTH, BARE)),
    "uniform-512": Load([*UNIFORM, "--in-flight", "512"]),
    "new-keys": Load(["--in-flight", "64", "--pick", "new", "--value-prefix", "new{round}-"], existing=None, removes=True),
    "zipf": Load([*CLOSED, *ZIPF]),
    "one-key": Load(ONE, existing=None),
    "flood": Load(
        ["--in-flight", "64", "--key", "flood", "--keys", str(FLOOD_KEYS)],
        (*BOTH, TOLLGATE_CACHED, REFERENCE_CACHED),
        expected=OVER_LIMIT,
        existing=("flood", FLOOD_KEYS),
    ),
    "ten-descriptors": Load([*CLOSED, "--descriptors", str(DESCRIPTORS)]),
    "token-bucket": Load(CLOSED, of_side={TOLLGATE: BUCKET}, existing=("bucket", KEYS)),
    "open-5000": Load([*UNIFORM, *OPEN], late_max=0.01),
    "open-2000": Load([*UNIFORM, "--rate", "2000"]),
    "leased-one-key": Load(ONE, (*BOTH, BARE), leased(), existing=None, leases=True),
    "leased-zipf": Load([*CLOSED, *ZIPF], of_side=leased(), existing=("leased", KEYS), leases=True),
    "leased-zipf-8s": Load([*CLOSED, *ZIPF], of_side=leased("leased-8s"), existing=("leased-8s", KEYS), leases=True),
    "leased-bucket": Load(ONE, of_side=leased("leased-bucket"), existing=None, leases=True),
    "leased-flood": Load([*ONE, "--key", "leased-flood"], expected=OVER_LIMIT, existing=("leased-flood", 1), leases=True),
    "leased-open-one": Load(["--pick", "one", *OPEN], of_side=leased(), existing=None, late_max=0.01, leases=True),
    "leased-open-zipf": Load([*UNIFORM, *ZIPF, *OPEN], of_side=leased(), existing=("leased", KEYS), late_max=0.01, leases=True),
    "leased-uniform": Load(CLOSED, of_side=leased(), existing=("leased", KEYS)),
    "leased-open-uniform": Load([*UNIFORM, *OPEN], of_side=leased(), existing=("leased", KEYS), late_max=0.01),
    "three-levels": Load(CLOSED, SELF, beside("org+team+member", "org,org+team,org+team+member"), counters=3, existing=None),
    "three-limits": Load(CLOSED, SELF, beside("plan", "plan-hour,plan-day,plan-month"), counters=3, existing=None),
    "calendar": Load(CLOSED, SELF, {TOLLGATE: ["--key", "calendar"], TOLLGATE_OTHER: ["--key", "window"]}, existing=None),
    "memory": Load(CLOSED, (TOLLGATE_MEMORY, BARE), existing=None),
}
ROWS = [
    Row("uniform keys, 64 in flight", "uniform", ratio_min=7.5),
    Row("uniform keys, 512 in flight", "uniform-512", ratio_min=7.5),
    Row("new keys, 64", "new-keys", ratio_min=7.5),
    Row("Zipf 1.1, 64", "zipf", ratio_min=8, redis_max=0.13),
    Row("one key, 64", "one-key", ratio_min=9, redis_max=0.07),
    Row("flood over limit, 64", "flood"),
    Row("flood, Tollgate with the over-limit cache", "flood", ours=TOLLGATE_CACHED, ratio_min=10),
    Row("flood, both with it", "flood", ours=TOLLGATE_CACHED, theirs=REFERENCE_CACHED, ratio_min=6),
    Row("10 descriptors, 64", "ten-descriptors", ratio_min=3.8),
    Row("token bucket, 64 (reference: fixed window)", "token-bucket", ratio_min=5, redis_max=0.55),
    Row("5,000/s, open loop, grpc-timeout 20 ms", "open-5000", ratio_min=3.8, p99_max=0.3),
    Row("2,000/s, open loop", "open-2000", ratio_min=2.7, redis_max=0.9),
    Row("leased: one key, 64", "leased-one-key", ratio_min=13, redis_max=0.01),
    Row("leased: one key, 64, service alone, against bare tonic", "leased-one-key", theirs=BARE, service_max=0.55),
    Row("leased: Zipf 1.1, 64", "leased-zipf", ratio_min=11, redis_max=0.065),
    Row("leased: Zipf 1.1, 64, `lease: 8s`", "leased-zipf-8s", ratio_min=11, redis_max=0.06),
    Row("leased: token bucket, one key, 64 (reference: fixed window)", "leased-bucket", redis_max=0.02),
    Row("leased: flood over limit, one key, 64", "leased-flood", redis_max=0.02),
    Row("leased: 5,000/s, open loop, one key", "leased-open-one", ratio_min=3.8, p99_max=0.1),
    Row("leased: 5,000/s, open loop, Zipf 1.1", "leased-open-zipf", ratio_min=3.0),
    Row("leased: uniform keys, 64", "leased-uniform"),
    Row("leased: 5,000/s, open loop, uniform keys", "leased-open-uniform"),
    Row("three levels with `parents`, against three descriptors", "three-levels", theirs=TOLLGATE_OTHER, service_max=0.7, redis_max=1),
    Row("three `limits`, against three descriptors", "three-limits", theirs=TOLLGATE_OTHER, service_max=0.7, redis_max=1),
    Row("day of a `calendar`, against one of UTC", "calendar", theirs=TOLLGATE_OTHER, service_max=1.02, redis_max=1.02),
    Row("memory store, uniform keys, 64, against bare tonic", "memory", ours=TOLLGATE_MEMORY, theirs=BARE, service_max=0.65),
    Row("Redis store, service alone, against bare tonic", "uniform", theirs=BARE, service_max=0.8),
]

# One request at a time: latency and number of round trips.
ALONE = [*UNIFORM, "--in-flight", "1", "--connections", "1"]
LOADS_OF_CLUSTER = {
    "uniform": Load(CLOSED),
    "token-bucket": Load([*CLOSED, *BUCKET], (TOLLGATE,), existing=("bucket", KEYS)),
    "ten-descriptors": LOADS["ten-descriptors"],
    "alone": Load(ALONE),
    "alone-ten": Load([*ALONE, "--descriptors", str(DESCRIPTORS)]),
}
# On a cluster: description, figure, load of Tollgate, service and load to compare with, and the most it may be. Without that it is only
# reported.
AIMS_OF_CLUSTER = [
    ("Redis CPU per decision, fixed_window", "redis", "uniform", REFERENCE, "uniform", 0.6),
    ("Redis CPU per decision, token_bucket over its fixed window", "redis", "token-bucket", REFERENCE, "uniform", None),
    ("Redis CPU per request of 10 descriptors", "redis", "ten-descriptors", REFERENCE, "ten-descriptors", None),
    ("service CPU per decision", "service", "uniform", REFERENCE, "uniform", None),
    ("decisions per second, 64 in flight", "per second", "uniform", REFERENCE, "uniform", None),
    ("p99, 64 in flight", "p99", "uniform", REFERENCE, "uniform", None),
    # More than one read per server and request means one call per counter, or several round trips.
    ("reads by a server in a request of 10 descriptors, alone", "reads", "alone-ten", None, "", 1),
    ("the same beside the reference", "reads", "alone-ten", REFERENCE, "alone-ten", None),
    ("p50 of 10 descriptors over that of one, alone", "p50", "alone-ten", TOLLGATE, "alone", None),
    ("p50 of 10 descriptors, alone", "p50", "alone-ten", REFERENCE, "alone-ten", None),
]
