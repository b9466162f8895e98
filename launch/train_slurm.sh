#!/usr/bin/env bash
# Runs `qac` on several hosts under SLURM, one process a host: training is computed together, other
# verbs divide their shards, and process 0 writes. Arguments go to `qac`; the output folder must be
# visible to all hosts:
#   sbatch --nodes 4 launch/train_slurm.sh pretrain … --batch_size 4096 --out /scratch/out/encoder
#   sbatch --nodes 4 launch/train_slurm.sh run pair_msmarco --out /scratch/out/pair
# A job array shares the cells of a grid, one job a share; then the same on one host, without
# --array, writes the table:
#   sbatch --array 0-7 launch/train_slurm.sh run GRID --out /scratch/out/grid
# Before its time is up a job gets SIGTERM, saves, and is queued again to continue.
#SBATCH --job-name=qac
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
# SLURM runs a copy of this script, so the checkout is where `sbatch` was called.
source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/launch/setup.sh"
cd "$QAC_ROOT"
share=()
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] ||
    share=(--share "$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN))/$SLURM_ARRAY_TASK_COUNT")
code=0
srun --kill-on-bad-exit=1 qac "$@" "${share[@]}" || code=$?

# An error is not queued again, since it would be the same. A run that a signal ended says so
# (130, 143), and one that saved on time and ended with 0 has left an unfinished folder.
out=""
previous=""
for word in "$@"; do
    case "$word" in
    --out=*) out="${word#--out=}" ;;
    esac
    [ "$previous" != --out ] || out="$word"
    previous="$word"
done
unfinished=""
[ -z "$out" ] || [ ! -d "$out" ] || unfinished="$(find "$out" -name .unfinished.json -print -quit)"
if [ "$code" -eq 130 ] || [ "$code" -eq 143 ] || { [ "$code" -eq 0 ] && [ -n "$unfinished" ]; }; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
