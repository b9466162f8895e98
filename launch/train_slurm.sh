#!/usr/bin/env bash
# Trains on several hosts under SLURM, one process a host; other verbs divide their shards by
# deploy/ray_slurm.sh. Arguments go to `qac`; the output folder must be visible to all hosts:
#   sbatch --nodes 4 launch/train_slurm.sh pretrain … --batch_size 4096 --out /scratch/out/encoder
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
code=0
srun --kill-on-bad-exit=1 qac "$@" || code=$?

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
