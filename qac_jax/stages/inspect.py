"""`qac inspect`: an artefact → its kind, its origin, its first items."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

from qac_jax import artifacts, progress
from qac_jax.errors import plain
from qac_jax.formats.records import Records


_LONG = 400


def show(path: str, items: int, verify: bool, task: str) -> int:
    """Prints the artefact's record and first items; the exit code."""
    artifact = artifacts.load(path)
    verified = "  (every byte verified)" if verify else ""
    if verify:
        artifact.verify()
    if verify and artifact.kind == "live":
        from qac_jax.live.verify import verify as verify_live

        verify_live(artifact)
        verified = "  (texts, vectors, words and metadata verified)"
    size = sum(entry["size"] for entry in artifact.files.values())
    print(f"{artifact.path}: {_short(artifact.kind)} (schema {artifact.schema})")
    print(f"  count     {artifact.count:,}")
    print(f"  identity  {_short(artifact.identity)}{verified}")
    made = _short(f"{artifact.stage}, version {artifact.record.get('code', '?')}")
    print(f"  made by   qac {made}")
    print(f"  files     {len(artifact.files)}, {progress.human(size, 'B')}")
    for name, identity in artifact.inputs.items():
        print(f"  from      {_short(f'{name}: {identity}')}")
    for name, value in artifact.info.items():
        if name != "gin":
            print(f"  {_short(name):<9} {_short(value)}")
    first: Iterable[dict[str, Any]] = ()
    if artifact.kind == "examples":
        from qac_jax.data.loader import preview

        first = preview(artifact, items, task=task)
    elif artifact.kind in ("passages", "contexts"):
        first = itertools.islice(Records(artifact), items)
    for item in first:
        for number, (name, value) in enumerate(item.items()):
            print(f"  {' ' if number else '-'} {_short(name)}: {_short(value)}")
    return 0


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = plain(" ".join(text.split()))
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"
