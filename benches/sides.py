"""The services that redis_compare.py compares, and the figures of a load. Uses only Python's standard library."""

import os

from servers import Failed, Server, Service, free_ports, load, plain_environment, total

DOMAIN = "bench"
OK, OVER_LIMIT = "OK", "OVER_LIMIT"
# The sum of the fixed windows at keys of a pattern, and the number of keys.
SUM_OF_COUNTERS = """
local cursor, sum, count = '0', 0, 0
repeat
    local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 10000)
    cursor = page[1]
    for _, key in ipairs(page[2]) do
        sum = sum + (tonumber(redis.pcall('GET', key)) or 0)
        count = count + 1
    end
until cursor == '0'
return {sum, count}
"""
# SCAN may return a key twice and skips none that exists throughout, so a key is removed as often as it is found.
REMOVE_COUNTERS = """
local cursor = '0'
repeat
    local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
    cursor = page[1]
    if #page[2] > 0 then redis.call('UNLINK', unpack(page[2])) end
until cursor == '0'
return 0
"""


class Side:
    """A service, and the Redis that it counts on, if any."""

    def __init__(self, name, server, redis=None):
        self.name, self.server, self.redis = name, server, redis

    def load(self, generator, seconds, warmup, options, of_load):
        """The figures of one load. It fails if the service did not decide each request by Redis, or did not answer as expected."""
        expected, late_max = of_load.expected, of_load.late_max
        descriptors = int(value_of(options, "--descriptors", 1))
        servers = self.redis.servers if self.redis else []
        processes = [self.server.pid, *(server.pid for server in servers)]
        reads = [reads_of(server) for server in servers]
        known, busy = self.counts(options), busy_s() - cpu_s(processes)
        run = load(generator, self.server.target, processes, seconds, warmup, options, late_max)
        elsewhere = busy_s() - cpu_s(processes) - busy
        reads = [reads_of(server) - before for server, before in zip(servers, reads)]
        new = {name: value - known[name] for name, value in self.counts(options).items()}

        parts = [run[part] for part in ("warmup", "requests")]
        answered = {OK: sum(part["ok"] for part in parts), OVER_LIMIT: sum(part["over_limit"] for part in parts)}
        decided = sum(answered.values())
        if answered[expected] < decided:
            raise Failed(f"{decided - answered[expected]} of {decided} were not {expected}")
        asked = decided * (of_load.counters or descriptors)
        if new.get("fallbacks", 0) > late_max * asked:
            raise Failed(f"{new['fallbacks']:.0f} of {asked} were answered without Redis")
        if "told" in new and new["told"] + new.get("cached", 0) < (1 - late_max) * asked:
            raise Failed(f"Redis counted {new['told']:.0f} hits, and {asked} were answered")

        if is_leased(options) and "leased" in new:
            from_leases = new["leased"] + new["cached"]
            if of_load.leases and from_leases == 0:
                raise Failed("no request was decided by a lease")
            run["from_leases"] = from_leases / asked

        service, *redis = [process["cpu_us_per_request"] for process in run["processes"]]
        cpu, own = service + sum(redis), run["generator_cpu_us_per_request"]
        figures = {
            "per second": run["per_second"],
            "p50": run["latency_ms"]["p50"],
            "p99": run["latency_ms"]["p99"],
            "service": service,
            "both": cpu,
            "generator": own,
            "generator share": own / (cpu + own),
            "elsewhere": max(elsewhere / (run["seconds"] + warmup), 0),
            "rss": run["processes"][0]["resident_kib"] / 1024,
        }
        if redis:
            figures["redis"] = sum(redis)
            figures["reads"] = max(reads) / decided
        if run["sent_late_ms"]:
            figures["late"] = run["sent_late_ms"]["p99"]
        if run["late"]:
            figures["overdue"] = run["late"]["count"]
        if "from_leases" in run:
            figures["leased"] = run["from_leases"]
        if new.get("calls"):
            figures["batch"] = new["checks"] / new["calls"]
        return figures

    def counts(self, options):
        """Totals so far. Hits are read from the counters of Redis, which count commands with several hits as such."""
        return {}

    def hits(self, options):
        """Hits in Redis of the counters that a load asks for: they are fixed windows."""
        return sum(server.ask("EVAL", SUM_OF_COUNTERS, "0", pattern_of(options))[0] for server in self.redis.servers)

    def counters(self, options):
        """How many of them there are."""
        return sum(server.ask("EVAL", SUM_OF_COUNTERS, "0", pattern_of(options))[1] for server in self.redis.servers)

    def remove(self, options):
        """Removes them."""
        for server in self.redis.servers if self.redis else []:
            server.ask("EVAL", REMOVE_COUNTERS, "0", pattern_of(options))


class Tollgate(Side):
    """Tollgate; without a Redis it counts in memory."""

    def __init__(self, name, program, rules_root, redis=None, settings=None):
        environment = (redis.environment() if redis else {}) | {"DRAIN_PERIOD": "0"} | (settings or {})
        super().__init__(name, Service(program, rules_root, environment), redis)

    def counts(self, options):
        if not self.redis:
            return {}
        page = self.server.metrics()
        counts = {
            "checks": total(page, "tollgate_store_batch_checks_sum"),
            "calls": total(page, "tollgate_store_batch_checks_count"),
            "fallbacks": total(page, "tollgate_store_fallbacks_total"),
            "cached": total(page, "tollgate_over_limit_cache_hits_total") + total(page, "tollgate_lease_held_answers_total"),
            "leased": total(page, "tollgate_rule_lease_hits_total", 'event="used"'),
        }
        if is_leased(options):
            return counts | {"told": counts["checks"] + counts["leased"]}
        # A bucket's value is no number of hits.
        return counts | {"told": counts["checks"] if is_bucket(options) else self.hits(options)}


class Reference(Side):
    """envoyproxy/ratelimit."""

    def __init__(self, name, program, rules_root, redis, settings):
        super().__init__(name, Service(program, rules_root, redis.environment() | settings), redis)
        self.has_cache = "LOCAL_CACHE_SIZE_IN_BYTES" in settings

    def counts(self, options):
        # How many verdicts its cache gave is in no total that can be compared.
        return {} if self.has_cache else {"told": self.hits(options)}


def bare_server(name, program):
    """A tonic server with a constant response."""
    target = f"127.0.0.1:{free_ports(1)[0]}"
    return Side(name, Server([program, "--listen", target], plain_environment(), target))


def is_bucket(options):
    return value_of(options, "--key", "user").endswith("bucket")


def is_leased(options):
    return value_of(options, "--key", "user").startswith("leased")


def pattern_of(options):
    """The Redis keys of the counters that a load asks for."""
    # Keys of counters begin with the first entry.
    firsts = [key.split("+")[0] for key in value_of(options, "--key", "user").split(",")]
    key = firsts[0] if len(set(firsts)) == 1 else os.path.commonprefix(firsts) + "*"
    parts = [value_of(options, "--domain", DOMAIN), key, value_of(options, "--value-prefix", "u")]
    # Tollgate has its own format for what envoyproxy/ratelimit does not count.
    return f"*{'?'.join(parts)}*"


def value_of(options, name, default):
    return options[options.index(name) + 1] if name in options else default


def reads_of(server):
    """Number of reads on its connections; this query is one of thousands."""
    return int(server.info("stats")["total_reads_processed"])


def cpu_s(pids):
    """CPU time of these processes, and of this one with its finished children (the generator)."""
    ticks = 0
    for pid in (*pids, "self"):
        with open(f"/proc/{pid}/stat") as stat:
            ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_s():
    """CPU time of the whole machine, steal included."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
