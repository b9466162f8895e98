"""FLOPs of traced programs, against the known figure and by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax import hardware
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import DualEncoder, DualEncoderConfig
from qac_jax.models.layers import Runtime
from qac_jax.objectives.augtriever import InBatch, MoCo
from qac_jax.objectives.cotmae import CotMae
from qac_jax.objectives.masking import Vocabulary
from qac_jax.training import step


BATCH, LENGTH = 2, 48
IDS = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
LENGTHS = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
# Wide heads, so that what is not counted (softmax, norms, gelu) is small.
CONFIG = BertConfig(250, 256, 2, 2, 512, max_positions=64)


def test_bert_base_is_the_known_figure() -> None:
    """2 FLOPs a parameter of the layers and a token, plus attention: 85 M parameters."""
    module = BertConfig().build(Runtime(scan=True))
    ids, lengths = np.zeros((1, 128), np.int32), np.ones(1, np.int32)
    variables = jax.eval_shape(module.init, jax.random.key(0), ids, lengths)
    parameters = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    attention = 12 * 4 * 768 * 128 * 128
    found = hardware.flops_of(module.apply, variables, ids, lengths)
    assert found == 2 * parameters * 128 + attention


@pytest.mark.slow
def test_a_step_is_three_forward_passes_of_what_is_trained() -> None:
    spec = {"passage": IDS, "passage_length": LENGTHS, "context": IDS, "context_length": LENGTHS}
    vocabulary = Vocabulary(np.zeros(CONFIG.vocab_size, bool))
    saving: dict[str, Any] = {"plain": {}, "saving": {"remat": "layer", "scan": True}}
    objectives = {
        name: CotMae(CONFIG.build(Runtime(**options)), vocabulary=vocabulary)
        for name, options in saving.items()
    }
    found = {name: step.model_flops(one, spec) for name, one in objectives.items()}
    assert found["plain"] == pytest.approx(found["saving"], rel=0.01)  # recomputing is no use
    module = objectives["plain"].module
    variables = jax.eval_shape(module.init, jax.random.key(0), IDS, LENGTHS)
    assert found["plain"] > 3 * hardware.flops_of(module.apply, variables, IDS, LENGTHS)
    # Keys have no backward pass.
    model = DualEncoder(DualEncoderConfig(CONFIG))
    both, one = InBatch(model), MoCo(model, queue_size=BATCH)
    ratio = step.model_flops(one, spec) / step.model_flops(both, spec)
    assert ratio == pytest.approx(4 / 6, rel=0.03)
