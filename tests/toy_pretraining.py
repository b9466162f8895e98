"""Small pre-training objectives with heads."""

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
BERT = BertConfig(64, 16, 2, 2, 32, 12)


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
