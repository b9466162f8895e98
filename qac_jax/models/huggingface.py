"""The bridge to Hugging Face folders: load and save models, heads, dual encoders.

    module, variables = huggingface.load("path/to/bert-base-uncased")
    huggingface.save("out/model", module, variables, tokenizer="path/to/bert-base-uncased")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from qac_jax.models import backbones
from qac_jax.models.layers import Runtime


def load(
    folder: str | os.PathLike[str],
    runtime: Runtime | None = None,
    *,
    pooler: bool | None = None,
    mlm_head: bool | None = None,
    prefix: str | None = None,
    allow_unused: Sequence[str] = (),
    allow_missing: Sequence[str] = (),
    seed: int = 0,
) -> backbones.Loaded:
    allowance = backbones.Allowance(tuple(allow_unused), tuple(allow_missing), seed)
    return backbones.load(
        Path(folder), runtime or Runtime(), allowance, pooler=pooler, mlm_head=mlm_head, prefix=prefix
    )
