#!/bin/sh
# Builds the image $1 for both processors. $2 is the output: `file` (target/image/tollgate.tar), `files` (target/image/files), `push`, or `load`
# (this processor only, into the local engine).
set -eu

image=${1:?usage: deploy/image/make.sh IMAGE file|files|push|load}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"

fail() {
    echo "deploy/image/make.sh: $1" >&2
    exit 1
}

command -v docker >/dev/null || fail "docker is missing: install it (https://docs.docker.com/engine/install), or run \`make image-check\`, which builds the same stages without it"
docker info >/dev/null 2>&1 || fail "no engine answers docker: start one, or run \`make image-check\`, which builds the same stages without it"
docker buildx version >/dev/null 2>&1 || fail "docker has no buildx: install the plug-in (Debian: apt-get install docker-buildx, or docker-buildx-plugin from Docker)"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# Marks a modified work tree.
revision=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null || echo unknown)
# The default builder supports one processor only.
docker buildx inspect tollgate >/dev/null 2>&1 || docker buildx create --name tollgate --driver docker-container >/dev/null
mkdir -p target/image
case ${2:-file} in
    file) set -- --platform linux/amd64,linux/arm64 --output type=oci,dest=target/image/tollgate.tar ;;
    push) set -- --platform linux/amd64,linux/arm64 --push ;;
    files) set -- --platform linux/amd64,linux/arm64 --output type=local,dest=target/image/files ;;
    load) set -- --load ;;
    *) fail "$2 is none of file, files, push and load" ;;
esac
docker buildx build --builder tollgate --file deploy/Dockerfile --build-arg "VERSION=$version" --build-arg "REVISION=$revision" --tag "$image" "$@" .
