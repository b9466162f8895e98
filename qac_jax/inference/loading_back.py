"""Whether an exported folder, loaded again, gives the outputs of the model it was made of."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.inference.tokenizer import tokenizer_of
from qac_jax.models.backbone import Backbone
from qac_jax.models.encoders import SIDES, DualEncoder
from qac_jax.models.pointer import Writer


TEXTS = (
    "How do plants turn sunlight into sugar?",
    "Photosynthesis",
    "Chlorophyll absorbs light, mostly blue and red, and its energy splits water.",
    "naïve café №5: 1,234.5 km²",
)
# As a share of the model's largest output value. A wrong weight differs by a multiple of this.
TOLERANCES = {"float32": 2e-3, "float16": 5e-2}


@dataclasses.dataclass(frozen=True)
class Difference:
    """The greatest absolute difference, and the largest value of the expected outputs."""

    by: str
    greatest: float
    largest: float


def difference(folder: Path, module: Any, variables: Mapping[str, Any]) -> Difference:
    """The difference between the folder's model and `module` in one forward pass."""
    tokenizer = tokenizer_of(folder)
    rows = [ids[:16] for ids in tokenizer.encode_batch(list(TEXTS))]
    ids = np.full((len(rows), 16), tokenizer.pad_id, np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int32)
    with jax.default_matmul_precision("highest"):
        expected = _outputs(module, variables, ids, lengths)
        found = _outputs(*huggingface.load(folder, module.runtime), ids, lengths)
    largest = float(np.abs(expected).max())
    if found.shape != expected.shape:
        return Difference("qac_jax", float("inf"), largest)
    return Difference("qac_jax", float(np.abs(found - expected).max()), largest)


def check(compared: Difference, dtype: str) -> None:
    """Raises UserError for a folder whose outputs differ by more than the tolerance."""
    # Not written with ">", so that a NaN does not pass.
    if not compared.greatest <= TOLERANCES[dtype] * compared.largest:
        raise UserError(
            f"loaded back by {compared.by}, the exported model differs by up to "
            f"{compared.greatest:.3g} where values reach {compared.largest:.3g}; "
            + (
                "keep --dtype float32"
                if dtype != "float32"
                else "the folder is not written; please report this model's configuration"
            )
        )


def _outputs(module: Any, variables: Any, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Vectors of both sides, hidden states or logits; padding is 0."""
    if isinstance(module, DualEncoder):
        # Vectors are compared, not scores: other libraries do not have a scale.
        module = module.clone(config=dataclasses.replace(module.config, scale=1.0))
        apply = jax.jit(module.apply, static_argnames="side")
        return np.stack([np.asarray(apply(variables, ids, lengths, side=side)) for side in SIDES])
    if isinstance(module, Backbone):
        states = jax.jit(lambda v, i, n: module.apply(v, i, n).last)(variables, ids, lengths)
        real = np.arange(ids.shape[1]) < lengths[:, None]
        return np.where(real[..., None], np.asarray(states, np.float32), 0)
    targets = (ids[:, :8],) if isinstance(module, Writer) else ()
    return np.asarray(jax.jit(module.apply)(variables, ids, lengths, *targets), np.float32)
