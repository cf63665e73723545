#!/usr/bin/env python3
"""Compares Tollgate on Redis with envoyproxy/ratelimit on Redis and with a bare tonic server in one run; prints ratios of medians.

    benches/redis_compare.py path/to/ratelimit [--cluster] [--rounds N] [--seconds S] [-- OPTIONS OF load]

Each service has a Redis of its own, a process or with --cluster three, and both have the same rules and the same environment but for
ports. In every round each kind of load goes to one service right after the other, in turns of who is first, so that whatever else the
machine does hits both. CPU time is that of whole processes in the measured part of a load, over the requests that were answered in it;
a cluster's is the sum of its servers'.

A load counts only if every request was answered OK, and if the service asked Redis for as many counters as it answered for. One that
fails is reported, excluded from the medians, and makes the exit status 1.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import statistics
import sys
import tempfile

from redis_servers import Cluster, Single
from servers import PACKAGE, Failed, Server, Service, build, free_ports, load, plain_environment, ratio, rules_directory, total

RULES = os.path.join(PACKAGE, "benches", "rules", "bench.yaml")
KEYS = 100_000
DESCRIPTORS = 10
# Counters exist before the measurement: a new key costs Redis more, and a slow service would create more of them per round.
FILLED = 0.95
FILL_ROUNDS_MAX = 60
TOLLGATE, REFERENCE, BARE = "tollgate", "reference", "bare tonic"
IN_FLIGHT = ["--in-flight", "64"]
# One request at a time: latency and number of round trips.
ALONE = ["--in-flight", "1", "--connections", "1"]
MANY = ["--descriptors", str(DESCRIPTORS)]
BOTH = [TOLLGATE, REFERENCE]
# The loads of a round: options of `load`, and the services.
LOADS = {
    "64 in flight": (IN_FLIGHT, [TOLLGATE, REFERENCE, BARE]),
    "512 in flight": (["--in-flight", "512"], BOTH),
    "9,000 a second": (["--rate", "9000"], BOTH),
    f"{DESCRIPTORS} descriptors": (IN_FLIGHT + MANY, BOTH),
    "token bucket": ([*IN_FLIGHT, "--key", "bucket"], [TOLLGATE]),
}
LOADS_OF_CLUSTER = {
    "64 in flight": (IN_FLIGHT, BOTH),
    "token bucket": ([*IN_FLIGHT, "--key", "bucket"], [TOLLGATE]),
    f"{DESCRIPTORS} descriptors": (IN_FLIGHT + MANY, BOTH),
    "alone": (ALONE, BOTH),
    f"alone, {DESCRIPTORS}": (ALONE + MANY, BOTH),
}
# Results: description, figure, load of Tollgate, service and load to compare with, and the target. Without a target it is only reported.
AIMS = [
    ("service + Redis CPU per decision, 64 in flight", "both", "64 in flight", REFERENCE, "64 in flight", "at most", 1 / 6),
    ("Redis CPU per decision, fixed_window", "redis", "64 in flight", REFERENCE, "64 in flight", "at most", 0.3),
    ("Redis CPU per decision, token_bucket over its fixed window", "redis", "token bucket", REFERENCE, "64 in flight", "at most", 0.7),
    ("decisions per second, 64 in flight", "per second", "64 in flight", REFERENCE, "64 in flight", "at least", 4.5),
    ("decisions per second, 512 in flight", "per second", "512 in flight", REFERENCE, "512 in flight", "at least", 4.5),
    ("p99 at 9,000 a second", "p99", "9,000 a second", REFERENCE, "9,000 a second", "at most", 0.3),
    ("service + Redis CPU per request of 10 descriptors", "both", "10 descriptors", REFERENCE, "10 descriptors", "at most", 1 / 3),
    ("service CPU per decision over a bare tonic server's", "service", "64 in flight", BARE, "64 in flight", "at most", 1),
]
AIMS_OF_CLUSTER = [
    ("Redis CPU per decision, fixed_window", "redis", "64 in flight", REFERENCE, "64 in flight", "at most", 0.6),
    ("Redis CPU per decision, token_bucket over its fixed window", "redis", "token bucket", REFERENCE, "64 in flight", "reported", None),
    ("Redis CPU per request of 10 descriptors", "redis", "10 descriptors", REFERENCE, "10 descriptors", "reported", None),
    ("service CPU per decision", "service", "64 in flight", REFERENCE, "64 in flight", "reported", None),
    ("decisions per second, 64 in flight", "per second", "64 in flight", REFERENCE, "64 in flight", "reported", None),
    ("p99, 64 in flight", "p99", "64 in flight", REFERENCE, "64 in flight", "reported", None),
    # More than one read per server and request means one call per counter, or several round trips.
    ("reads by a server in a request of 10 descriptors, alone", "reads", "alone, 10", None, "", "at most", 1),
    ("the same beside the reference", "reads", "alone, 10", REFERENCE, "alone, 10", "reported", None),
    ("p50 of 10 descriptors over that of one, alone", "p50", "alone, 10", TOLLGATE, "alone", "reported", None),
    ("p50 of 10 descriptors, alone", "p50", "alone, 10", REFERENCE, "alone, 10", "reported", None),
]
# Figures of a load: title and format.
FIGURES = {
    "per second": ("per second", "{:.0f}"),
    "p50": ("p50", "{:.3f} ms"),
    "p99": ("p99", "{:.3f} ms"),
    "late": ("sent late, p99", "{:.3f} ms"),
    "service": ("service CPU", "{:.2f} µs"),
    "redis": ("Redis CPU", "{:.2f} µs"),
    "both": ("both", "{:.2f} µs"),
    "generator": ("generator CPU", "{:.2f} µs"),
    "generator share": ("of all three", "{:.0%}"),
    "elsewhere": ("others' cores", "{:.2f}"),
    "batch": ("checks a call", "{:.1f}"),
    "reads": ("reads a server", "{:.3f}"),
    "rss": ("service RSS", "{:.1f} MiB"),
}


class Side:
    """A service with its Redis."""

    def __init__(self, name, server, redis=None):
        self.name, self.server, self.redis = name, server, redis

    def start(self):
        if self.redis:
            self.redis.start()
        self.server.start()

    def stop(self):
        self.server.stop()
        if self.redis:
            self.redis.stop()

    def load(self, generator, seconds, warmup, options):
        """The figures of one load."""
        descriptors = int(options[options.index("--descriptors") + 1]) if "--descriptors" in options else 1
        servers = self.redis.servers if self.redis else []
        processes = [self.server.pid, *(server.pid for server in servers)]
        reads = [reads_of(server) for server in servers]
        known, busy = self.counts(), busy_s() - cpu_s(processes)
        run = load(generator, self.server.target, processes, seconds, warmup, options)
        new = {name: value - known[name] for name, value in self.counts().items()}
        elsewhere = busy_s() - cpu_s(processes) - busy
        reads = [reads_of(server) - before for server, before in zip(servers, reads)]

        answered = sum(run[part]["ok"] + run[part]["over_limit"] for part in ("warmup", "requests"))
        over_limit = sum(run[part]["over_limit"] for part in ("warmup", "requests"))
        if over_limit:
            raise Failed(f"{over_limit} of {answered} were OVER_LIMIT, under limits that no run reaches")
        if new.get("instead", 0):
            raise Failed(f"{new['instead']:.0f} were answered without Redis")
        if self.redis and new["asked"] < answered * descriptors:
            raise Failed(f"Redis was asked for {new['asked']:.0f} counters, and {answered * descriptors} were answered for")

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
            figures["reads"] = max(reads) / answered
        if run["sent_late_ms"]:
            figures["late"] = run["sent_late_ms"]["p99"]
        if new.get("calls"):
            figures["batch"] = new["asked"] / new["calls"]
        return figures

    def counts(self):
        """Totals so far: checks sent to Redis, calls, and fallback verdicts."""
        return {}


class Tollgate(Side):
    def __init__(self, program, rules_root, redis):
        super().__init__(TOLLGATE, Service(program, rules_root, redis.environment() | {"DRAIN_PERIOD": "0"}), redis)

    def counts(self):
        page = self.server.metrics()
        return {
            "asked": total(page, "tollgate_store_batch_checks_sum"),
            "calls": total(page, "tollgate_store_batch_checks_count"),
            "instead": total(page, "tollgate_store_fallbacks_total"),
        }


class Reference(Side):
    def __init__(self, program, rules_root, redis, settings):
        super().__init__(REFERENCE, Service(program, rules_root, redis.environment() | settings), redis)

    def counts(self):
        calls = [re.match(r"calls=(\d+)", server.info("commandstats").get("cmdstat_incrby", "calls=0")) for server in self.redis.servers]
        return {"asked": sum(int(of[1]) for of in calls)}


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


def fill(sides, generator):
    """Creates all counters with requests of many descriptors."""
    for side in sides:
        for number, key in enumerate(("user", "bucket") if side.name == TOLLGATE else ("user",), start=1):
            options = ["--keys", str(KEYS), "--key", key, "--descriptors", str(DESCRIPTORS)]
            for seed in range(FILL_ROUNDS_MAX):
                load(generator, side.server.target, [side.server.pid], 1, 0, [*options, "--seed", str(seed)])
                if side.redis.counters() >= (number - 1 + FILLED) * KEYS:
                    break
            else:
                raise Failed(f"{side.name} did not make {KEYS} counters: its Redis has {side.redis.counters()}")


def measure(args, sides, loads, generator, for_load):
    """Figures of each round by load and service, without failed loads, and the number of these."""
    found, failures = {}, 0
    shown = [name for name in FIGURES if name != "late"]
    print("round  load            side      " + "".join(f"{FIGURES[name][0]:>15}" for name in shown))
    for number in range(1, args.rounds + 1):
        for title, (options, names) in loads.items():
            for name in names if number % 2 else reversed(names):
                try:
                    same_for_all = ["--keys", str(KEYS), "--seed", str(number)]
                    figures = sides[name].load(generator, args.seconds, args.warmup, [*same_for_all, *options, *for_load])
                    row = "".join(f"{shape(key, figures):>15}" for key in shown)
                    print(f"{number:>5}  {title:<16}{name:<10}{row}", flush=True)
                except Failed as error:
                    figures, failures = None, failures + 1
                    print(f"{number:>5}  {title:<16}{name:<10}  FAILED: {error}", flush=True)
                found.setdefault((title, name), []).append(figures)
    return found, failures


def shape(name, figures):
    return FIGURES[name][1].format(figures[name]) if figures and name in figures else ""


def medians(rounds):
    values = {name: [figures[name] for figures in rounds if figures and name in figures] for name in FIGURES}
    return {name: statistics.median(of_name) for name, of_name in values.items() if of_name}


def print_aims(aims, found):
    print("\n| measure | aim | found | Tollgate | against | by round | rounds |\n|---|---|---|---|---|---|---|")
    for words, name, load_of_a, other, load_of_b, side_of_bound, bound in aims:
        ours = found[load_of_a, TOLLGATE]
        # Without a service to compare with, the target applies to the figure itself.
        theirs = found[load_of_b, other] if other else [{name: 1}] * len(ours)
        pairs = [(a[name], b[name]) for a, b in zip(ours, theirs) if a and b]
        aim = f"{side_of_bound} {bound:.3g}" if bound else side_of_bound
        if not pairs:
            print(f"| {words} | {aim} | nothing |  |  |  | 0 |")
            continue
        a, b = (statistics.median(values) for values in zip(*pairs))
        value, by_round = ratio(a, b), [ratio(*pair) for pair in pairs]
        met = {"at most": lambda: value <= bound, "at least": lambda: value >= bound}.get(side_of_bound)
        verdict = "" if met is None else ", met" if met() else ", **missed**"
        form = FIGURES[name][1]
        against = f"{form.format(b)}, {other}" + (f", {load_of_b}" if other == TOLLGATE else "") if other else ""
        print(
            f"| {words} | {aim} | {value:.3f}{verdict} | {form.format(a)} "
            f"| {against} | {min(by_round):.3f} to {max(by_round):.3f} | {len(pairs)} |"
        )


def print_medians(found):
    print("\nMedians. CPU time is per request; others' cores are those that neither service, nor Redis, nor generator kept busy.\n")
    print("| load | side | " + " | ".join(title for title, _ in FIGURES.values()) + " |\n" + "|---" * (len(FIGURES) + 2) + "|")
    for (title, side), rounds in found.items():
        of_load = medians(rounds)
        print(f"| {title} | {side} | " + " | ".join(shape(name, of_load) for name in FIGURES) + " |")


def main():
    options, for_load = sys.argv[1:], []
    if "--" in options:
        at = options.index("--")
        options, for_load = options[:at], options[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", metavar="RATELIMIT", help="the reference's binary")
    parser.add_argument("--rounds", type=int, default=5, help="loads of each kind per service [5]")
    parser.add_argument("--seconds", type=float, default=4, help="measured part of a load [4]")
    parser.add_argument("--warmup", type=float, default=1, help="seconds of load before it [1]")
    parser.add_argument("--cluster", action="store_true", help="on clusters of three servers, without replicas")
    parser.add_argument(
        "--reference-setting", action="append", default=[], metavar="NAME=VALUE", help="for the reference alone, beside its defaults"
    )
    parser.add_argument("--redis-server", default="redis-server", metavar="PROGRAM", help="[redis-server]")
    args = parser.parse_args(options)
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds must be at least 1, and --seconds above 0")
    settings = dict(setting.partition("=")[::2] for setting in args.reference_setting)
    loads, aims = (LOADS_OF_CLUSTER, AIMS_OF_CLUSTER) if args.cluster else (LOADS, AIMS)
    # So that servers are stopped on a termination too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    programs = build("load", "bare_server")
    sides = {}
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as directory:
        shutil.copy(RULES, rules_directory(directory))
        redis = lambda: (Cluster if args.cluster else Single)(args.redis_server, directory)
        try:
            for side in (
                Tollgate(programs["tollgate"], directory, redis()),
                Reference(os.path.abspath(args.reference), directory, redis(), settings),
                Side(BARE, bare_server(programs["bare_server"])),
            ):
                if not any(side.name in names for _, names in loads.values()):
                    continue
                sides[side.name] = side
                side.start()
                words = [*(f"{name}={value}" for name, value in settings.items() if side.name == REFERENCE), shlex.join(side.server.words)]
                on = f", Redis {side.redis.kind} on {side.redis.url}" if side.redis else ""
                print(f"{side.name}: {' '.join(words)} on {side.server.target}{on}")
            version = next(iter(sides.values())).redis.servers[0].info("server")["redis_version"]
            rounds = f"rounds of {args.seconds:g} s after {args.warmup:g} s"
            print(f"Redis {version}, {os.cpu_count()} cores, {KEYS} keys, {rounds}\n", flush=True)
            fill([side for side in sides.values() if side.redis], programs["load"])
            found, failures = measure(args, sides, loads, programs["load"], for_load)
        finally:
            for side in sides.values():
                side.stop()
    print_aims(aims, found)
    print_medians(found)
    if failures:
        raise Failed(f"{failures} of the loads failed, see above; they are in no median")


def bare_server(program):
    target = f"127.0.0.1:{free_ports(1)[0]}"
    return Server([program, "--listen", target], plain_environment(), target)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"redis_compare: {error}")
