#!/usr/bin/env bash
# Ray on the nodes of a SLURM job: the arguments go to `qac`, which runs on the first node; shards and
# stages of grids are made on all of them. Folders must be visible to all nodes:
#   sbatch --nodes 4 deploy/ray_slurm.sh embed --encoder /scratch/retriever … --out /scratch/vectors
#   sbatch --nodes 4 deploy/ray_slurm.sh run qac_tables --data_dir /scratch/data --out /scratch/grid
# The same command continues. Training over nodes: launch/train_slurm.sh.
#SBATCH --job-name=qac-ray
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --open-mode=append
# SLURM runs a copy of this script, so the checkout is where `sbatch` was called.
source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/launch/setup.sh"
cd "$QAC_ROOT"
export RAY_USAGE_STATS_ENABLED=0
# Only who knows this job's token gives its nodes work.
RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1)"
export RAY_AUTH_MODE RAY_AUTH_TOKEN
first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
# Without SLURM_PROCID, by which JAX would join all of them in one computation.
exec srun --kill-on-bad-exit=1 env -u SLURM_PROCID ray symmetric-run --address "$first:6379" \
    --min-nodes "$SLURM_JOB_NUM_NODES" -- qac "$@" --engine "$first:6379"
