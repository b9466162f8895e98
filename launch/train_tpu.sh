#!/usr/bin/env bash
# Trains on all hosts of a TPU VM slice; run it where `gcloud` is. The checkout must lie in ~/qac_jax
# on every host (once: .venv/bin/pip install 'jax[tpu]' there), the output in a folder that all hosts
# have mounted (Filestore, gcsfuse):
#   TPU_NAME=my-slice TPU_ZONE=us-central2-b launch/train_tpu.sh pretrain … --out /mnt/bucket/encoder
set -euo pipefail
: "${TPU_NAME:?set it to the name of the slice}" "${TPU_ZONE:?set it to the zone of the slice}"
printf -v command '%q ' launch/train_local.sh "$@"
number='$(curl -sf -H "Metadata-Flavor: Google" http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number)'
exec gcloud compute tpus tpu-vm ssh "$TPU_NAME" --zone "$TPU_ZONE" --worker all \
    --command "cd ~/qac_jax && QAC_TPU_WORKER=$number $command"
