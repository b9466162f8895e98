#!/usr/bin/env bash
# Lists package, version and licence of everything that is installed; with --advisories, looks the
# pinned versions up in PyPI's advisories by pip-audit, in an environment of its own (a network).
# Exit codes: 0 nothing known, 1 advisories (they are listed), 2 it could not be looked up.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$QAC_ROOT"
if [ "${1:-}" != --advisories ]; then
    exec python - <<'PYTHON'
from importlib import metadata

for package in sorted(metadata.distributions(), key=lambda d: d.name.lower()):
    about = package.metadata
    classified = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or () if "License" in c]
    stated = about.get("License-Expression") or ", ".join(classified) or about.get("License") or "?"
    print(f"{package.name}\t{package.version}\t{stated.splitlines()[0][:80]}")
PYTHON
fi
python -c 'import urllib.request as r; r.urlopen("https://pypi.org/pypi/pip/json", timeout=20)' \
    >/dev/null 2>&1 ||
    _fail "PyPI's advisories cannot be reached; run this with a network (without --advisories it lists licences)"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
python -m venv "$place"
"$place/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit ||
    _fail "pip-audit could not be installed; see the lines above, and run this again"
"$place/bin/pip-audit" --no-deps --disable-pip -r "$QAC_PINS.txt"
