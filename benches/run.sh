#!/usr/bin/env bash
# The figures of benches/README.md: Tollgate's memory store beside a bare tonic server, in one run.
set -euo pipefail
cd "$(dirname "$0")/.."
exec benches/compare.py \
  --a 'GRPC_HOST=127.0.0.1 GRPC_PORT=29081 HOST=127.0.0.1 PORT=29080 DEBUG_HOST=127.0.0.1 DEBUG_PORT=29070 DRAIN_PERIOD=0 tollgate benches/rules' \
  --a-target 127.0.0.1:29081 \
  --b 'bare_server --listen 127.0.0.1:29091' --b-target 127.0.0.1:29091 "$@"
