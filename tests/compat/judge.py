"""Compares Tollgate with recorded and live responses of envoyproxy/ratelimit. `make compat` runs this.

KIT is a folder with `conformance.py`, `requirements.txt` and `cases/`: a replayer of recorded cases, and a random differential. REFERENCE is
a built envoyproxy/ratelimit. The last column of docs/compatibility.md names the recorded cases that differ on purpose. Any other case that
differs is a failure, and so is a named case that agrees.
"""

import argparse
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
TOOLS = ROOT / ".tools" / "compat"

# Lines of the differential that a row of the page explains.
IN_DIFFERENTIAL = {
    "D11": re.compile(r"dynamic_metadata\.metadata: expected nothing, got \{.*\}"),
    "D30": re.compile(
        r"metrics\.ratelimit_service_rate_limit_("
        r"over_limit\{.*\}: expected \d+, got \d+|.+_over_limit_with_local_cache: expected nothing, got \d+"
        # The same counter as a name, and with labels.
        r"|.+_(over_limit_with_local_cache|domain_not_found): expected \d+, got nothing"
        r"|(over_limit_with_local_cache|domain_not_found)\{.*\}: expected nothing, got \d+)"
    ),
}

# A field that responses have besides: docs/envoy.md.
ADDED = re.compile(r"(step \d+, )?(dynamic_metadata|json\.dynamicMetadata)\.tollgate: expected nothing, got \{.*\}")

BUILD_A_REFERENCE = """\
no REFERENCE: no live comparison. To build one, with Go:
  git clone https://github.com/envoyproxy/ratelimit && cd ratelimit
  CGO_ENABLED=0 go build -o ratelimit ./src/service_cmd
and then: make compat KIT=path/to/kit REFERENCE=path/to/ratelimit"""


def main():
    arguments = parsed()
    accepted, in_memory = accepted_cases("recorded: "), accepted_cases("recorded in memory: ")
    python = python_with(arguments.kit / "requirements.txt")
    judge = [python, str(arguments.kit / "conformance.py")]

    print("replaying the recorded cases on Redis", flush=True)
    differing = replay(judge, arguments, [])
    print("replaying them in memory", flush=True)
    differing_in_memory = replay(judge, arguments, ["--memory"])
    unexplained = (differing - accepted) | (differing_in_memory - accepted - in_memory)
    unused = (accepted - differing) | (in_memory - differing_in_memory)
    failures = [f"differs, and no row of {PAGE.name} says why: {title}" for title in sorted(unexplained)]
    failures += [f"a row of {PAGE.name} names a case that agrees: {title}" for title in sorted(unused)]

    if arguments.reference:
        print(f"{arguments.rounds} random rounds side by side, seed {arguments.seed}", flush=True)
        failures += differential(judge, arguments)
    else:
        print(BUILD_A_REFERENCE)
    for failure in failures:
        print(failure)
    print("compatible" if not failures else f"{len(failures)} failures")
    return 1 if failures else 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--server", type=Path, default=ROOT / "target" / "debug" / "tollgate")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for path, what in [(arguments.kit / "conformance.py", "KIT"), (arguments.server, "the service"), (arguments.reference, "REFERENCE")]:
        if path and not path.exists():
            parser.error(f"{what}: {path} is not there")
    return arguments


def accepted_cases(word):
    """The recorded cases that rows of the page name after this word."""
    rows = [line.strip().strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = [cells[-1].strip().removeprefix(word) for cells in rows if cells[-1].strip().startswith(word)]
    defects = {cells[0].strip() for cells in rows}
    missing = set(IN_DIFFERENTIAL) - defects
    if missing:
        sys.exit(f"{PAGE} has no row for {', '.join(sorted(missing))}")
    return {title.strip() for titles in named for title in titles.split(";")}


def python_with(requirements):
    """A virtual environment with the requirements of the kit."""
    python = TOOLS / "bin" / "python"
    stamp = TOOLS / "requirements.txt"
    if not stamp.exists() or stamp.read_bytes() != requirements.read_bytes():
        venv.create(TOOLS, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements], check=True)
        stamp.write_bytes(requirements.read_bytes())
    return str(python)


def replay(judge, arguments, more):
    """The titles of the cases that differ in more than what is added."""
    command = [*judge, "replay", str(arguments.kit / "cases"), "--jobs", "2", "--server", str(arguments.server), *more]
    output = run(command)
    print(output.splitlines()[-1])
    differing, title = set(), None
    for line in output.splitlines():
        if not line.startswith("    "):
            title = line.removeprefix("differs ") if line.startswith("differs ") else None
        elif title and not ADDED.fullmatch(line.strip()):
            differing.add(title)
    return differing


def differential(judge, arguments):
    """Lines of rounds that no row explains."""
    sides = ["--reference", str(arguments.reference), "--candidate", str(arguments.server)]
    length = ["--seed", str(arguments.seed), "--rounds", str(arguments.rounds), "--stop-after", str(arguments.rounds)]
    output = run([*judge, "differ", *sides, *length])
    print(output.splitlines()[-1])
    failures, shown = [], False
    for line in output.splitlines():
        shown = line.startswith("  expected is the reference") or (shown and line.startswith("    "))
        if shown and line.startswith("    ") and not any(known.fullmatch(line.strip()) for known in [ADDED, *IN_DIFFERENTIAL.values()]):
            failures.append(f"parts from the reference: {line.strip()}")
    if failures:
        print(output)
    return failures


def run(command):
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    # 1: something differs. Anything else, or no last line: the kit failed.
    if ran.returncode not in (0, 1) or not re.search(r"cases agree|rounds differ", ran.stdout):
        sys.exit(f"{' '.join(command)} failed:\n{ran.stdout}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
