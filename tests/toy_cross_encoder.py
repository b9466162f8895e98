"""A tiny cross-encoder that says something, for the tests of reranking and labelling."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from qac_jax.hub import huggingface
from qac_jax.models.bert import BertConfig
from qac_jax.models.encoders import CrossEncoder
from qac_jax.text import tokenizers


def save_cross_encoder(folder: Path, labels: int = 1, positions: int = 64) -> Path:
    """A Hugging Face folder with random weights and the shipped vocabulary."""
    bert = BertConfig(
        vocab_size=tokenizers.load().vocab_size,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_positions=positions,
        pooler=True,
    )
    module = CrossEncoder(bert, labels=labels)
    shapes = (jnp.zeros((1, 4), jnp.int32), jnp.full(1, 4, jnp.int32))
    variables = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), *shapes))
    rng = np.random.default_rng(0)

    def random(path: Any, leaf: Any) -> np.ndarray:
        # Far from zero, or all scores would be nearly the same; drawn here, as compiling is slow.
        values = rng.normal(0.0, 0.4, leaf.shape)
        return (values + (path[-1].key == "scale")).astype(np.float32)

    variables = jax.tree_util.tree_map_with_path(random, variables)
    tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
    return huggingface.save(folder, module, variables, tokenizer=tokenizer)
