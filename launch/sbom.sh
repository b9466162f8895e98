#!/usr/bin/env bash
# Writes a software bill of materials (CycloneDX 1.6, JSON) of lock files to the screen:
# launch/sbom.sh [FILE …], launch/constraints-3.11.txt by default. Licences are those that the installed
# packages state, so it is complete after launch/setup.sh; it installs nothing and needs no network.
# The same files and packages give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
[ -x "$python" ] || python="${QAC_PYTHON:-python3}"
[ $# -gt 0 ] || set -- launch/constraints-3.11.txt
exec "$python" - "$@" <<'PYTHON'
import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path


def licences(name):
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return {}
    if expression := about.get("License-Expression"):
        return {"licenses": [{"expression": expression}]}
    classified = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or () if "License" in c]
    stated = classified or (about.get("License") or "").strip().splitlines()[:1]
    return {"licenses": [{"license": {"name": each[:80]}} for each in stated]} if stated else {}


def component(kind, name, version, hashes=()):
    place = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
    found = {"type": kind, "bom-ref": place, "name": name, "version": version, "purl": place}
    if hashes:
        found["hashes"] = [{"alg": "SHA-256", "content": each} for each in hashes]
    return {**found, **licences(name)}


try:
    lines = [line for file in sys.argv[1:] for line in Path(file).read_text("utf-8").splitlines()]
except (OSError, UnicodeDecodeError) as error:
    sys.exit(f"launch: {error}; give lock files such as launch/constraints-3.11.txt")
parts = {}
for line in lines:
    if pinned := re.match(r"([\w.-]+)==([\w.!+-]+)", line):
        made = component("library", *pinned.groups(), re.findall("sha256:([0-9a-f]{64})", line))
        parts.setdefault(made["bom-ref"], made)
(version,) = re.findall('__version__ = "(.+)"', Path("qac_jax/__init__.py").read_text("utf-8"))
ours = component("application", "qac_jax", version)
bom = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
bom["metadata"] = {"component": ours}
bom["components"] = sorted(parts.values(), key=lambda part: part["bom-ref"])
bom["dependencies"] = [{"ref": ours["bom-ref"], "dependsOn": sorted(parts)}]
bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom))}"
print(json.dumps(bom, indent=1))
PYTHON
