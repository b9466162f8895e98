#!/usr/bin/env bash
# Trains on all NVIDIA GPUs of this host, or on those of CUDA_VISIBLE_DEVICES, with one process:
#   launch/train_gpus.sh pretrain … --batch_size 512 --mesh=-1,1,1    copies of the parameters
#   launch/train_gpus.sh pretrain … --batch_size 512 --mesh=1,-1,1    parameters cut over GPUs
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
python -c 'import jax, sys; sys.exit(jax.default_backend() != "gpu")' ||
    _fail "JAX sees no GPU; install its CUDA wheels with: .venv/bin/pip install 'jax[cuda12]'"
# Gathers of the next layer's parameters run while this layer computes.
export XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_enable_latency_hiding_scheduler=true"
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"
exec qac "$@"
