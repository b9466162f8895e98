#!/usr/bin/env bash
# Attacks everything that is written and read: kills, signals, loss of power, bad input, damage, full
# disks, links. Prints a table as docs/results/reliability.md has it, and exits with 1 if anything
# was lost. It may be stopped: with the same QAC_CAMPAIGN_DIR and --seed it continues, also with
# larger numbers. --minutes 30 stops by itself, --quick leaves networks out, --table only prints.
QAC_WITH_DEV=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
export PYTHONPATH="$QAC_ROOT/tests:$QAC_ROOT/tests/campaign"
exec nice python tests/campaign/campaign.py --work "${QAC_CAMPAIGN_DIR:-$(mktemp -d)}" "$@"
