#!/usr/bin/env bash
# Drills at size, for a quiet machine (docs/scaling.md):
#   launch/scale_drill.sh kills 50 out/drill       embed on 2 processes, one killed at random
#   launch/scale_drill.sh road 10000000 out/road   synthetic passages through the whole road
#   launch/scale_drill.sh memory out/memory        peak memory at 1, 10 and 100 times a small run
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
exec python launch/scale_drill.py "$@"
