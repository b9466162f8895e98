#!/usr/bin/env bash
# Installs into .venv if needed and walks the demo's road; arguments go to `qac run`.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
exec qac run demo --out out/demo "$@"
