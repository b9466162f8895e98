#!/usr/bin/env bash
# Trains on several hosts under SLURM, one process a host; every process reads its part of the data
# and process 0 writes. Arguments go to `qac`; the output folder must be visible to all hosts:
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
srun --kill-on-bad-exit=1 qac "$@"
# A run that ends early on purpose exits with 0 too; what is whole is not trained again.
out="$(printf '%s\n' "$@" | grep -A1 -x -e --out | tail -1)"
[ -z "$out" ] || [ -f "$out/artifact.json" ] || scontrol requeue "$SLURM_JOB_ID"
