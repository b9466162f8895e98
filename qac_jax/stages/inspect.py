"""`qac inspect`: an artefact → its kind, its origin, its first items."""

import importlib
import itertools
import json
from typing import Any

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact
from qac_jax.errors import UserError, plain


# Kind -> what shows its first items, imported only when needed.
_PREVIEWS = {
    "passages": "qac_jax.formats.records:Records",
    "contexts": "qac_jax.formats.records:Records",
    "examples": "qac_jax.data.loader:preview",
}
_LONG = 400


def show(path: str, items: int, as_json: bool, verify: bool, task: str, spans: bool = False) -> int:
    """Prints the artefact's record and first items; the exit code."""
    artifact = artifacts.load(path)
    if verify:
        artifact.verify()
    if spans and artifact.kind != "contexts":
        raise UserError(
            f"--spans shows what qac extract made; {path} is of kind {artifact.kind!r}, so leave "
            "it out"
        )
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
        print(_ranked(item) if spans else _block(item) if isinstance(item, dict) else _short(item))
    return 0


def first_items(artifact: Artifact, count: int, task: str = "") -> list[Any]:
    """The first items, of kinds that can be shown."""
    if artifact.kind not in _PREVIEWS:
        return []
    module, name = _PREVIEWS[artifact.kind].split(":")
    reader = getattr(importlib.import_module(module), name)
    if artifact.kind == "examples":
        return reader(artifact, count, **({"task": task} if task else {}))
    return list(itertools.islice(reader(artifact), count))


def _block(item: dict[str, Any]) -> str:
    return "\n".join(
        f"  {'-' if i == 0 else ' '} {name}: {_short(value)}"
        for i, (name, value) in enumerate(item.items())
    )


def _ranked(item: dict[str, Any]) -> str:
    """A passage's scored contexts, best first, one line each."""
    scored = [c for c in item["contexts"] if c.get("score") is not None]
    scored.sort(key=lambda context: -context["score"])
    lines = [f"  - {item['_id']}" + ("" if scored else ": nothing is scored")]
    lines += [f"    {c['score']:>10.3f}  {c['origin']:<10}  {_short(c['text'])}" for c in scored]
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = plain(" ".join(text.split()))
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"
