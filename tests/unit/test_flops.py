"""FLOP formulas against XLA's count of unrolled small models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qac_jax.errors import UserError
from qac_jax.hub import backbones
from qac_jax.models import flops
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import Bert, BertConfig
from qac_jax.models.distilbert import DistilBertConfig
from qac_jax.models.electra import ElectraConfig
from qac_jax.models.encoders import CrossEncoder
from qac_jax.models.heads import BidirectionalHead, CausalDecoder
from qac_jax.models.layers import Runtime
from qac_jax.models.modernbert import ModernBertConfig
from qac_jax.models.mpnet import MpnetConfig
from qac_jax.models.roberta import RobertaConfig
from qac_jax.models.t5 import T5, T5Config
from qac_jax.models.t5_encoder import T5EncoderConfig


# Wide heads, so that what the formulas leave out (softmax, norms, gelu) is small.
CONFIG = BertConfig(
    vocab_size=250,
    hidden_size=256,
    num_layers=2,
    num_heads=2,
    intermediate_size=512,
    max_positions=64,
    pooler=True,
    mlm_head=True,
)
BATCH, LENGTH = 2, 48
LOAD = flops.Load.padded(BATCH, LENGTH)
IDS = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
LENGTHS = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
VECTORS = jax.ShapeDtypeStruct((BATCH, 256), jnp.float32)
STATES = jax.ShapeDtypeStruct((BATCH, LENGTH, 256), jnp.float32)
T5_CONFIG = T5Config(250, 256, 64, 512, num_layers=2, num_decoder_layers=1, num_heads=3)


def _xla(module: Any, inputs: tuple[Any, ...], output: Callable, gradient: bool) -> float:
    """XLA's count of the forward pass, or of the gradient for all parameters."""
    variables = jax.eval_shape(module.init, jax.random.key(0), *inputs)

    def total(variables: Any, *inputs: Any) -> jax.Array:
        return jnp.sum(output(module, variables, *inputs))

    run = jax.jit(jax.grad(total) if gradient else total)
    counted = run.lower(variables, *inputs).cost_analysis()
    assert counted is not None
    return counted["flops"]


def _last(module: Any, variables: Any, *inputs: Any) -> Any:
    return module.apply(variables, *inputs).last


def _itself(module: Any, variables: Any, *inputs: Any) -> Any:
    return module.apply(variables, *inputs)


def _mlm(module: Any, variables: Any, *inputs: Any) -> Any:
    out = module.apply(variables, *inputs)
    positions = jnp.zeros((BATCH, 7), jnp.int32)
    logits = module.apply(variables, out.last, positions, method="mlm_logits")
    return jnp.square(logits).sum() + jnp.square(out.pooled).sum()


CASES: dict[str, tuple[Any, tuple[Any, ...], Callable, flops.Flops]] = {
    "layers": (
        Bert(dataclasses.replace(CONFIG, pooler=False, mlm_head=False)),
        (IDS, LENGTHS),
        _last,
        CONFIG.with_parts().flops(LOAD),
    ),
    "mlm": (Bert(CONFIG), (IDS, LENGTHS), _mlm, CONFIG.flops(LOAD, predictions=7 * BATCH)),
    "cross": (
        CrossEncoder(CONFIG, labels=2),
        (IDS, LENGTHS),
        _itself,
        CONFIG.flops(LOAD, rows=1) + flops.classifier(256, 2, BATCH),
    ),
    "bidirectional": (
        BidirectionalHead(CONFIG, num_layers=1),
        (VECTORS, STATES, LENGTHS),
        _itself,
        BidirectionalHead(CONFIG, num_layers=1).flops(LOAD),
    ),
    "causal": (
        CausalDecoder(CONFIG, num_layers=1, window=3),
        (VECTORS, STATES, LENGTHS),
        _itself,
        CausalDecoder(CONFIG, num_layers=1).flops(LOAD),
    ),
    "t5": (
        T5(T5_CONFIG),
        (IDS, LENGTHS, jax.ShapeDtypeStruct((BATCH, 20), jnp.int32)),
        _itself,
        T5_CONFIG.flops(LOAD, flops.Load.padded(BATCH, 20), BATCH * LENGTH * 20),
    ),
    "t5_gated": (
        T5(dataclasses.replace(T5_CONFIG, feed_forward="gated-gelu")),
        (IDS, LENGTHS, jax.ShapeDtypeStruct((BATCH, 20), jnp.int32)),
        _itself,
        dataclasses.replace(T5_CONFIG, feed_forward="gated-gelu").flops(
            LOAD,
            flops.Load.padded(BATCH, 20),
            BATCH * LENGTH * 20,
        ),
    ),
}


_SIZES: dict[str, Any] = {
    "vocab_size": 250,
    "hidden_size": 256,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 512,
    "max_positions": 66,
}
BACKBONES: dict[str, BackboneConfig] = {
    "roberta": RobertaConfig(**_SIZES, mlm_head=True),
    "distilbert": DistilBertConfig(**_SIZES, mlm_head=True),
    "electra": ElectraConfig(**_SIZES, embedding_size=128, mlm_head=True),
    "mpnet": MpnetConfig(**_SIZES, mlm_head=True),
    "modernbert": ModernBertConfig(**_SIZES, mlm_head=True),  # with windows wider than the texts
    "t5_encoder": T5EncoderConfig(**_SIZES, head_size=64, feed_forward="gated-gelu"),
}


def _words(module: Any, variables: Any, *inputs: Any) -> Any:
    last = module.apply(variables, *inputs).last
    if not module.config.mlm_head:
        return last
    positions = jnp.zeros((BATCH, 7), jnp.int32)
    return module.apply(variables, last, positions, method="mlm_logits")


@pytest.mark.parametrize("name", BACKBONES)
def test_every_encoder_is_xlas_count(name: str) -> None:
    config = BACKBONES[name]
    formula = config.flops(LOAD, predictions=7 * BATCH if config.mlm_head else 0).forward
    # Relative positions are a product of their own, once for all layers and texts.
    buckets = getattr(config, "num_buckets", 0)
    formula += 2.0 * LENGTH**2 * config.num_heads * buckets
    counted = _xla(config.build(Runtime()), (IDS, LENGTHS), _words, gradient=False)
    assert counted == pytest.approx(formula, rel=0.03)


# As their authors' folders say: parameters of the encoder, with a pooler where it has one.
PUBLISHED: dict[str, tuple[BackboneConfig, int]] = {
    "roberta-base": (RobertaConfig(max_positions=514, type_vocab_size=1, pooler=True), 124_645_632),
    "distilbert-base": (DistilBertConfig(), 66_362_880),
    "electra-base": (ElectraConfig(30522, 768, 12, 12, 3072, embedding_size=768), 108_891_648),
    # Without the dense layer of the discriminator, which is not read.
    "electra-small": (ElectraConfig(), 13_548_800 - 256 * 257),
    "mpnet-base": (MpnetConfig(max_positions=514, pooler=True), 109_486_464),
    "modernbert-base": (ModernBertConfig(), 149_014_272),
    "gtr-base": (T5EncoderConfig(32128, 768, 12, 12, 3072), 109_628_544),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_known_figures(name: str) -> None:
    config, expected = PUBLISHED[name]
    shapes = backbones.new_parameters(config.build(Runtime(scan=True)), abstract=True)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected


@pytest.mark.parametrize("name", CASES)
def test_forward_is_xlas_count(name: str) -> None:
    module, inputs, output, formula = CASES[name]
    assert _xla(module, inputs, output, gradient=False) == pytest.approx(formula.forward, rel=0.03)


@pytest.mark.parametrize("remat", ["none", "attention", "layer"])
def test_training_is_xlas_count(remat: str) -> None:
    config = dataclasses.replace(CONFIG, pooler=False)
    _, inputs, output, formula = CASES["layers"]
    module = Bert(dataclasses.replace(config, mlm_head=False), Runtime(remat=remat))

    def loss(*arguments: Any) -> Any:
        return jnp.square(output(*arguments))

    counted = _xla(module, inputs, loss, gradient=True)
    assert counted == pytest.approx(formula.training(remat), rel=0.05)


def test_recomputation_by_policy() -> None:
    formula = CONFIG.flops(LOAD, predictions=5)
    attention = formula.parts["attention"]
    assert formula.recomputed("none") == 0
    assert formula.recomputed("dots") == formula.recomputed("attention") == attention
    layers = formula.forward - formula.parts["mlm_head"] - formula.parts["pooler"]
    assert formula.recomputed("layer") == pytest.approx(layers)
    with pytest.raises(UserError, match="did you mean 'layer'"):
        formula.recomputed("layers")


def test_padding_is_seen() -> None:
    real = CONFIG.flops(flops.Load.of([48, 24]))
    padded = CONFIG.flops(LOAD)
    assert real.parts["mlp"] == pytest.approx(0.75 * padded.parts["mlp"])
    assert real.parts["attention"] == pytest.approx(0.625 * padded.parts["attention"])
    same = CONFIG.flops(flops.Load.of(np.full((BATCH,), LENGTH)))
    assert same == padded


def test_bert_base_is_the_known_figure() -> None:
    """2 FLOPs a parameter of the layers and a token, plus attention: 85 M parameters."""
    formula = BertConfig().flops(flops.Load.padded(1, 128))
    parameters = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    attention = 12 * 4 * 768 * 128 * 128
    assert formula.forward == 2 * parameters * 128 + attention
