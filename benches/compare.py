#!/usr/bin/env python3
"""Compares two rate limit services in one run: starts both, loads them in turn, prints the ratio of the medians.

Timings on a shared machine vary by half from one run to the next, and little within a few seconds. So rounds alternate (A B, B A, A B,
...), and what counts is A over B, not the figures by themselves. Each load is a run of `load`; options after `--` go to it.

    benches/compare.py --a 'tollgate serve' --a-target 127.0.0.1:8081 \\
                       --b 'bare_server --listen 127.0.0.1:8091' --b-target 127.0.0.1:8091 -- --pick zipf

The words `tollgate`, `bare_server` and `load` at the beginning of a command mean this package's programs, which cargo builds first
unless --load names a generator that is ready. Variables may precede a command, as in a shell: 'PORT=8071 tollgate serve'.

Needs nothing but Python's standard library. Exit status: 0, or 1 if a server did not come up or a load was not answered in full.
"""

import argparse
import json
import os
import re
import shlex
import signal
import statistics
import sys

from servers import Failed, Server, load, programs_of, ratio, split_options

# What is compared: title, format, and where it is in load's JSON.
FIGURES = [
    ("cpu us/request", "{:.2f}", lambda run: run["cpu_us_per_request"]),
    ("per second", "{:.0f}", lambda run: run["per_second"]),
    ("p50 ms", "{:.3f}", lambda run: run["latency_ms"]["p50"]),
    ("p99 ms", "{:.3f}", lambda run: run["latency_ms"]["p99"]),
]


class Side(Server):
    """One of the two servers."""

    def __init__(self, name, command, target, others, programs):
        words = shlex.split(command)
        environment = dict(os.environ)
        while words and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", words[0]):
            environment.update([words.pop(0).split("=", 1)])
        if not words:
            raise Failed(f"side {name} has no command")
        super().__init__([programs.get(words[0], words[0])] + words[1:], environment, target)
        self.name, self.others, self.runs = name, others, []

    def load(self, generator, seconds, warmup, options):
        try:
            run = load(generator, self.target, [self.pid, *self.others], seconds, warmup, options)
        except Failed as error:
            raise Failed(f"side {self.name}: {error}") from error
        self.runs.append(run)
        return run


def compare(sides, args, generator, options):
    titles = "".join(f"{title:>16}" for title, _, _ in FIGURES)
    print(f"{'round':<10}{titles}")
    for number in range(1, args.rounds + 1):
        for side in sides if number % 2 else reversed(sides):
            run = side.load(generator, args.seconds, args.warmup, options)
            row = "".join(f"{form.format(value(run)):>16}" for _, form, value in FIGURES)
            print(f"{number:>3} {side.name:<6}{row}", flush=True)
    print()
    a, b = sides
    summary = {}
    for title, form, value in FIGURES:
        of_a, of_b = [value(run) for run in a.runs], [value(run) for run in b.runs]
        median_a, median_b = statistics.median(of_a), statistics.median(of_b)
        by_round = [ratio(x, y) for x, y in zip(of_a, of_b)]
        summary[title] = {"a": median_a, "b": median_b, "a_over_b": ratio(median_a, median_b)}
        print(
            f"{title:<16}A {form.format(median_a):>9}   B {form.format(median_b):>9}   "
            f"A/B {ratio(median_a, median_b):.3f}  (by round {min(by_round):.3f} to {max(by_round):.3f})"
        )
    return summary


def main():
    options, for_load = split_options(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in "ab":
        parser.add_argument(f"--{side}", required=True, metavar="COMMAND", help=f"starts server {side.upper()}")
        parser.add_argument(f"--{side}-target", required=True, metavar="HOST:PORT", help="where it will listen")
        parser.add_argument(
            f"--{side}-pid", type=int, action="append", default=[], metavar="PID", help="counts this running process with it, a Redis say"
        )
    parser.add_argument("--rounds", type=int, default=5, help="loads per server [5]")
    parser.add_argument("--seconds", type=float, default=4, help="measured part of a load [4]")
    parser.add_argument("--warmup", type=float, default=1, help="seconds of load before it [1]")
    parser.add_argument("--load", metavar="PATH", help="a generator that is built already")
    parser.add_argument("--json", action="store_true", help="prints the medians and ratios once more, as JSON, last")
    args = parser.parse_args(options)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    # So that servers are stopped on a termination too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    programs = {"load": args.load} if args.load else programs_of(None, "load", "bare_server")
    sides = []
    try:
        sides.append(Side("A", args.a, args.a_target, args.a_pid, programs))
        sides.append(Side("B", args.b, args.b_target, args.b_pid, programs))
        for side in sides:
            side.start()
            print(f"{side.name} is {shlex.join(side.words)} (pid {side.pid})")
        summary = compare(sides, args, programs["load"], for_load)
    finally:
        for side in sides:
            side.stop()
    if args.json:
        print(json.dumps(summary))


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"compare: {error}")
