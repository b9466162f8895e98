#!/usr/bin/env bash
# Installs into .venv if needed and serves an index: launch/serve.sh [INDEX [flags of qac serve]].
# Without one: that of the demo, made into a living index once.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
if [ "$#" -gt 0 ] && [ "${1#-}" = "$1" ]; then
    exec qac serve --index "$@"
fi
demo=out/demo/index
live=out/demo_live
if [ ! -f "$live/artifact.json" ]; then
    [ -f "$demo/artifact.json" ] || _fail "there is no $demo; run launch/demo.sh first, or name an index"
    qac index "$live" --add "$demo"
fi
exec qac serve --index "$live" "$@"
