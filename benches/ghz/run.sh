#!/usr/bin/env bash
# The README's ghz call, against a service of its own. Reflection tells ghz the protos. $1 is ghz.
#
# ghz counts OVER_LIMIT as success, since it is an answer; so this looks at the service's own counters afterwards.
set -euo pipefail
cd "$(dirname "$0")/../.."
ghz=${1:?usage: benches/ghz/run.sh GHZ}
total=${TOTAL:-20000}

cargo build --release --quiet
out=$(mktemp)
HOST=127.0.0.1 PORT=29480 GRPC_HOST=127.0.0.1 GRPC_PORT=29481 DEBUG_HOST=127.0.0.1 DEBUG_PORT=29470 \
  target/release/tollgate benches/rules >"$out" 2>&1 &
service=$!
trap 'kill -INT $service; wait $service || true; rm -f "$out"' EXIT
for _ in $(seq 100); do
  curl -fs -o /dev/null http://127.0.0.1:29480/healthcheck && break
  sleep 0.05
done

"$ghz" --insecure --call envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit -c 64 --connections 8 -n "$total" \
  -d '{"domain":"bench","descriptors":[{"entries":[{"key":"user","value":"u{{randomInt 0 10000}}"}]}]}' 127.0.0.1:29481

counted=$(curl -fs http://127.0.0.1:29470/stats | sed -n 's/^ratelimit.service.rate_limit.bench.user.total_hits: //p')
echo "counted by the service: $counted of $total"
test "$counted" = "$total"
