#!/usr/bin/env python3
"""Loads the release binary at half of saturation for minutes, injects a Redis fault every ten seconds, and checks the responses.

    benches/soak.py [--deployment single|sentinel|cluster] [--duration SECONDS] [--seed N]

Real processes: the service, its redis-servers (Sentinel: a master, a replica and three sentinels; Cluster: three masters with a replica
each), proxies in front of them, and a generator that sends grpc-timeout: 20m with every request, as Envoy does. Faults are in random
order by the seed, each kind once before any repeats, and an outage first, so that memory for outages is allocated before the comparison.

The exit status is 1 unless:

- every request that was sent was answered with OK or OVER_LIMIT, on connections that stayed open. CANCELLED is gRPC's status of a
  call whose grpc-timeout has expired, and counts as late;
- resident memory, file descriptors and threads do not grow after the first faults by more than the bounds
  below;
- at the end every Redis server is in use.

Latency is measured and reported, not checked, since it depends on the machine: percentiles, and the answers after the deadline, by the
client's clock and from when the request was sent.

It prints the effect of each kind of fault, draws docs/images/soak.svg, and writes the figures below that picture in benches/README.md.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPException

import soak_picture
from redis_servers import CLUSTER, MASTER, SENTINEL, SINGLE, Cluster, RedisError, Sentinel, Single, accepted, ask
from servers import PACKAGE, Failed, Service, load, programs_of, rules_directory, total

FAULT_EVERY_S = 10
DEADLINE_MS = 20
# Late responses are awaited, to distinguish them from lost ones.
TIMEOUT_S = 10
# After the last fault: the last ten seconds, and late responses.
GENERATOR_ENDS_S = 2 * FAULT_EVERY_S + 3 * TIMEOUT_S
SATURATION_S, SATURATION_WARMUP_S = 5, 2
# Half of the CPU of the machine, so that the effect of a fault is visible. An open loop fills batches less than the closed loop that finds
# saturation, so the rate at half load is measured.
LOAD = 0.5
# Each request has a fixed window (plain commands) and a token bucket (script).
COUNTERS = 2
KEYS = ["--key", "user,bucket", "--descriptors", str(COUNTERS), "--keys", "10000"]
SAMPLE_EVERY_S = 1
# By then the first faults have allocated the fallback counters.
WARMUP_SHARE = 0.2
# Allowed growth from the first to the second half: figure, description, format, bound. Allocators grow in steps, and connections to Redis
# may be in progress at a sample.
GROWTHS = [
    ("rss_mib", "MiB of resident memory", "{:.1f}", 8),
    ("fds", "file descriptors", "{}", 4),
    ("threads", "threads", "{}", 0),
]
# Maximum number of listed late responses.
LATE_NAMED_MAX = 5
# gRPC's status when the deadline of a call has expired.
LATE = "CANCELLED"
# Needs a complete deployment; skipped and reported if the previous fault is not repaired yet.
PLANNED = "P"
RULES = """domain: bench
descriptors:
  - key: user
    rate_limit: {{unit: minute, requests_per_unit: {limit}}}
  - key: bucket
    rate_limit: {{unit: minute, requests_per_unit: {limit}}}
    metadata: {{tollgate: {{algorithm: token_bucket, burst: 20}}}}
"""
LIMIT = 50


class Proxies:
    """The proxies of all servers, in one process."""

    def __init__(self, program):
        self.process = subprocess.Popen([program, "--stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = []

    def before(self, port):
        self.ports.append(port)
        self.send(f"before {port}")
        return int(self.process.stdout.readline())

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def all(self, fault):
        for port in self.ports:
            self.send(f"{port} {fault}")

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Scene:
    """The service, its Redis, and the faults. A fault is over when its method returns."""

    def __init__(self, redis, proxies, service, rules, chance):
        self.redis, self.proxies, self.service, self.rules, self.chance = redis, proxies, service, rules, chance
        self.reloads = 0

    def kinds(self):
        """By the letter in the picture: name and method of each fault."""
        kinds = {
            "K": ("kill -9, started again", self.killed),
            "S": ("SIGSTOP for 1 to 3 s", self.stopped),
            "D": ("replies 25 ms late for 3 s", lambda: self.broken(3, "late 25")),
            "N": ("half of the packets lost, +200 ms, for 3 s", lambda: self.broken(3, "lossy 200")),
            "R": ("connections reset in mid-reply for 2 s", self.reset),
            "H": ("half of the connections stalled for 2 s", lambda: self.broken(2, f"stall-half {self.chance.randrange(2)}")),
            "F": ("SCRIPT FLUSH", lambda: self.ask_masters("SCRIPT", "FLUSH")),
            "C": ("CLIENT KILL", lambda: self.ask_masters("CLIENT", "KILL", "TYPE", "normal")),
            "L": ("rules reloaded", self.reloaded),
        }
        if self.redis.kind != SINGLE:
            kinds[PLANNED] = ("failover as planned", self.failed_over)
        return kinds

    def victim(self):
        masters = self.redis.masters()
        return self.chance.choice(masters or self.redis.servers)

    def killed(self):
        server = self.victim()
        server.kill()
        time.sleep(self.chance.uniform(0.5, 4))
        server.start()

    def stopped(self):
        server = self.victim()
        server.signal(signal.SIGSTOP)
        try:
            time.sleep(self.chance.uniform(1, 3))
        finally:
            server.signal(signal.SIGCONT)

    def broken(self, seconds, fault):
        self.proxies.all(fault)
        try:
            time.sleep(seconds)
        finally:
            self.proxies.all("none")

    def reset(self):
        for half in range(10):
            self.broken(0.2, f"reset-half {half % 2}")

    def ask_masters(self, *words):
        for server in self.redis.masters():
            accepted(server, *words)

    def reloaded(self):
        self.reloads += 1
        write(self.rules, RULES.format(limit=LIMIT + self.reloads % 2))

    def failed_over(self):
        if self.redis.kind == SENTINEL:
            ask(int(self.redis.sentinels[0].target.rsplit(":", 1)[1]), "SENTINEL", "FAILOVER", MASTER)
            return
        replicas = [server for server in self.redis.servers if server.ask("ROLE")[0] == "slave"]
        self.chance.choice(replicas).ask("CLUSTER", "FAILOVER")

    def is_whole(self):
        """Not while a server is down."""
        try:
            return self.redis.whole()
        except (OSError, Failed, KeyError):
            return False


class Sampler:
    """Samples the service once a second, on a thread of its own."""

    def __init__(self, service, begin):
        self.service, self.begin = service, begin
        self.samples, self.ended = [], threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        number = 0
        while not self.ended.wait(max(self.begin + number * SAMPLE_EVERY_S - time.monotonic(), 0)):
            number += 1
            if self.service.process.poll() is not None:
                return
            try:
                self.samples.append(self.look())
            except (OSError, HTTPException):
                # Too busy to respond; the generator measures that.
                continue

    def look(self):
        with open(f"/proc/{self.service.pid}/status") as status:
            status = status.read()
        of = lambda name: int(re.search(rf"(?m)^{name}:\s+(\d+)", status)[1])
        fds = len(os.listdir(f"/proc/{self.service.pid}/fd"))
        page = self.service.metrics()
        return {
            "at": time.monotonic() - self.begin,
            "rss_mib": of("VmRSS") / 1024,
            "threads": of("Threads"),
            "fds": fds,
            "instead": total(page, "tollgate_store_fallbacks_total"),
            "given_up": total(page, "tollgate_store_breaker_open"),
        }

    def stop(self):
        self.ended.set()
        self.thread.join()
        return self.samples


def play(scene, duration, begin):
    """Injects faults until the end. Returns each fault with its begin and end, and the number of skipped ones."""
    faults, deck, left_out = [], ["K"], 0
    kinds = scene.kinds()
    at = FAULT_EVERY_S
    # The last ten seconds are for recovery.
    while at <= duration - FAULT_EVERY_S:
        time.sleep(max(begin + at - time.monotonic(), 0))
        if not deck:
            deck = sorted(kinds)
            scene.chance.shuffle(deck)
        letter = deck.pop()
        name, fault = kinds[letter]
        from_s = time.monotonic() - begin
        try:
            if letter == PLANNED and not scene.is_whole():
                raise RedisError("no replica can take over yet")
            fault()
            faults.append({"letter": letter, "name": name, "from": from_s, "to": time.monotonic() - begin})
            print(f"{from_s:7.1f} s  {name}", flush=True)
        except (OSError, RedisError) as error:
            left_out += 1
            print(f"{from_s:7.1f} s  {name}: left out, {error}", flush=True)
        at += FAULT_EVERY_S
    return faults, left_out


def soak(args, programs, directory):
    chance = random.Random(args.seed)
    proxies = Proxies(programs["proxy"])
    started = [proxies]
    try:
        redis = deployment(args, directory, proxies)
        started.append(redis)
        redis.start()
        rules = os.path.join(rules_directory(directory), "soak.yaml")
        write(rules, RULES.format(limit=LIMIT))
        service = Service(programs["tollgate"], directory, redis.environment() | {"LOG_LEVEL": "warn", "DRAIN_PERIOD": "0"})
        started.append(service)
        service.start()

        rate = args.rate or half_of_saturation(programs["load"], service)
        print(f"{redis.kind}: {rate:.0f} requests of two counters a second from here on", flush=True)
        command = [programs["load"], "--json", "--timeline", "--allow-errors", "--target", service.target, *KEYS]
        command += ["--rate", str(rate), "--deadline", f"{DEADLINE_MS}ms", "--timeout", f"{TIMEOUT_S}s"]
        command += ["--duration", f"{args.duration}s", "--warmup", "0s"]
        begin = time.monotonic()
        generator = subprocess.Popen([*command, "--pid", str(service.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        sampler = Sampler(service, begin)
        try:
            faults, left_out = play(Scene(redis, proxies, service, rules, chance), args.duration, begin)
            said, _ = generator.communicate(timeout=GENERATOR_ENDS_S)
        finally:
            samples = sampler.stop()
            generator.kill()
            generator.wait()
        try:
            run = json.loads(said)
        except ValueError as error:
            raise Failed(f"the generator gave no result; the service said:\n{service.said()}") from error
        if service.process.poll() is not None:
            raise Failed(f"the service has ended; it said:\n{service.said()}")
        return {"run": run, "rate": rate, "faults": faults, "left_out": left_out, "samples": samples}
    finally:
        for each in reversed(started):
            each.stop()


def half_of_saturation(generator, service):
    """The rate at which the machine, with all processes, is half busy."""
    times = [service.target, [service.pid], SATURATION_S, SATURATION_WARMUP_S]
    saturated = load(generator, *times, KEYS)["per_second"]
    began, before = time.monotonic(), busy_s()
    load(generator, *times, [*KEYS, "--rate", str(round(saturated * LOAD))])
    after, took = busy_s(), time.monotonic() - began
    busy = (after - before) / took / os.cpu_count()
    print(f"saturated at {saturated:.0f} requests a second, and with half of that busy for {busy:.0%} of the time", flush=True)
    return round(saturated * LOAD * min(LOAD / busy, 1), -2)


def busy_s():
    """CPU seconds of the machine so far."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def deployment(args, directory, proxies):
    if args.deployment == CLUSTER:
        return Cluster(args.redis_server, directory, proxies.before, replicas=1)
    return {SINGLE: Single, SENTINEL: Sentinel}[args.deployment](args.redis_server, directory, proxies.before)


def judge(found):
    """Each check, its value, and whether it passed."""
    return judge_answers(found["run"]) + judge_process(found["samples"], found["halves"])


def judge_answers(run):
    requests = run["requests"]
    errors = {name: count for name, count in requests["errors"].items() if name != LATE}
    answered = requests["ok"] + requests["over_limit"] + sum(requests["errors"].values())
    unanswered = sum(requests["unanswered"].values())
    return [
        ("sent = answered", f"{requests['sent']} = {answered}, {unanswered} unanswered", requests["sent"] == answered and not unanswered),
        ("no errors", json.dumps(errors) if errors else "none", not errors),
        ("clients' connections stay", f"{run['connections_lost']} lost", run["connections_lost"] == 0),
    ]


def highest_by_half(samples, duration):
    """The highest value of each of GROWTHS in the first and the second half of the run, without its warm-up."""
    after = [sample for sample in samples if sample["at"] >= duration * WARMUP_SHARE]
    middle = len(after) // 2
    first, second = after[:middle], after[middle:]
    if not first or not second:
        raise Failed(f"too few samples of the service: {len(samples)} times")
    return {name: [max(sample[name] for sample in part) for part in (first, second)] for name, *_ in GROWTHS}


def judge_process(samples, halves):
    verdicts = []
    for name, words, form, growth_max in GROWTHS:
        before, at_last = halves[name]
        change = f"{form.format(before)}, then {form.format(at_last)}"
        verdicts.append((f"{words} grow by {growth_max} at most", change, at_last - before <= growth_max))
    given_up = samples[-1]["given_up"]
    return [*verdicts, ("Redis is asked again at the end", f"{given_up:.0f} servers given up", given_up == 0)]


def print_latency(run):
    """Percentiles, and the answers after the deadline."""
    latency, late, requests = run["latency_ms"], run["late"], run["requests"]
    percentiles = ", ".join(f"{name} {latency[name]:.1f}" for name in ["p50", "p90", "p99", "p99.9", "max"])
    named = "".join(f", {each['took_ms']:.1f} ms at {each['at_s']:.1f} s" for each in late["shown"][:LATE_NAMED_MAX])
    print(f"\nlatency in ms, from when a request was due: {percentiles}")
    print(f"{late['count']} of {requests['sent']} answers came after {DEADLINE_MS} ms{named}")
    if LATE in requests["errors"]:
        print(f"{requests['errors'][LATE]} of them were {LATE}")
    if requests["unsent"]:
        print(f"{requests['unsent']} more requests were due and not sent: too many were under way at this rate")


def print_faults(found):
    """The effect of each kind of fault on clients, until the next one begins."""
    seconds, samples = found["run"]["timeline"], found["samples"]
    kinds = {}
    for fault in found["faults"]:
        kinds.setdefault((fault["letter"], fault["name"]), []).append(fault)
    print("\n| | fault | times | p99, longest response | fallback verdicts | the last of them after |\n|---|---|---|---|---|---|")
    for (letter, name), faults in sorted(kinds.items()):
        begins = [int(fault["from"]) for fault in faults]
        under = [second for begin in begins for second in seconds[begin : begin + FAULT_EVERY_S] if second["answered"]]
        p99 = statistics.median(second["p99_ms"] for second in under)
        longest = max(second["max_ms"] for second in under)
        instead, last = zip(*(by_policy(samples, fault) for fault in faults))
        lasted = f"{max(last):.0f} s" if any(instead) else ""
        print(f"| {letter} | {name} | {len(faults)} | {p99:.1f}, {longest:.1f} ms | {sum(instead):.0f} | {lasted} |")


def by_policy(samples, fault):
    """Number of fallback verdicts from a fault's begin to the next one, and the time of the last one after the begin."""
    within = [sample for sample in samples if fault["from"] - SAMPLE_EVERY_S <= sample["at"] < fault["from"] + FAULT_EVERY_S]
    grown = [after["at"] - fault["from"] for before, after in zip(within, within[1:]) if after["instead"] > before["instead"]]
    return (within[-1]["instead"] - within[0]["instead"] if within else 0), max(grown, default=0)


def write(path, text):
    """Replaces the file atomically."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", choices=[SINGLE, SENTINEL, CLUSTER], default=CLUSTER, help="[cluster]")
    parser.add_argument("--duration", type=int, default=600, metavar="SECONDS", help="[600]")
    parser.add_argument("--seed", type=int, default=1, help="the same seed breaks the same things at the same time [1]")
    parser.add_argument("--rate", type=float, help="requests a second [half of what a short run can do]")
    picture = os.path.join(PACKAGE, "docs", "images", "soak.svg")
    parser.add_argument("--picture", default=picture, metavar="PATH", help="with another one the docs stay as they are [docs/images/soak.svg]")
    parser.add_argument("--redis-server", default="redis-server", metavar="PROGRAM", help="[redis-server]")
    args = parser.parse_args()
    if args.duration < 6 * FAULT_EVERY_S:
        parser.error(f"--duration must be at least {6 * FAULT_EVERY_S}, of which each half has a few faults")
    # So that servers are stopped on a termination too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    programs = programs_of(None, "load", "proxy")
    with tempfile.TemporaryDirectory(prefix="tollgate-soak-") as directory:
        found = soak(args, programs, directory)
    found["halves"] = highest_by_half(found["samples"], args.duration)
    verdicts = judge(found)
    print_faults(found)
    print_latency(found["run"])
    print("\n| asked of it | found | |\n|---|---|---|")
    for asked, seen, held in verdicts:
        print(f"| {asked} | {seen} | {'held' if held else '**broken**'} |")
    if found["left_out"]:
        print(f"\n{found['left_out']} faults were left out, see above.")
    soak_picture.draw(args.picture, args.deployment, args.duration, DEADLINE_MS, found)
    if args.picture == picture:
        words = soak_picture.figures(args.deployment, args.duration, DEADLINE_MS, found)
        soak_picture.write_figures(os.path.join(PACKAGE, "benches", "README.md"), words)
    print(f"\ndrawn to {args.picture}")
    if not all(held for _, _, held in verdicts):
        raise Failed("it did not hold")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"soak: {error}")
