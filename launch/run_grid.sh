#!/usr/bin/env bash
# Runs a grid on this host, one process for each GPU (or for each of QAC_DEVICES, such as 0,1,2),
# which share its cells; at the end the table:
#   launch/run_grid.sh GRID --out out/grid
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
IFS=, read -r -a devices <<<"${QAC_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}"
started=()
for number in "${!devices[@]}"; do
    CUDA_VISIBLE_DEVICES="${devices[$number]}" qac run "$@" --share "$number/${#devices[@]}" &
    started+=("$!")
done
trap 'kill -TERM "${started[@]}" 2>/dev/null || true' INT TERM
code=0
for process in "${started[@]}"; do wait "$process" || code=$?; done
[ "$code" -eq 0 ] || _fail "a share of the grid failed; the same command continues"
exec qac run "$@"
