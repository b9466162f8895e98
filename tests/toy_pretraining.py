"""Small pre-training objectives with heads, and batches for them."""

from typing import Any

import numpy as np

from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import BertConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.cocondenser import CoCondenser
from qac_jax.objectives.condenser import Condenser
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.dupmae import DupMae
from qac_jax.objectives.masking import Masking, Vocabulary
from qac_jax.objectives.retromae import RetroMae


VOCABULARY = Vocabulary(np.arange(64) % 3 == 2)
SIZE, PASSAGE, CONTEXT = 16, 12, 6
BERT = BertConfig(64, 16, 2, 2, 32, PASSAGE)


def objectives(dtype: str = "float32", config: BackboneConfig = BERT) -> dict[str, Any]:
    model = config.build(Runtime(dtype=dtype))
    return {
        "condenser": Condenser(model, Masking(0.3), VOCABULARY, head_layers=1),
        "cocondenser": CoCondenser(
            model, Masking(0.3), VOCABULARY, head_layers=1, temperature=2.0, coefficient=0.5
        ),
        "cotmae": CotMae(model, vocabulary=VOCABULARY, decoder="both", mlm_layers=1),
        "cotmae_symmetric": CotMae(
            model, vocabulary=VOCABULARY, mlm_layers=1, symmetric=True, encoder_mlm=False
        ),
        "retromae": RetroMae(model, vocabulary=VOCABULARY),
        "retromae_pairs": RetroMae(model, vocabulary=VOCABULARY, visible_sets=3, embeddings="sum"),
        "retromae_basic": RetroMae(model, vocabulary=VOCABULARY, enhanced=False),
        "dupmae": DupMae(model, vocabulary=VOCABULARY),
    }


NAMES = list(objectives())


def make_batch(seed: int = 0, size: int = SIZE) -> dict[str, np.ndarray]:
    """Texts of unequal lengths; among them one with nothing to mask."""
    rng = np.random.default_rng(seed)
    batch = {}
    for name, length in (("tokens", PASSAGE), ("passage", PASSAGE), ("context", CONTEXT)):
        lengths = rng.integers(4, length + 1, size).astype(np.int32)
        ids = rng.integers(5, 60, (size, length)).astype(np.int32)
        ids[:, 0] = VOCABULARY.cls
        ids[3, 1:] = VOCABULARY.unk
        batch[name] = np.where(np.arange(length) < lengths[:, None], ids, 0).astype(np.int32)
        batch[f"{name}_length"] = lengths
    return batch


def batch_for(name: str) -> dict[str, np.ndarray]:
    """What the loader would give: its features alone."""
    single = name in ("condenser", "retromae", "retromae_basic", "dupmae")
    mine = ("tokens",) if single else ("passage", "context")
    return {n: x for n, x in make_batch().items() if n.removesuffix("_length") in mine}
