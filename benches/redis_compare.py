#!/usr/bin/env python3
"""Compares Tollgate with envoyproxy/ratelimit, and with a bare tonic server, in one run; prints a table of ratios and their targets.

    benches/redis_compare.py path/to/ratelimit [--only LOAD]... [--rounds N] [--seconds S] [--programs DIR] [--cluster] [-- OPTIONS OF load]

Each service has a Redis of its own, a process or with --cluster three, and both have the same rules and the same environment but for
ports. In every round each load goes to one service right after the other, in turns of who is first, so that whatever else the machine
does hits both. CPU time is that of whole processes in the measured part of a load, over the requests that were answered in it; a
cluster's is the sum of its servers'.

A load counts only if every request was answered as expected, and if Redis counted as many hits as were answered. One that fails is
reported, excluded from the medians, and makes the exit status 1. A target that is missed does not.
"""

import argparse
import os
import shlex
import signal
import statistics
import sys
import tempfile

from redis_loads import (
    AIMS_OF_CLUSTER,
    BARE,
    DESCRIPTORS,
    LOADS,
    LOADS_OF_CLUSTER,
    REFERENCE,
    REFERENCE_CACHED,
    TOLLGATE,
    TOLLGATE_CACHED,
    TOLLGATE_MEMORY,
    TOLLGATE_OTHER,
)
from redis_servers import Cluster, Single
from redis_table import headlines, table, write_pages
from servers import Failed, copy_rules, load, programs_of, ratio, split_options
from sides import Reference, Tollgate, bare_server

PROGRAMS = ("tollgate", "load", "bare_server")
# How many of the existing counters there are at least.
FILLED = 0.95
FILL_ROUNDS_MAX = 60
OVER_LIMIT_CACHE = {"LOCAL_CACHE_SIZE_IN_BYTES": str(1 << 20)}
# Figures of a load: title and format.
FIGURES = {
    "per second": ("per second", "{:.0f}"),
    "p50": ("p50", "{:.3f} ms"),
    "p99": ("p99", "{:.3f} ms"),
    "late": ("sent late, p99", "{:.3f} ms"),
    "overdue": ("overdue", "{:.0f}"),
    "service": ("service CPU", "{:.2f} µs"),
    "redis": ("Redis CPU", "{:.2f} µs"),
    "both": ("both", "{:.2f} µs"),
    "generator": ("generator CPU", "{:.2f} µs"),
    "generator share": ("of all three", "{:.0%}"),
    "elsewhere": ("others' cores", "{:.2f}"),
    "batch": ("checks a call", "{:.1f}"),
    "reads": ("reads a server", "{:.3f}"),
    "leased": ("from leases", "{:.1%}"),
    "rss": ("service RSS", "{:.1f} MiB"),
}
# Only in the medians.
RARE = ("late", "overdue")


def main():
    args, for_load = arguments()
    loads = LOADS_OF_CLUSTER if args.cluster else LOADS
    if args.only:
        loads = {name: loads[name] for name in loads if name in args.only}
    # So that servers are stopped on a termination too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    programs = programs_of(args.programs, "load", "bare_server")
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as directory:
        copy_rules(directory)
        sides, deployments = compared(args, programs, directory, {name for load in loads.values() for name in load.sides})
        try:
            for server in (*deployments, *(side.server for side in sides.values())):
                server.start()
            machine = announce(args, sides, deployments)
            fill(sides, loads.values(), programs["load"])
            found, failures = measure(args, sides, loads, programs["load"], for_load)
        finally:
            for server in (*(side.server for side in sides.values()), *deployments):
                server.stop()
    print_medians(found)
    if args.cluster:
        print_aims(AIMS_OF_CLUSTER, found)
    else:
        lines = table(found, machine)
        first = [] if args.only else headlines(found, machine)
        print("", *lines, "", *first, sep="\n")
    if failures:
        raise Failed(f"{failures} of the loads failed, see above; they are in no median")
    if args.write:
        write_pages(lines, first)


def arguments():
    options, for_load = split_options(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", metavar="RATELIMIT", help="the reference's binary")
    parser.add_argument("--only", action="append", default=[], metavar="LOAD", help=f"of {', '.join(LOADS)}; repeated for several")
    parser.add_argument("--rounds", type=int, default=5, help="loads of each kind per service [5]")
    parser.add_argument("--seconds", type=float, default=4, help="measured part of a load [4]")
    parser.add_argument("--warmup", type=float, default=1, help="seconds of load before it [1]")
    parser.add_argument("--programs", metavar="DIR", help=f"with {', '.join(PROGRAMS)}, which are built otherwise")
    parser.add_argument("--write", action="store_true", help="writes the table into docs/performance.md and three figures into README.md as well")
    parser.add_argument("--cluster", action="store_true", help="on clusters of three servers, without replicas")
    parser.add_argument(
        "--reference-setting", action="append", default=[], metavar="NAME=VALUE", help="for the reference alone, beside its defaults"
    )
    parser.add_argument("--redis-server", default="redis-server", metavar="PROGRAM", help="[redis-server]")
    args = parser.parse_args(options)
    if args.write and (args.only or args.cluster):
        parser.error("--write needs all loads, on a single Redis")
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds must be at least 1, and --seconds above 0")
    known = LOADS_OF_CLUSTER if args.cluster else LOADS
    if unknown := set(args.only) - set(known):
        parser.error(f"unknown load {', '.join(sorted(unknown))}; loads are {', '.join(known)}")
    return args, for_load


def compared(args, programs, directory, names):
    """The services with these names, and the Redis deployments that they need."""
    deployment = Cluster if args.cluster else Single
    ours, theirs = (deployment(args.redis_server, directory) for _ in range(2))
    settings = dict(setting.partition("=")[::2] for setting in args.reference_setting)
    reference, tollgate = os.path.abspath(args.reference), programs["tollgate"]
    all_sides = [
        Tollgate(TOLLGATE, tollgate, directory, ours),
        Tollgate(TOLLGATE_CACHED, tollgate, directory, ours, OVER_LIMIT_CACHE),
        Tollgate(TOLLGATE_MEMORY, tollgate, directory),
        Tollgate(TOLLGATE_OTHER, tollgate, directory, ours),
        Reference(REFERENCE, reference, directory, theirs, settings),
        Reference(REFERENCE_CACHED, reference, directory, theirs, settings | OVER_LIMIT_CACHE),
        bare_server(BARE, programs["bare_server"]),
    ]
    sides = {side.name: side for side in all_sides if side.name in names}
    return sides, [redis for redis in (ours, theirs) if any(side.redis is redis for side in sides.values())]


def announce(args, sides, deployments):
    """Prints what is compared, and returns the line about the machine."""
    for side in sides.values():
        settings = args.reference_setting if side.name in (REFERENCE, REFERENCE_CACHED) else []
        on = f", Redis {side.redis.kind} on {side.redis.url}" if side.redis else ""
        print(f"{side.name}: {' '.join([*settings, shlex.join(side.server.words)])} on {side.server.target}{on}")
    version = f"Redis {deployments[0].servers[0].info('server')['redis_version']}, " if deployments else ""
    rounds = f"{args.rounds} round{'s' if args.rounds > 1 else ''} of {args.seconds:g} s after {args.warmup:g} s"
    machine = f"{version}{os.cpu_count()} cores, {rounds}"
    print(f"{machine}\n", flush=True)
    return machine


def fill(sides, loads, generator):
    """Creates the counters that exist before a load, with requests of many descriptors."""
    wanted = {(side, *load.existing) for load in loads if load.existing for side in load.sides if sides[side].redis}
    for side, key, count in sorted(wanted):
        # The reference counts fixed windows where Tollgate has buckets.
        key = "user" if key == "bucket" and isinstance(sides[side], Reference) else key
        options = ["--key", key, "--keys", str(count), "--descriptors", str(DESCRIPTORS)]
        for seed in range(FILL_ROUNDS_MAX):
            if sides[side].counters(options) >= FILLED * count:
                break
            load(generator, sides[side].server.target, [sides[side].server.pid], 1, 0, [*options, "--seed", str(seed)])
        else:
            raise Failed(f"{side} did not make {count} counters of {key}: its Redis has {sides[side].counters(options)}")


def measure(args, sides, loads, generator, for_load):
    """Figures of each round by load and service, without failed loads, and the number of these."""
    found, failures = {}, 0
    shown = [name for name in FIGURES if name not in RARE]
    print("round  load            side             " + "".join(f"{FIGURES[name][0]:>15}" for name in shown))
    for number in range(1, args.rounds + 1):
        for title, of_load in loads.items():
            for name in of_load.sides if number % 2 else reversed(of_load.sides):
                options = [*of_load.options, *of_load.of_side.get(name, []), "--seed", str(number), *for_load]
                options = [option.format(round=number) for option in options]
                try:
                    figures = sides[name].load(generator, args.seconds, args.warmup, options, of_load)
                    row = "".join(f"{shape(key, figures):>15}" for key in shown)
                    print(f"{number:>5}  {title:<16}{name:<17}{row}", flush=True)
                except Failed as error:
                    figures, failures = None, failures + 1
                    print(f"{number:>5}  {title:<16}{name:<17}  FAILED: {error}", flush=True)
                if of_load.removes:
                    sides[name].remove(options)
                found.setdefault((title, name), []).append(figures)
    return found, failures


def shape(name, figures):
    return FIGURES[name][1].format(figures[name]) if figures and name in figures else ""


def print_medians(found):
    print("\nMedians. CPU time is per request; others' cores are those that neither service, nor Redis, nor generator kept busy.\n")
    print("| load | side | " + " | ".join(title for title, _ in FIGURES.values()) + " |\n" + "|---" * (len(FIGURES) + 2) + "|")
    for (title, side), rounds in found.items():
        values = {name: [figures[name] for figures in rounds if figures and name in figures] for name in FIGURES}
        of_load = {name: statistics.median(of_name) for name, of_name in values.items() if of_name}
        print(f"| {title} | {side} | " + " | ".join(shape(name, of_load) for name in FIGURES) + " |")


def print_aims(aims, found):
    print("\n| measure | at most | found | Tollgate | against | by round | rounds |\n|---|---|---|---|---|---|---|")
    for words, name, load_of_a, other, load_of_b, bound in aims:
        if (load_of_a, TOLLGATE) not in found or other and (load_of_b, other) not in found:
            continue
        ours = found[load_of_a, TOLLGATE]
        # Without a service to compare with, the target applies to the figure itself.
        theirs = found[load_of_b, other] if other else [{name: 1}] * len(ours)
        pairs = [(a[name], b[name]) for a, b in zip(ours, theirs) if a and b]
        if not pairs:
            print(f"| {words} | {bound or ''} | nothing |  |  |  | 0 |")
            continue
        a, b = (statistics.median(values) for values in zip(*pairs))
        value, by_round = ratio(a, b), [ratio(*pair) for pair in pairs]
        verdict = "" if bound is None else ", met" if value <= bound else ", **missed**"
        form = FIGURES[name][1]
        against = f"{form.format(b)}, {other}" + (f", {load_of_b}" if other == TOLLGATE else "") if other else ""
        print(
            f"| {words} | {bound or ''} | {value:.3f}{verdict} | {form.format(a)} "
            f"| {against} | {min(by_round):.3f} to {max(by_round):.3f} | {len(pairs)} |"
        )


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"redis_compare: {error}")
