"""The first examples as text, for `qac inspect --task NAME`."""

from __future__ import annotations

from typing import Any

import numpy as np

from qac_jax.artifacts import Artifact
from qac_jax.data.examples import Examples
from qac_jax.data.loader import make_featurizer
from qac_jax.data.randomness import ExampleRng
from qac_jax.text import tokenizers


def preview(
    artifact: Artifact, count: int, *, task: str = "", seed: int = 0
) -> list[dict[str, Any]]:
    """The first examples of an artefact, read as `task` (default: the kind it was made for)."""
    source = Examples(artifact)
    settings = _all_strategies(source) if (task or source.info["task"]) == "augtriever" else {}
    featurizer = make_featurizer(source, task, settings)
    tokenizer = tokenizers.load(source.tokenizer_folder)
    rng = ExampleRng()

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(part) for part in value]
        return tokenizer.backend.decode(value.tolist(), skip_special_tokens=False)

    previews = []
    indices = np.arange(min(count, source.count))
    for index, record in zip(indices.tolist(), source.read(indices), strict=True):
        example = featurizer.example(record, rng.seek(seed, 0, index))
        texts: dict[str, Any] = {}
        for name, feature in featurizer.features.items():
            if feature.like:
                continue  # token types are of no use to a reader
            value = example[name]
            texts[name] = shown(value) if feature.padded else np.asarray(value).tolist()
        previews.append(texts)
    return previews


def _all_strategies(source: Examples) -> dict[str, Any]:
    """Every strategy whose texts are stored, with equal weights."""
    named = [name for name in source.info["schema"] if name + "_lengths" in source.info["schema"]]
    return {"strategies": dict.fromkeys(["random_crop", *named], 1.0)}
