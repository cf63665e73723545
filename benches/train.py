#!/usr/bin/env python3
"""Runs the loads that profile-guided optimization learns from; deploy/image/build.sh calls it.

    benches/train.py TOLLGATE

TOLLGATE is compiled with -Cprofile-generate: it writes what it has counted when it ends. Needs redis-server.
"""

import sys
import tempfile

from redis_servers import Single
from servers import Failed, Service, cargo, copy_rules, load

SECONDS = 3
WARMUP_S = 0
UNIFORM = ["--keys", "100000"]
AS_ENVOY = ["--deadline", "20ms"]
# What most deployments do has most of the time: fixed windows on Redis. A profile has the counts of all.
LOADS_IN_MEMORY = [
    [*UNIFORM, "--in-flight", "64"],
    [*UNIFORM, "--in-flight", "16", "--descriptors", "10"],
    ["--key", "bucket", "--in-flight", "16"],
]
LOADS_ON_REDIS = [
    [*UNIFORM, "--in-flight", "64", "--pick", "zipf"],
    [*UNIFORM, "--in-flight", "64", *AS_ENVOY],
    ["--in-flight", "64", "--pick", "new", "--value-prefix", "new"],
    [*UNIFORM, "--rate", "2000", *AS_ENVOY],
    [*UNIFORM, "--in-flight", "32", "--descriptors", "10"],
    ["--key", "bucket", "--in-flight", "64"],
    ["--key", "flood", "--keys", "1000", "--in-flight", "64"],
]
# An instrumented build on a busy machine is late at times.
FAILED_MAX = 0.05


def main():
    if len(sys.argv) != 2:
        raise Failed("usage: benches/train.py TOLLGATE")
    program = sys.argv[1]
    # In dev profile, which is fast enough.
    generator = cargo("build", "--bench", "load")["load"]
    with tempfile.TemporaryDirectory(prefix="tollgate-train-") as directory:
        copy_rules(directory)
        redis = Single("redis-server", directory)
        redis.start()
        try:
            for environment, loads in (({}, LOADS_IN_MEMORY), (redis.environment(), LOADS_ON_REDIS)):
                train(Service(program, directory, environment | {"DRAIN_PERIOD": "0"}), generator, loads)
        finally:
            redis.stop()


def train(service, generator, loads):
    service.start()
    try:
        for options in loads:
            load(generator, service.target, [service.pid], SECONDS, WARMUP_S, options, FAILED_MAX)
    finally:
        service.stop()
    if service.process.returncode != 0:
        raise Failed(f"the service ended with {service.process.returncode}, so it may have written no profile:\n{service.said()}")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"train: {error}")
