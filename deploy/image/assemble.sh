#!/bin/sh
# Lays out in the folder $2 what the image has beyond its base, from what build.sh and bill.sh have put into $1.
set -eu

install -D -m 755 "$1/tollgate" "$2/bin/tollgate"
# The name that deployments of envoyproxy/ratelimit start.
ln -s tollgate "$2/bin/ratelimit"
install -D -m 644 "$1/tollgate.cdx.json" "$2/usr/share/sbom/tollgate.cdx.json"
install -D -m 644 LICENSE "$2/usr/share/doc/tollgate/LICENSE"
