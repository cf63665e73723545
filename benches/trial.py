#!/usr/bin/env python3
"""Measures what a trial adds to the latency of the service in use, and its CPU.

    benches/trial.py [--rounds N] [--seconds S] [--rate R] [--in-use PATH] [--programs DIR]

Three targets are loaded in turn, at an equal rate, with the order reversed in each round:

    direct    the service in use: Tollgate on a Redis of its own, or the binary of envoyproxy/ratelimit that --in-use names
    trial     Tollgate with TRIAL_UPSTREAM in front of it, on a second Redis
    alone     Tollgate on that second Redis, for the CPU of serving from Redis

It prints medians over the rounds, and fails if a target is missed: trial less direct at most 0.3 ms at p50 and 1 ms at p99, and the CPU
per request of the trial's process at most 1.6 times that of `alone`. A round is void if a request was not answered, or if calls were not
compared. Uses only Python's standard library.
"""

import os
import statistics
import sys
import tempfile

from redis_servers import Single
from servers import Failed, Service, copy_rules, load, options, programs_of, total

P50_ADDED_MAX_MS = 0.3
P99_ADDED_MAX_MS = 1.0
CPU_MAX = 1.6
OPTIONS = ["--keys", "10000", "--connections", "8"]


def main():
    parser = options(__doc__, rate=5000)
    parser.add_argument("--in-use", metavar="PATH", help="a binary of envoyproxy/ratelimit")
    parser.add_argument("--redis", default="redis-server", metavar="PATH", help="[redis-server]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        return measure(args, programs_of(args.programs, "load"), home)


def measure(args, programs, home):
    copy_rules(home)
    first, second = (Single(args.redis, make(home, name)) for name in ("first", "second"))
    settings = {"DRAIN_PERIOD": "0"}
    in_use = Service(args.in_use or programs["tollgate"], home, first.environment() | {"BACKEND_TYPE": "redis"} | settings)
    alone = Service(programs["tollgate"], home, second.environment() | settings)
    trial = Service(programs["tollgate"], home, second.environment() | settings | {"TRIAL_UPSTREAM": in_use.target})
    started, runs = [], {"direct": [], "trial": [], "alone": []}
    targets = [("direct", in_use), ("trial", trial), ("alone", alone)]
    try:
        for server in (first, second, in_use, alone, trial):
            started.append(server)
            server.start()
        for number in range(args.rounds):
            for name, service in targets if number % 2 == 0 else reversed(targets):
                options = [*OPTIONS, "--rate", str(args.rate)]
                runs[name].append(load(programs["load"], service.target, [service.pid], args.seconds, 1, options))
        check_compared(trial, runs["trial"])
    finally:
        for server in reversed(started):
            server.stop()
    return report(runs)


def make(home, name):
    path = os.path.join(home, name)
    os.mkdir(path)
    return path


def check_compared(trial, runs):
    page = trial.metrics()
    answered = sum(part["ok"] for run in runs for part in (run["requests"], run["warmup"]))
    compared, dropped = total(page, "tollgate_trial_decisions_total"), total(page, "tollgate_trial_dropped_total")
    # Those of the last moment may still be in flight.
    if dropped or compared < 0.99 * answered:
        raise Failed(f"{compared:.0f} of {answered} calls were compared, {dropped:.0f} dropped")


def report(runs):
    def median(name, value):
        return statistics.median(value(run) for run in runs[name])

    def latency(quantile):
        return lambda run: run["latency_ms"][quantile]

    def cpu(run):
        return run["processes"][0]["cpu_us_per_request"]

    print(f"{'':<8}{'p50 ms':>10}{'p99 ms':>10}{'CPU us':>10}")
    for name in runs:
        values = median(name, latency("p50")), median(name, latency("p99")), median(name, cpu)
        print(f"{name:<8}" + "".join(f"{value:>10.3f}" for value in values))
    good = True
    for title, value, bound in [
        ("added at p50, ms", median("trial", latency("p50")) - median("direct", latency("p50")), P50_ADDED_MAX_MS),
        ("added at p99, ms", median("trial", latency("p99")) - median("direct", latency("p99")), P99_ADDED_MAX_MS),
        ("CPU of trial / alone", median("trial", cpu) / median("alone", cpu), CPU_MAX),
    ]:
        good &= value <= bound
        print(f"{title:<22}{value:>8.3f}   at most {bound}{'' if value <= bound else '   MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"trial.py: {error}")
