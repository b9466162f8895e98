#!/usr/bin/env bash
# Attacks everything that is written and read: kills, signals, bad input, damage. Prints a table as
# docs/results/reliability.md has it, and exits with 1 if anything was lost. About four hours on 2
# cores; --kills 100 --inputs 1000 --damaged 50 --signals 20 take a tenth of it.
QAC_WITH_DEV=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
export PYTHONPATH="$QAC_ROOT/tests:$QAC_ROOT/tests/campaign"
exec nice python tests/campaign/campaign.py --work "${QAC_CAMPAIGN_DIR:-$(mktemp -d)}" "$@"
