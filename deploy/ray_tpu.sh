#!/usr/bin/env bash
# Ray on the hosts of a TPU VM slice, each with its own four chips; run it where `gcloud` is. The
# arguments go to `qac`, which runs on the first host. The checkout must lie in ~/qac_jax on every
# host (once: .venv/bin/pip install 'jax[tpu]' ray there), the folders where all have mounted them:
#   TPU_NAME=my-slice TPU_ZONE=us-central2-b deploy/ray_tpu.sh embed … --out /mnt/bucket/vectors
# Training over hosts: launch/train_tpu.sh.
set -euo pipefail
: "${TPU_NAME:?set it to the name of the slice}" "${TPU_ZONE:?set it to the zone of the slice}"
tpu=(gcloud compute tpus tpu-vm)
where=("$TPU_NAME" --zone "$TPU_ZONE")
read -r first hosts <<<"$("${tpu[@]}" describe "${where[@]}" \
    --format 'value[separator=" "](networkEndpoints[0].ipAddress,networkEndpoints.len())')"
printf -v command '%q ' qac "$@" --engine "$first:6379" --resources TPU=4
alone="RAY_USAGE_STATS_ENABLED=0 TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1"
# Only who knows this run's token gives its hosts work.
token="$(head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1)"
alone+=" RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$token"
exec "${tpu[@]}" ssh "${where[@]}" --worker all --command \
    "cd ~/qac_jax && source launch/setup.sh && $alone ray symmetric-run --address $first:6379 --min-nodes $hosts -- $command"
