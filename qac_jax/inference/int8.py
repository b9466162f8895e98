"""Encoders of BERT's family as graphs of OpenVINO, in int8 on CPUs (`--precision int8`).

The matrix products of the layers, nearly all of the work, are of int8 numbers (XLA's own are hardly
faster than those of fp32 on CPUs). A product's weights have a scale for each output, what they
multiply has one, measured on passages that ship. There a few inputs are far larger than all others,
so each is divided by a factor that its weights are multiplied by (SmoothQuant; Xiao et al., 2023).
All else is fp32, and what follows the last hidden states is JAX's. `qac export` stores such graphs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.errors import UserError
from qac_jax.hub import weights
from qac_jax.inference import engines
from qac_jax.inference.runner import Hidden
from qac_jax.models.backbone import BackboneConfig
from qac_jax.models.bert import FamilyConfig, MpnetConfig
from qac_jax.text.tokenizers import ASSETS


_PASSAGES = ASSETS / "demo" / "wikipedia" / "corpus.jsonl"
_EVERY = 34  # passage is measured
_LONGEST = 128  # tokens of them
_SMOOTHED = 0.75  # how much of a factor's logarithm is its input's; the rest is its weights'
_STEPS = 255  # of int8
_LEAST = 1e-6  # of what is divided by
_ACTIVATIONS = {
    "gelu": lambda op, x: op.gelu(x, "erf"),
    "gelu_new": lambda op, x: op.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda op, x: op.gelu(x, "tanh"),
    "relu": lambda op, x: op.relu(x),
    "tanh": lambda op, x: op.tanh(x),
}

# Of each product the largest of -x and of x for each of its inputs.
Reached = Sequence[np.ndarray]
# Ids and token types of texts.
Samples = Iterable[tuple[np.ndarray, np.ndarray]]


def passages() -> list[dict[str, str]]:
    """Passages that are measured on, with titles."""
    lines = _PASSAGES.read_text(encoding="utf-8").splitlines()[::_EVERY]
    return [json.loads(line) for line in lines]


def encoder(
    config: BackboneConfig, params: Mapping[str, Any], samples: Samples, rows: int | None
) -> Hidden:
    """The backbone in int8, measured on samples; with `rows` its last layer computes the first
    `rows` positions alone."""
    reached = measured(config, params, samples)
    compute = engines.openvino(Graph(config, params, rows, reached).model())
    return lambda *batch: compute(*batch)[0]


def check(config: BackboneConfig, what: str = "--precision int8") -> FamilyConfig:
    known = not isinstance(config, MpnetConfig) and config.activation in _ACTIVATIONS
    if isinstance(config, FamilyConfig) and known:
        return config
    raise UserError(
        f"{what} is for encoders of BERT's family, not for this {config.display_name} with "
        f"{config.activation}; leave it out"
    )


def measured(config: BackboneConfig, params: Mapping[str, Any], samples: Samples) -> Reached:
    """What products of the backbone are given for ids and token types."""
    measure = engines.openvino(Graph(config, params, measure=True).model())
    reached: list[np.ndarray] = []
    for ids, types in samples:
        batch = (np.asarray(part[None, :_LONGEST], np.int32) for part in (ids, types))
        found = measure(*batch, np.array([min(ids.size, _LONGEST)], np.int32))[1:]
        reached = list(map(np.maximum, found, reached or found))
    return reached


class Graph:
    """The backbone as operations of OpenVINO, which exporting/graphs.py replaces."""

    def __init__(
        self,
        config: BackboneConfig,
        params: Mapping[str, Any],
        rows: int | None = None,
        reached: Reached | None = None,
        classifier: Mapping[str, Any] | None = None,
        measure: bool = False,
    ):
        """In fp32 without `reached`; then `measure` adds what is reached to the results. With a
        classifier the result is its logits."""
        self.config, self.params, self.rows = check(config), weights.looped(params), rows
        self.reached = None if reached is None else iter(reached)
        self.classifier = classifier
        self.measured: list[Any] | None = [] if measure else None
        self.op: Any = None

    def model(self) -> Any:
        ov, self.op = engines.library("openvino"), engines.library("openvino.opset13")
        inputs, results = self.built()
        results[0].output(0).set_names({self.result})
        return ov.Model([self.op.result(found) for found in results], inputs)

    @property
    def result(self) -> str:
        return "last_hidden_state" if self.classifier is None else "logits"

    def built(self) -> tuple[list[Any], list[Any]]:
        """Its inputs, named as transformers names them, and its results."""
        op, config, embeddings = self.op, self.config, self.params["embeddings"]
        names = engines.INPUTS if config.token_types > 1 else engines.INPUTS[:2]
        inputs = [self.input(name) for name in names]
        ids, mask, *types = inputs
        zero, one = self.whole([0]), self.whole([1])

        def table(name: str, start: int = 0) -> Any:
            return self.real(np.asarray(embeddings[name]["embedding"])[start:])

        length = op.gather(op.shape_of(ids), one, self.whole(0))
        positions = op.slice(table("position", config.first_position), zero, length, one, zero)
        x = op.add(op.gather(table("word"), ids, self.whole(0)), positions)
        if types:
            x = op.add(x, op.gather(table("type"), types[0], self.whole(0)))
        elif config.type_vocab_size:
            x = op.add(x, self.real(np.asarray(embeddings["type"]["embedding"])[0]))
        x = self.norm(x, embeddings["norm"])
        if config.embedding_size != config.hidden_size:
            x = self.dense(x, embeddings["project"])[0]
        # 0 for what is seen, and a large negative number.
        mask = op.subtract(op.convert(mask, "f32"), self.real(1.0))
        mask = op.unsqueeze(op.multiply(mask, self.real(1e9)), self.whole([1, 2]))
        for number in range(config.num_layers):
            last = number == config.num_layers - 1
            layer = self.params["layers"][str(number)]
            x = self.layer(x, mask, layer, self.rows if last else None)
        if self.classifier is not None:
            x = self.linear(self.first(x, 1), self.params["pooler"])
            x = self.linear(_ACTIVATIONS[config.pooler_activation](op, x), self.classifier)
            x = op.reshape(x, self.whole([0, -1]), True)
        return inputs, [x, *(self.measured or ())]

    def input(self, name: str) -> Any:
        made = self.op.parameter([-1, -1], np.int64, name)
        made.output(0).set_names({name})
        return made

    def layer(self, x: Any, mask: Any, layer: Mapping[str, Any], rows: int | None) -> Any:
        op, attention, mlp = self.op, layer["attention"], layer["mlp"]
        three = self.dense(x, *(attention[name] for name in ("query", "key", "value")), rows=rows)
        mixed = self.dense(self.attend(three, mask), attention["output"])[0]
        x = self.norm(op.add(self.first(x, rows), mixed), layer["attention_norm"])
        hidden = _ACTIVATIONS[self.config.activation](op, self.dense(x, mlp["up"])[0])
        return self.norm(op.add(x, self.dense(hidden, mlp["down"])[0]), layer["mlp_norm"])

    def attend(self, three: Sequence[Any], mask: Any) -> Any:
        """Attention of queries, keys and values [B, L, D]."""
        op, width, heads = self.op, self.config.hidden_size, self.config.num_heads
        swap = self.whole([0, 2, 1, 3])
        parts = [op.reshape(y, self.whole([0, 0, heads, width // heads]), True) for y in three]
        mixed = op.scaled_dot_product_attention(*(op.transpose(y, swap) for y in parts), mask)
        return op.reshape(op.transpose(mixed, swap), self.whole([0, 0, width]), True)

    def first(self, x: Any, rows: int | None) -> Any:
        """The first positions of x."""
        if rows is None:
            return x
        return self.op.slice(x, *(self.whole([number]) for number in (0, rows, 1, 1)))

    def norm(self, x: Any, params: Mapping[str, Any]) -> Any:
        op = self.op
        y = op.mvn(x, self.whole([-1]), True, self.config.layer_norm_eps, "inside_sqrt")
        return op.add(op.multiply(y, self.real(params["scale"])), self.real(params["bias"]))

    def linear(self, x: Any, layer: Mapping[str, Any], kernel: Any = None) -> Any:
        kernel = self.real(layer["kernel"]) if kernel is None else kernel
        return self.op.add(self.op.matmul(x, kernel, False, False), self.real(layer["bias"]))

    def dense(self, x: Any, *layers: Mapping[str, Any], rows: int | None = None) -> list[Any]:
        """Dense layers of one input; the first one's of its first positions."""
        op = self.op
        kernels = [np.asarray(layer["kernel"], np.float32) for layer in layers]
        if self.reached is None:
            if self.measured is not None:
                axes = self.whole([0, 1])
                self.measured += [op.reduce_max(y, axes) for y in (op.negative(x), x)]
            made = [self.real(kernel) for kernel in kernels]
        else:
            ends = np.stack([next(self.reached), next(self.reached)])
            weighs = np.abs(np.concatenate(kernels, 1)).max(1)
            factor = np.maximum(ends.max(0), _LEAST) ** _SMOOTHED
            factor /= np.maximum(weighs, _LEAST) ** (1.0 - _SMOOTHED)
            low, high = np.maximum((ends / factor).max(1), _LEAST)
            # 0 is one of the steps, of which some are below it.
            below = int(np.clip(np.round(_STEPS * low / (low + high)), 1, _STEPS - 1))
            step = max(low / below, high / (_STEPS - below))
            x = self.rounded(op.multiply(x, self.real(1.0 / factor)), step, below)
            made = []
            for kernel in kernels:
                kernel = kernel * factor[:, None]
                scale = np.maximum(np.abs(kernel).max(0), _LEAST) / (_STEPS // 2)
                made.append(self.numbers(np.round(kernel / scale).astype(np.int8), scale))
        reads = [self.first(x, None if number else rows) for number in range(len(layers))]
        return [self.linear(*each) for each in zip(reads, layers, made, strict=True)]

    def rounded(self, x: Any, step: float, below: int) -> Any:
        """x in steps, of which some are below 0."""
        around = [self.real(-step * below), self.real(step * (_STEPS - below))]
        return self.op.fake_quantize(x, *around, *around, _STEPS + 1)

    def numbers(self, kernel: np.ndarray, scale: np.ndarray) -> Any:
        """A kernel in int8, with a scale for each output."""
        return self.op.multiply(self.op.convert(self.op.constant(kernel), "f32"), self.real(scale))

    def whole(self, numbers: Any) -> Any:
        return self.op.constant(np.asarray(numbers, np.int64))

    def real(self, numbers: Any) -> Any:
        return self.op.constant(np.asarray(numbers, np.float32))
