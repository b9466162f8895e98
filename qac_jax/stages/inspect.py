"""`qac inspect`: an artefact → its kind, its origin, its first items."""

import itertools
import json
from typing import Any

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import plain
from qac_jax.formats.records import Records


_LONG = 400


def show(path: str, items: int, as_json: bool, verify: bool, task: str) -> int:
    """Prints the artefact's record and first items; the exit code."""
    artifact = artifacts.load(path)
    if verify:
        artifact.verify()
    first = first_items(artifact, items, task)
    if as_json:
        names = ("kind", "count", "identity", "schema", "stage", "seed", "inputs", "fields", "info")
        record = {
            **{name: getattr(artifact, name) for name in names},
            "files": {n: e["size"] for n, e in artifact.files.items()},
            "verified": verify,
            "items": first,
        }
        print(plain(json.dumps(record, indent=1, ensure_ascii=False)))
        return 0
    size = sum(entry["size"] for entry in artifact.files.values())
    print(f"{artifact.path}: {artifact.kind} (schema {artifact.schema})")
    print(f"  count     {artifact.count:,}")
    print(f"  identity  {artifact.identity}" + ("  (every byte verified)" if verify else ""))
    print(f"  made by   qac {artifact.stage}, version {artifact.record['code']}")
    print(f"  files     {len(artifact.files)}, {progress.human(size, 'B')}")
    for name, identity in artifact.inputs.items():
        print(f"  from      {name}: {identity}")
    for name, value in artifact.info.items():
        if name != "gin":
            print(f"  {name:<9} {_short(value)}")
    for item in first:
        print(_block(item) if isinstance(item, dict) else _short(item))
    return 0


def first_items(artifact: Artifact, count: int, task: str = "") -> list[Any]:
    """The first items, of kinds that can be shown."""
    if artifact.kind == "examples":
        from qac_jax.data.loader import preview

        return preview(artifact, count, task=task)
    if artifact.kind not in ("passages", "contexts"):
        return []
    return list(itertools.islice(Records(artifact), count))


def _block(item: dict[str, Any]) -> str:
    return "\n".join(
        f"  {'-' if i == 0 else ' '} {name}: {_short(value)}"
        for i, (name, value) in enumerate(item.items())
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = plain(" ".join(text.split()))
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"
