#!/bin/sh
# Writes the bill of materials of Tollgate for $1 (amd64 or arm64) to $2: each crate with version, license and checksum.
set -eu

case $1 in
    amd64) triple=x86_64-unknown-linux-gnu ;;
    arm64) triple=aarch64-unknown-linux-gnu ;;
    *) echo "bill.sh: $1 is neither amd64 nor arm64" >&2; exit 1 ;;
esac
cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$triple" --override-filename tollgate.cdx
mv tollgate.cdx.json "$2/tollgate.cdx.json"
