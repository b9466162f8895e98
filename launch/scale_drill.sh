#!/usr/bin/env bash
# Drills at size, for a quiet machine (docs/scaling.md):
#   launch/scale_drill.sh kills 50 out/drill       embed on 2 processes, one killed at random
#   launch/scale_drill.sh road 10000000 out/road   synthetic passages through the whole road
#   launch/scale_drill.sh memory out/memory        peak memory at 1, 10 and 100 times a small run
#   launch/scale_drill.sh rates 20000 out/rates    items a core does in a second, by CPU seconds
#   launch/scale_drill.sh index 1050000 out/index  memory of building and searching ScaNN, by parts
#   launch/scale_drill.sh virtual out/virtual      4 processes of 2 devices give what one gives
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
exec python launch/scale_drill.py "$@"
