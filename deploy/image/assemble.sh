#!/bin/sh
# Creates the content of the image beyond its base in $2, from the output of build.sh and bill.sh in $1.
set -eu

install -D -m 755 "$1/tollgate" "$2/bin/tollgate"
# The command of envoyproxy/ratelimit deployments.
ln -s tollgate "$2/bin/ratelimit"
install -D -m 644 "$1/tollgate.cdx.json" "$2/usr/share/sbom/tollgate.cdx.json"
install -D -m 644 LICENSE "$2/usr/share/doc/tollgate/LICENSE"
