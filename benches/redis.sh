#!/usr/bin/env bash
# The comparison of benches/README.md: Tollgate on Redis beside envoyproxy/ratelimit on Redis, in one run. $1 is the latter's binary.
set -euo pipefail
reference=${1:?usage: benches/redis.sh RATELIMIT [--rounds N] [--seconds S]; it is built from github.com/envoyproxy/ratelimit by: go build ./src/service_cmd}
test -x "$reference" || { echo "there is no program at $reference" >&2; exit 1; }
command -v redis-server >/dev/null || { echo "redis-server needs to be installed: https://redis.io" >&2; exit 1; }
exec "$(dirname "$0")/redis_compare.py" "$@"
