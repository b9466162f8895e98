"""What the record of an artefact holds, as types: whoever opens one can rely on them.

A record bears a hash of itself, which finds damage; a stranger can write one that fits. So types
and signs are compared too, and what a record counts is compared where the file is opened.
"""

from typing import Any

from qac_jax import fields


Json = dict[str, Any]

ENTRY: Json = {"size": int, "sha256": str, "volatile?": bool, "grows?": bool}
_TEXTS: Json = {"path": str, "identity": str, "relative?": str, "rows?": int}
_ENCODER: Json = {"path": str, "relative?": str, "options?": dict, "prompts?": dict[str, str]}
_INDEX: Json = {"texts": [_TEXTS], "encoder": _ENCODER}

# What `info` has at least, by the artefact's kind.
INFO: dict[str, Json] = {
    "vectors": {"dimension": int, "side": str, "encoder": _ENCODER, "texts": _TEXTS},
    "bm25": {"texts": [_TEXTS]},
    "index": _INDEX,
    "hybrid": {**_INDEX, "cosine": bool},
    "live": {**_INDEX, "dimension": int, "manifest": dict},
    "examples": {"task": str, "form": dict, "shards": list[int]},
}
# Files of JSON, and the records of files of text, by their names.
FILES: dict[str, Json] = {
    "index.json": {"method": str, "dimension": int, "parts": dict[str, dict]},
    "bm25.json": {"stemmer": str, "stop_words": str | bool, "variant": str},
}
RECORDS: dict[str, Json] = {
    "passages": {"_id": str, "title?": str | None, "text?": str, "tokens?": list[int]},
    "contexts": {"_id": str, "contexts": [{"text": str, "origin?": str}]},
}


def check(values: Any, types: Json) -> None:
    """Raises for values that are not of these types, or missing."""
    for name, hint in types.items():
        fields.check_value(values[name], hint, name)
