#!/usr/bin/env python3
"""Measures what the release binary takes without load: the time to the first 200 of /healthcheck, and resident memory.

    benches/idle.py [--rounds N] [--program PATH] [--redis-server PROGRAM] [DIR]

Each round starts a process with the rules of DIR (config/, the sample rules) and default settings, and reads VmRSS after five seconds: once
with the memory store, once with Redis. It prints the medians. Exit status: 1 if a median of memory is above its bound.
"""

import argparse
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from redis_servers import Single
from servers import PACKAGE, STOP_TIMEOUT_S, START_TIMEOUT_S, Failed, cargo, free_ports, plain_environment

# MiB of a process by its store. 10 of them are pages of the binary, which the kernel maps in pieces of 64 KiB and shares.
RESIDENT_MAX = {"memory": 15, "Redis": 17}
IDLE_S = 5
LOOK_EVERY_S = 0.0005


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes started [5]")
    parser.add_argument("--program", metavar="PATH", help="a binary that is built already")
    parser.add_argument("--redis-server", default="redis-server", metavar="PROGRAM", help="[redis-server]")
    parser.add_argument("rules", nargs="?", default=os.path.join(PACKAGE, "config"), metavar="DIR", help="[config]")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    program = args.program or cargo("build", "--release", "--bin", "tollgate")["tollgate"]
    print(f"medians of {args.rounds} processes on {os.cpu_count()} cores, in parentheses the lowest and the highest:")
    too_large = []
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as directory:
        redis = Single(args.redis_server, directory)
        redis.start()
        try:
            for store, environment in (("memory", {}), ("Redis", redis.environment())):
                started, resident = zip(*(measure(program, args.rules, environment) for _ in range(args.rounds)))
                milliseconds = median_and_range([seconds * 1000 for seconds in started])
                print(f"  {store}: {milliseconds} ms to the first 200 of /healthcheck, {median_and_range(resident)} MiB resident when idle")
                if statistics.median(resident) > RESIDENT_MAX[store]:
                    too_large.append(f"{store}: more than {RESIDENT_MAX[store]} MiB resident when idle")
        finally:
            redis.stop()
    if too_large:
        raise Failed("; ".join(too_large))


def median_and_range(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def measure(program, rules, environment):
    """Seconds to the first 200, and MiB when idle."""
    grpc, port, admin = free_ports(3)
    ports = {"GRPC_PORT": str(grpc), "PORT": str(port), "DEBUG_PORT": str(admin)}
    hosts = {name: "127.0.0.1" for name in ("HOST", "GRPC_HOST", "DEBUG_HOST")}
    began = time.monotonic()
    process = subprocess.Popen(
        [program, "serve", rules], env=plain_environment() | hosts | ports | environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        while not is_healthy(port):
            if process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                raise Failed(f"{program} serve {rules} does not serve")
            time.sleep(LOOK_EVERY_S)
        started = time.monotonic() - began
        time.sleep(IDLE_S)
        with open(f"/proc/{process.pid}/status") as status:
            return started, int(re.search(r"(?m)^VmRSS:\s+(\d+)", status.read())[1]) / 1024
    finally:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def is_healthy(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/healthcheck")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"idle: {error}")
