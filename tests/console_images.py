#!/usr/bin/env python3
"""Writes the pictures of docs/console.md: starts the service with sample rules and some load, and has Chromium open its console.

Usage: tests/console_images.py FOLDER. Needs a built target/debug/tollgate and the package chromium.
"""

import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 70
RULES = """domain: shop
descriptors:
  - {key: path, value: /login, rate_limit: {unit: hour, requests_per_unit: 2000}}
  - {key: path, value: /checkout, rate_limit: {unit: hour, requests_per_unit: 400}}
  - {key: path, value: /search, rate_limit: {unit: minute, requests_per_unit: 900}, metadata: {tollgate: {algorithm: token_bucket, burst: 300}}}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 120}}
  - key: plan
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {tollgate: {algorithm: sliding_window}}}
  - key: plan
    value: pro
    descriptors:
      - {key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 50000}}
"""
# Name, path, width, height, dark.
PICTURES = [
    ("console-overview", "/", 1280, 760, False),
    ("console-overview-dark", "/", 1280, 760, True),
    ("console-rules", "/console/rules", 1280, 420, False),
    ("console-rule", "/console/rule?domain=shop&rule=shop.user", 1280, 860, False),
    ("console-key", "/console/key?domain=shop&e=user%3D42", 1280, 520, False),
    ("console-narrow", "/", 500, 900, False),
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port, *entries):
    descriptor = {"entries": [{"key": key, "value": value} for key, value in entries]}
    body = json.dumps({"domain": "shop", "descriptors": [descriptor]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/json", body)
    try:
        urllib.request.urlopen(request, timeout=5).read()
    except urllib.error.HTTPError:
        pass


def load(port):
    """More and less of it, over several minutes of the chart."""
    end = time.monotonic() + SECONDS
    users = ["42"] * 4 + [str(number) for number in range(50, 60)]
    while time.monotonic() < end:
        user = random.choice(users)
        ask(port, ("user", user))
        ask(port, ("plan", random.choice(["free", "free", "pro"])), ("user", user))
        ask(port, ("path", random.choice(["/login", "/checkout", "/search", "/search"])))
        time.sleep(random.uniform(0.005, 0.05))


def shoot(address, picture, folder):
    name, path, width, height, is_dark = picture
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--timeout=4000"]
    options += [f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"]
    output = folder / f"{name}.png"
    subprocess.run(["chromium", *options, f"--screenshot={output}", f"{address}{path}"], check=True, stderr=subprocess.DEVNULL, timeout=120)


def main(folder):
    if not shutil.which("chromium"):
        sys.exit("chromium is missing; install it: apt-get install --no-install-recommends chromium")
    grpc, http, admin = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as home:
        rules = Path(home, "rules")
        rules.mkdir()
        (rules / "shop.yaml").write_text(RULES)
        environment = {"GRPC_PORT": str(grpc), "PORT": str(http), "DEBUG_PORT": str(admin), "USE_STATSD": "false"}
        environment |= {name: "127.0.0.1" for name in ("GRPC_HOST", "HOST", "DEBUG_HOST")}
        command = [ROOT / "target/debug/tollgate", "serve", "rules"]
        service = subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(1)
            load(http)
            for picture in PICTURES:
                shoot(f"http://127.0.0.1:{admin}", picture, folder)
        finally:
            service.kill()
            service.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
