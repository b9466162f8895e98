#!/usr/bin/env bash
# Adds a row to docs/results/leaderboard.md; --help says what it may differ in:
#   launch/leaderboard.sh --data DATA                      # some two hours on two cores
#   launch/leaderboard.sh --data DATA --labels --out out/labels -- --rounds 2
# DATA (or QAC_DATA) is the folder with scifact, forum, tales, wikisquad, npl and cisi in BEIR's layout. What is
# finished is kept.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec python "$QAC_ROOT/tests/reproductions/leaderboard.py" "$@"
