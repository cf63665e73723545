#!/bin/sh
# Installs the compiler for $1 (amd64 or arm64) and the bill of materials tool into the build stage.
set -eu

case $1 in
    "$(dpkg --print-architecture)") compiler= ;;
    arm64) compiler="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" triple=aarch64-unknown-linux-gnu ;;
    amd64) compiler="gcc-x86-64-linux-gnu libc6-dev-amd64-cross" triple=x86_64-unknown-linux-gnu ;;
    *) echo "tools.sh: $1 is neither amd64 nor arm64" >&2; exit 1 ;;
esac
if [ -n "$compiler" ]; then
    apt-get update
    # shellcheck disable=SC2086 # two words
    apt-get install --yes --no-install-recommends $compiler
    rm -rf /var/lib/apt/lists/*
    rustup target add "$triple"
fi
cargo install --locked cargo-cyclonedx@0.5.9
