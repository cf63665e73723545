#!/usr/bin/env python3
"""Builds the stages of the image without a container engine, checks its contents, and runs it like a kubelet. `make image-check` runs it.

The COPY and RUN lines of the Dockerfile are executed, and its ENTRYPOINT and USER are run. Only an engine can fetch the base of the last
stage; the C library of this machine replaces it.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BILL = "usr/share/sbom/tollgate.cdx.json"
# The complete content of the image beyond its base.
CONTENTS = {
    "bin/tollgate": "file",
    "bin/ratelimit": "link to tollgate",
    BILL: "file",
    "usr/share/doc/tollgate/LICENSE": "file",
}
# Values may be arguments of the build.
LABELS = {f"org.opencontainers.image.{name}" for name in "title description licenses source url documentation version revision".split()}
# Allowed libraries: distroless/cc contains these, among others.
LIBRARIES = {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Debian 12, the base.
GLIBC_MAX = (2, 36)
# Without the base of about 24 MiB. A release has about half of this.
RELEASE_BYTES_MAX = 20 * 1024 * 1024
# Envoy Gateway's; the image's own USER is tried as well.
ANY_UID = 65534
PATIENCE_S = 20


class Failed(Exception):
    """A failed check; the message says why."""


def dockerfile():
    """The instructions of each stage."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "Dockerfile").read_text())
    stages = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest))
    return stages


def copy_context(to):
    """The build context without files of .dockerignore."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    if patterns[0] != "*" or not all(line.startswith("!") for line in patterns[1:]):
        raise Failed(".dockerignore is not `*` and then what is let through; teach deploy/image/check.py what it says")
    for pattern in patterns[1:]:
        source, target = ROOT / pattern[1:], to / pattern[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)


def build(stage, work, arch, profile, binary):
    """Runs the build stage in `work`: /src, /out and /rootfs of the Dockerfile are folders there."""
    source = work / "src"
    source.mkdir()
    copy_context(source)
    environment = os.environ | {"PROFILE": profile, "CARGO_TARGET_DIR": str(ROOT / "target" / "image")}
    environment["PATH"] = f"{ROOT / '.tools' / 'bin'}:{environment['PATH']}"
    for word, rest in stage:
        if word != "RUN":
            continue
        # Cache mounts are not needed here.
        words = [each for each in shlex.split(rest) if not each.startswith("--mount=")]
        if words[0] == "deploy/image/tools.sh":
            continue
        if words[0] == "deploy/image/build.sh" and binary is not None:
            (work / "out").mkdir()
            shutil.copy(binary, work / "out" / "tollgate")
            continue
        words = [each.replace("$TARGETARCH", arch) for each in words]
        words = [str(work) + each if each.startswith("/") else each for each in words]
        run(words, cwd=source, env=environment)


def assemble(stage, work, image):
    """The last stage's COPY lines."""
    for word, rest in stage:
        if word != "COPY":
            continue
        option, source, target = shlex.split(rest)
        if option != "--from=build" or not (source.endswith("/") and target.endswith("/")):
            raise Failed(f"COPY {rest}: teach deploy/image/check.py what it does")
        shutil.copytree(work / source.strip("/"), image / target.strip("/"), symlinks=True, dirs_exist_ok=True)


def run(words, **options):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        raise Failed(f"{shlex.join(map(str, words))} failed: {done.stdout.strip()}")
    return done.stdout


def check_contents(image):
    def what(path):
        return f"link to {os.readlink(path)}" if path.is_symlink() else "file"

    found = {str(path.relative_to(image)): what(path) for path in image.rglob("*") if path.is_symlink() or path.is_file()}
    if found != CONTENTS:
        raise Failed(f"the image has {found}, and should have {CONTENTS}")
    if os.stat(image / "bin" / "tollgate").st_mode & 0o7777 != 0o755:
        raise Failed("bin/tollgate must have mode 0755: executable by any user, writable by root only")
    return ", ".join(sorted(found))


def check_size(image, profile):
    size = sum(path.stat().st_size for path in image.rglob("*") if path.is_file() and not path.is_symlink())
    if profile == "release" and size > RELEASE_BYTES_MAX:
        raise Failed(f"the image has {size:,} bytes beyond its base, and may have {RELEASE_BYTES_MAX:,}")
    return f"{size / 2**20:.1f} MiB beyond the base" + ("" if profile == "release" else "; only a release's is held against the bound")


def check_libraries(image):
    binary = image / "bin" / "tollgate"
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "-d", binary])))
    if needed - LIBRARIES:
        raise Failed(f"the binary needs {', '.join(sorted(needed - LIBRARIES))}, which the base has not")
    versions = {tuple(map(int, each.split("."))) for each in re.findall(r"GLIBC_([0-9.]+)", run(["readelf", "-V", binary]))}
    if max(versions) > GLIBC_MAX:
        raise Failed(f"the binary needs glibc {max(versions)}, and the base has {GLIBC_MAX}: build it on Debian 12, as the Dockerfile does")
    return f"{', '.join(sorted(needed))}; glibc {'.'.join(map(str, max(versions)))}"


def check_sbom(path, arch):
    """The bill of materials lists exactly the crates of the binary, in the versions of Cargo.lock."""
    bill = json.loads(path.read_text())
    listed = {(each["name"], each["version"]) for each in bill["components"]}
    locked = set(re.findall(r'^name = "(.*)"\nversion = "(.*)"', (ROOT / "Cargo.lock").read_text(), re.MULTILINE))
    triple = {"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-unknown-linux-gnu"
    tree = run(["cargo", "tree", "--locked", "--edges", "normal", "--prefix", "none", "--target", triple], cwd=ROOT)
    compiled = set(re.findall(r"^(\S+) v(\S+)", tree, re.MULTILINE)) - {("tollgate", bill["metadata"]["component"]["version"])}
    if bill["bomFormat"] != "CycloneDX" or not compiled or compiled - listed or listed - locked:
        raise Failed(f"the bill of materials lacks {sorted(compiled - listed)}, and has {sorted(listed - locked)} too many")
    without_licence = [each["name"] for each in bill["components"] if not each.get("licenses")]
    if without_licence:
        raise Failed(f"the bill of materials has no licence of {', '.join(without_licence)}")
    return f"{len(listed)} crates, {len(compiled)} of them compiled in"


def check_labels(stage):
    labels = dict(each.split("=", 1) for word, rest in stage if word == "LABEL" for each in shlex.split(rest))
    if set(labels) != LABELS or not all(labels.values()):
        raise Failed(f"the image has the labels {labels}, and should have {', '.join(sorted(LABELS))}")
    return ", ".join(sorted(name.rpartition(".")[2] for name in labels))


def borrow_libraries(image):
    """The libraries of this machine, where the loader finds them."""
    for line in run(["ldd", image / "bin" / "tollgate"]).splitlines():
        if path := re.search(r"(/\S+) \(0x", line):
            target = image / path[1].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path[1], target)
    for directory in ("proc", "dev", rules_directory()):
        (image / directory).mkdir(parents=True)


def rules_directory():
    """The mount point of the sample rules in the README's `docker run`, without the leading slash."""
    mount = re.search(r'^docker run .* -v "\$PWD/config:/(\S+):ro" \w+$', (ROOT / "README.md").read_text(), re.MULTILINE)
    if not mount:
        raise Failed('README.md has no `docker run … -v "$PWD/config:/…:ro" tollgate`')
    return mount[1]


def start(image, command, uid):
    """`command` in the image: read-only root, no capabilities, only pipes are writable."""
    ports = free_ports(3)
    names = ("GRPC_PORT", "PORT", "DEBUG_PORT")
    environment = dict(zip(names, map(str, ports))) | {name: "127.0.0.1" for name in ("GRPC_HOST", "HOST", "DEBUG_HOST")}
    script = (
        'mount --bind "$1" "$1" && mount --bind "$2" "$1/$5" && mount --rbind /dev "$1/dev" && mount -t proc none "$1/proc"'
        ' && mount -o remount,bind,ro "$1" && cd "$1" && exec setpriv --bounding-set=-all,+setuid,+setgid,+sys_chroot --no-new-privs'
        ' chroot --userspec="$3:$3" --groups= "$1" $4'
    )
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", image, ROOT / "config", str(uid), command, rules_directory()]
    log = tempfile.TemporaryFile("w+")
    # Without the environment of this machine.
    environment |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    process = subprocess.Popen(list(map(str, words)), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return process, log, ports


def check_runs(image, command, uid):
    if os.geteuid() != 0:
        raise Failed("running it with a root of its own wants root: run `sudo make image-check`")
    process, log, (_, http, admin) = start(image, command, uid)
    try:
        give_up = time.monotonic() + PATIENCE_S
        while fetch(http, "/healthcheck")[0] != 200:
            if process.poll() is not None or time.monotonic() > give_up:
                log.seek(0)
                raise Failed(f"{command} as {uid} is not healthy:\n{log.read()}")
            time.sleep(0.02)
        body = json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": "demo", "value": "once_a_minute"}]}]}).encode()
        # Three, because a minute may end between two of them.
        statuses = [fetch(http, "/json", body)[0] for _ in range(3)]
        if statuses[0] != 200 or 429 not in statuses:
            raise Failed(f"once a minute is answered with {statuses}")
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        status = Path(f"/proc/{child}/status").read_text()
        identity = {name: re.search(rf"^{name}:\s+(.*)$", status, re.MULTILINE)[1].split() for name in ("Uid", "CapEff", "CapPrm", "NoNewPrivs")}
        if set(identity["Uid"]) != {str(uid)} or int(identity["CapEff"][0], 16) or int(identity["CapPrm"][0], 16):
            raise Failed(f"it should run as {uid} and may do nothing else: {identity}")
        mounts = [line.split() for line in Path(f"/proc/{child}/mountinfo").read_text().splitlines()]
        if not any(mount[4] == "/" and "ro" in mount[5].split(",") for mount in mounts):
            raise Failed("its root could be written to")
        os.kill(int(child), signal.SIGINT)
    finally:
        if sys.exc_info()[0]:
            process.kill()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise Failed(f"{command} ends with {process.returncode} after SIGINT")
    return f"{command} as {uid}: healthy, answers, ends in order"


def fetch(port, path, body=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body), timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (OSError, urllib.error.URLError):
        return None, ""


def own_arch():
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="release", help="dev for a quick look; a bound on the size is for release alone")
    parser.add_argument("--binary", help="take this one, and compile nothing")
    parser.add_argument("--into", type=Path, help="keep the files of the image in this folder, as linux_amd64, and start nothing")
    options = parser.parse_args()
    arch = own_arch()
    build_stage, image_stage = dockerfile()
    with tempfile.TemporaryDirectory(prefix="tollgate-image-") as directory:
        work = Path(directory)
        image = work / "image"
        build(build_stage, work, arch, options.profile, options.binary)
        assemble(image_stage, work, image)
        last = dict(image_stage)
        (command,) = json.loads(last["ENTRYPOINT"])
        own_uid = int(last["USER"].split(":")[0])
        print(f"ok      labels: {check_labels(image_stage)}")
        print(f"ok      contents: {check_contents(image)}")
        print(f"ok      size: {check_size(image, options.profile)}")
        print(f"ok      libraries: {check_libraries(image)}")
        print(f"ok      bill of materials: {check_sbom(image / BILL, arch)}")
        if options.into is not None:
            shutil.copytree(image, options.into / f"linux_{arch}", symlinks=True)
            return
        borrow_libraries(image)
        image.chmod(0o755)
        work.chmod(0o755)
        for started, uid in ((command, own_uid), ("/bin/ratelimit", ANY_UID)):
            print(f"ok      {check_runs(image, started, uid)}")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"FAILED  {error}", file=sys.stderr)
        sys.exit(1)
