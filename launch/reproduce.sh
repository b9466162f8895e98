#!/usr/bin/env bash
# Measures figures of docs/results again (tests/reproductions/figures.yaml) and says whether they are within
# their tolerance; --help lists them:
#   launch/reproduce.sh claim_qac_none claim_qac_cocondenser --data DATA     # claim (a), two hours
# DATA (or QAC_DATA) is the folder with wikisquad, forum, tales, scifact, npl and cisi in BEIR's
# layout. What is finished is kept in out/reproductions.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec python "$QAC_ROOT/tests/reproductions/reproduce.py" "$@"
