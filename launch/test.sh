#!/usr/bin/env bash
# Installs into .venv if needed and runs the fast tests; arguments go to pytest.
QAC_WITH_DEV=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
# Two processes: most of the time goes into compiling, which uses one core.
exec python -m pytest --numprocesses "${QAC_TEST_PROCESSES:-2}" --dist loadfile "$@"
