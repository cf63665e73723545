#!/bin/sh
# Installs what build.sh and bill.sh need for $1 (amd64 or arm64) into the build stage.
set -eu

case $1 in
    "$(dpkg --print-architecture)") packages="redis-server python3" component=llvm-tools triple= ;;
    arm64) packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" component= triple=aarch64-unknown-linux-gnu ;;
    amd64) packages="gcc-x86-64-linux-gnu libc6-dev-amd64-cross" component= triple=x86_64-unknown-linux-gnu ;;
    *) echo "tools.sh: $1 is neither amd64 nor arm64" >&2; exit 1 ;;
esac
apt-get update
# shellcheck disable=SC2086 # several words
apt-get install --yes --no-install-recommends $packages
rm -rf /var/lib/apt/lists/*
[ -z "$triple" ] || rustup target add "$triple"
[ -z "$component" ] || rustup component add "$component"
cargo install --locked cargo-cyclonedx@0.5.9
