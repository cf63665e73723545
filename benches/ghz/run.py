#!/usr/bin/env python3
"""Runs each of the .json files beside this one with ghz, against a service of its own, and counts again what ghz has counted.

ghz takes OVER_LIMIT for success, since it is an answer; so the service's own counters are looked at after each run: as many hits as
descriptors were sent, or this fails. Step loads are reported per second.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from servers import Failed, Server, cargo  # noqa: E402

ROOT = HERE.parents[1]
HOST = "127.0.0.1"
GRPC, HTTP, ADMIN = 29481, 29480, 29470
HITS = "ratelimit.service.rate_limit.bench.user.total_hits"


def runs(only):
    names = sorted(path.stem for path in HERE.glob("*.json"))
    if unknown := set(only) - set(names):
        raise Failed(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    return [(name, json.loads((HERE / f"{name}.json").read_text())) for name in only or names]


def service(binary, certificates):
    environment = {"GRPC_HOST": HOST, "GRPC_PORT": GRPC, "HOST": HOST, "PORT": HTTP, "DEBUG_HOST": HOST, "DEBUG_PORT": ADMIN, "DRAIN_PERIOD": "0"}
    if certificates is not None:
        environment |= {"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": certificates / "crt", "GRPC_SERVER_TLS_KEY": certificates / "key"}
    words = [str(binary), str(HERE.parent / "rules")]
    return Server(words, os.environ | {name: str(value) for name, value in environment.items()}, f"{HOST}:{GRPC}")


def certify(directory):
    """A certificate that signs itself, so it is its own authority."""
    names = ("-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", *names]
    done = subprocess.run([*words, "-keyout", directory / "key", "-out", directory / "crt"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"openssl makes no certificate: {done.stderr}")
    return directory


def hits():
    with urllib.request.urlopen(f"http://{HOST}:{ADMIN}/stats", timeout=5) as page:
        found = re.search(rf"^{re.escape(HITS)}: (\d+)$", page.read().decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def load(ghz, name, config, more):
    before = hits()
    command = [ghz, "--config", str(HERE / f"{name}.json"), "--format", "json", *more, f"{HOST}:{GRPC}"]
    # Paths in the files are this repository's.
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{name}: ghz says {done.stderr.strip()}")
    report = json.loads(done.stdout)
    percentiles = {each["percentage"]: each["latency"] / 1e6 for each in report["latencyDistribution"]}
    print(f"{name:16} {config['name']}")
    print(f"{'':16} {config['total']} calls, {report['rps']:.0f}/s, p50 {percentiles[50]:.2f} ms, p99 {percentiles[99]:.2f} ms")
    if config.get("load-schedule"):
        by_second(report)
    answered = report["statusCodeDistribution"]
    # What ghz skips it does not report, and has sent all the same.
    if set(answered) != {"OK"} or answered["OK"] != config["total"] - config.get("skipFirst", 0):
        raise Failed(f"{name}: {config['total']} calls were answered with {answered}: {report.get('errorDistribution')}")
    expected = config["total"] * len(config["data"]["descriptors"])
    counted = hits() - before
    if counted != expected:
        raise Failed(f"{name}: the service has counted {counted} hits, and {expected} were sent")
    print(f"{'':16} counted by the service: {counted} of {expected}")


def by_second(report):
    """Where latency rises faster than the load is the knee."""
    calls = [(datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", call["timestamp"])).timestamp(), call["latency"] / 1e6) for call in report["details"]]
    first = min(at for at, _ in calls)
    for second in range(int(max(at for at, _ in calls) - first) + 1):
        latencies = sorted(latency for at, latency in calls if int(at - first) == second)
        if latencies:
            print(f"{'':16} second {second + 1:2}: {len(latencies):6} calls, p99 {latencies[len(latencies) * 99 // 100]:7.2f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ghz", help="the ghz to run")
    parser.add_argument("name", nargs="*", help="which files; all, if none is named")
    parser.add_argument("--binary", help="the tollgate to start; if absent, it is built")
    options = parser.parse_intermixed_args()
    binary = options.binary or cargo("build", "--release", "--bin", "tollgate")["tollgate"]
    for name, config in runs(options.name):
        with tempfile.TemporaryDirectory() as directory:
            certificates = None if config.get("insecure") else certify(Path(directory))
            server = service(binary, certificates)
            try:
                server.start()
                load(options.ghz, name, config, [] if certificates is None else ["--cacert", str(certificates / "crt")])
            except Failed as error:
                # Until this version serves TLS.
                if "this version serves plain text only" not in str(error):
                    raise
                print(f"{name:16} waits for TLS on the gRPC port")
            finally:
                server.stop()


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"benches/ghz/run.py: {error}")
