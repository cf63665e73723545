#!/usr/bin/env python3
"""Produces in target/release-files what a release publishes, and verifies it as a user would. `make release-check` runs it.

With docker and buildx it builds for both processors. Without them, or with --profile dev or --binary, it builds for this processor alone, by
deploy/image/check.py.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check import ROOT, Failed, check_sbom, own_arch, run

FILES = ROOT / "target" / "release-files"
IMAGE = ROOT / "target" / "image"
RELEASE = ROOT / "deploy" / "image" / "release.sh"
CHECK = ROOT / "deploy" / "image" / "check.py"
MAKE = ROOT / "deploy" / "image" / "make.sh"
REGISTRY = "registry.example.com"
ARCHIVED = ["LICENSE", "tollgate", "tollgate.cdx.json"]


def has_engine():
    return all(subprocess.run(["sh", "-c", f"docker {each} >/dev/null 2>&1"]).returncode == 0 for each in ("info", "buildx version"))


def produce(version, profile, binary):
    """Fills FILES, and returns what it had to leave out."""
    if has_engine() and profile == "release" and binary is None:
        stages = IMAGE / "files"
        for output in ("files", "file"):
            run([MAKE, f"tollgate:{version.removeprefix('v')}", output])
        run([RELEASE, "archives", version, stages])
        shutil.copy(IMAGE / "tollgate.tar", FILES / f"tollgate-{version}-image.tar")
        left_out = None
    else:
        stages = IMAGE / "stages"
        shutil.rmtree(stages, ignore_errors=True)
        print(run([CHECK, "--into", stages, "--profile", profile, *(["--binary", binary] if binary else [])]), end="")
        run([RELEASE, "archives", version, stages])
        left_out = "the image archive, and the archive of the other processor: they need docker with buildx, and neither PROFILE nor BINARY"
    run([RELEASE, "package", version])
    return left_out


def check_sums(version):
    run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=FILES)
    listed = {line.split(maxsplit=1)[1] for line in (FILES / "SHA256SUMS").read_text().splitlines()}
    found = {path.name for path in FILES.glob(f"tollgate-{version}-linux-*")}
    if listed != found or not listed:
        raise Failed(f"SHA256SUMS has {sorted(listed)}, and should have {sorted(found)}")
    return ", ".join(sorted(listed))


def check_archive(archive, number):
    name = archive.name.removesuffix(".tar.gz")
    arch = name.rpartition("-")[2]
    with tempfile.TemporaryDirectory(prefix="tollgate-release-") as directory:
        run(["tar", "--extract", "--file", archive, "--directory", directory])
        content = Path(directory) / name
        found = sorted(str(path.relative_to(directory)) for path in Path(directory).rglob("*") if path.is_file())
        if found != [f"{name}/{each}" for each in ARCHIVED]:
            raise Failed(f"{archive.name} has {found}")
        bill = content / "tollgate.cdx.json"
        if bill.read_bytes() != (FILES / f"{name}.cdx.json").read_bytes():
            raise Failed(f"{archive.name} and {name}.cdx.json have different bills of materials")
        listed = json.loads(bill.read_text())["metadata"]["component"]["version"]
        if listed != number:
            raise Failed(f"the bill of materials of {archive.name} is that of {listed}")
        materials = check_sbom(bill, arch)
        if arch != own_arch():
            return f"{materials}; not run on this processor"
        printed = run([content / "tollgate", "--version"]).strip()
        build = json.loads(run([content / "tollgate", "version", "--json"]))
        if not printed.startswith(f"tollgate {number} (tzdata ") or build["version"] != number:
            raise Failed(f"the binary of {archive.name} prints {printed}, and {build}")
        return f"{materials}; it prints {printed}, built from the commit {build['commit']} for {build['target']}"


def check_chart(number):
    chart = FILES / f"tollgate-{number}.tgz"
    image = f"{REGISTRY}/tollgate"
    values = ["--set", f"image.repository={image}"]
    run(["helm", "lint", "--strict", chart, *values])
    if f"{image}:{number}" not in run(["helm", "template", "tollgate", chart, *values]):
        raise Failed(f"the chart does not run the image of {number}")
    return f"lint and template, with {image}:{number}"


def signatures(version):
    """The commands of a release that this machine does not run."""
    environment = os.environ | {"DRY_RUN": "1"}
    image = run([RELEASE, "sign", version, f"{REGISTRY}/tollgate@sha256:DIGEST"], env=environment)
    chart = run([RELEASE, "chart", version, f"{REGISTRY}/charts"], env=environment)
    commands = [line for line in (image + chart).splitlines() if line.startswith(("helm push", "cosign"))]
    if len(commands) != 3:
        raise Failed(f"the image is signed, and the chart pushed and signed; release.sh prints {commands}")
    return commands


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help="the tag, such as v0.1.0")
    parser.add_argument("--profile", default="release", help="dev for a quick rehearsal")
    parser.add_argument("--binary", help="take this one, and compile nothing")
    options = parser.parse_args()
    number = options.version.removeprefix("v")
    os.environ["PATH"] = f"{ROOT / '.tools' / 'bin'}:{os.environ['PATH']}"
    run([RELEASE, "versions", options.version])
    print("ok      versions: the tag, Cargo.toml, the chart and CHANGELOG.md agree")
    left_out = produce(options.version, options.profile, options.binary)
    print(f"ok      checksums: {check_sums(options.version)}")
    for archive in sorted(FILES.glob("*.tar.gz")):
        print(f"ok      {archive.name}: {check_archive(archive, number)}")
    print(f"ok      chart: {check_chart(number)}")
    if left_out:
        print(f"left out: {left_out}")
    print("not run, only a release does: .github/workflows/release.yml attests the files of target/release-files, and runs")
    for command in signatures(options.version):
        print(f"  {command}")
    print(f"all files are in {FILES.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"FAILED  {error}", file=sys.stderr)
        sys.exit(1)
