#!/usr/bin/env bash
# Installs into .venv if needed and runs the fast tests; arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
exec python -m pytest "$@"
