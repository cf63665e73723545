#!/usr/bin/env python3
"""Measures a list of a rule's keys (`/api/v1/usage?rule=`) on a Redis with a million, and calls during it.

    benches/usage.py [--rounds N] [--seconds S] [--rate R] [--programs DIR]

Each round loads the service at an equal rate without and during a list. It prints medians over the rounds, and fails if a list takes more than
30 s, is not complete or does not have all keys of the rule, or if p99 during it is more than 1.2 times that without. Uses only Python's
standard library, and redis-server.
"""

import json
import statistics
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from redis_servers import Single
from servers import Failed, Service, copy_rules, load, options, programs_of

KEYS = 1_000_000
LISTED = 1_000
LIST_S_MAX = 30
P99_MAX = 1.2
# Long enough for a list that is not complete.
TIMEOUT_S = 90
OF_RULE = ["--key", "calendar", "--value-prefix", "listed", "--pick", "new"]
SERVED = ["--keys", "10000"]
# Keys of another rule, a share of them per call.
SHARES = 100
FILL = "for i = 1, ARGV[2] do redis.call('SET', 'bench_user_other' .. ARGV[1] .. '-' .. i .. '_0', 1) end return 0"


def main():
    args = options(__doc__, rate=2000).parse_args()
    programs = programs_of(args.programs, "load")
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(1) as background:
        copy_rules(home)
        redis = Single("redis-server", home)
        service = Service(programs["tollgate"], home, redis.environment() | {"DRAIN_PERIOD": "0"})
        try:
            redis.start()
            service.start()
            fill(redis.servers[0], service, programs["load"])
            return report(*measure(args, service, programs["load"], background))
        finally:
            service.stop()
            redis.stop()


def fill(server, service, generator):
    load(generator, service.target, [service.pid], 1, 0, [*OF_RULE, "--rate", str(LISTED)])
    missing = LISTED - len(listed(service)[1])
    if missing:
        raise Failed(f"{missing} of {LISTED} keys of the rule are missing")
    for share in range(SHARES):
        server.ask("EVAL", FILL, "0", str(share), str((KEYS - LISTED) // SHARES))


def measure(args, service, generator, background):
    """p99 without a list and during one, and the seconds of the lists."""
    quiet, during, seconds = [], [], []
    at_rate = [*SERVED, "--rate", str(args.rate)]
    for _ in range(args.rounds):
        run = load(generator, service.target, [service.pid], args.seconds, 1, at_rate)
        quiet.append(run["latency_ms"]["p99"])
        pending = background.submit(listed, service)
        run = load(generator, service.target, [service.pid], args.seconds, 1, at_rate)
        if pending.done():
            raise Failed("the list took less time than the load; use fewer --seconds")
        during.append(run["latency_ms"]["p99"])
        took, rows = pending.result()
        if len(rows) != LISTED:
            raise Failed(f"the list has {len(rows)} of {LISTED} keys")
        seconds.append(took)
    return quiet, during, seconds


def listed(service):
    """The seconds that a list of the rule's keys takes, and its rows."""
    began = time.monotonic()
    url = service.page.replace("/metrics", "/api/v1/usage?domain=bench&rule=bench.calendar")
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        answer = json.load(response)
    if not answer["complete"]:
        raise Failed("the list is not complete")
    return time.monotonic() - began, answer["limits"]


def report(quiet, during, seconds):
    without, with_list, took = (statistics.median(values) for values in (quiet, during, seconds))
    ratio = with_list / without
    print(f"{LISTED:,} of {KEYS:,} keys: {took:.1f} s, at most {LIST_S_MAX}")
    print(f"p99 during a list {with_list:.3f} ms, without one {without:.3f} ms: {ratio:.2f} times, at most {P99_MAX}")
    return 0 if took <= LIST_S_MAX and ratio <= P99_MAX else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"usage.py: {error}")
