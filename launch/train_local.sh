#!/usr/bin/env bash
# Trains on this machine, whatever devices it has; arguments go to `qac`:
#   launch/train_local.sh pretrain --gin_file gin_configs/objectives/mlm.gin \
#       --examples out/examples --steps 1000 --out out/encoder
# The same command again continues an interrupted run.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
exec qac "$@"
