#!/usr/bin/env bash
# Installs into .venv if needed and runs the fast tests; arguments go to pytest.
QAC_WITH_DEV=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
# What tests compiled a fortnight ago (tests/conftest.py) is compiled again, so that it does not pile up.
find "${XDG_CACHE_HOME:-$HOME/.cache}/qac_jax/tests" -type f -mtime +14 -delete 2> /dev/null || true
# Two processes: most of the time goes into compiling, which uses one core.
# A process that dies ends the run with its test's name: pytest-xdist 3.8 replaces it, then waits for ever.
exec python -m pytest --numprocesses "${QAC_TEST_PROCESSES:-2}" --dist loadfile \
    --no-loadscope-reorder --max-worker-restart 0 "$@"
