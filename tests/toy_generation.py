"""A tiny T5 with random weights and the shipped vocabulary, for the tests of generation."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qac_jax.hub import backbones, huggingface
from qac_jax.models.t5 import T5, T5Config
from qac_jax.text import tokenizers


@functools.cache
def model() -> tuple[T5, Any]:
    tokenizer = tokenizers.load()
    size, cls, sep = tokenizer.vocab_size + 16, tokenizer.cls_id, tokenizer.sep_id
    config = T5Config(size, 16, 8, 24, 1, 1, 2, 8, 16, start_id=cls, eos_id=sep)
    module = T5(config)
    rng = np.random.default_rng(0)
    shapes = backbones.new_parameters(module, abstract=True)
    params = jax.tree.map(lambda x: rng.normal(0.0, 0.5, x.shape).astype(np.float32), shapes)
    # Rows of no piece are the likeliest of all, and the end comes now and then.
    table = params["shared"]["embedding"]
    table[tokenizer.vocab_size :] *= 4.0
    table[tokenizer.sep_id] *= 2.0
    return module, params


def save_generator(folder: Path) -> Path:
    """The same as a Hugging Face folder."""
    module, params = model()
    tokenizer = tokenizers.ASSETS / tokenizers.SHIPPED
    return huggingface.save(folder, module, {"params": params}, tokenizer=tokenizer)
