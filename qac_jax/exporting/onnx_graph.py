"""Encoders of BERT's family as ONNX's nodes: int8.py's graph, whose operations are named here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qac_jax.inference import engines, int8


_OPSET, _IR = 20, 9  # ONNX Runtime reads them since 1.17
_NODES = {
    "add": "Add",
    "matmul": "MatMul",
    "multiply": "Mul",
    "relu": "Relu",
    "reshape": "Reshape",
    "shape_of": "Shape",
    "subtract": "Sub",
    "tanh": "Tanh",
    "unsqueeze": "Unsqueeze",
}
_SWAP = {"perm": [0, 2, 1, 3]}


class _Operations:
    """Operations as OpenVINO calls them. What they give are names."""

    def __init__(self) -> None:
        self.onnx = engines.library("onnx")
        self.nodes: list[Any] = []
        self.kept: list[Any] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def __getattr__(self, name: str) -> Any:
        return lambda *inputs: self.node(_NODES[name], *inputs[:2])

    def constant(self, numbers: np.ndarray) -> str:
        name = f"constant_{len(self.kept)}"
        self.kept.append(self.onnx.numpy_helper.from_array(numbers, name))
        return name

    def convert(self, x: str, kind: str) -> str:
        return self.node("Cast", x, to=self.onnx.TensorProto.FLOAT)

    def gather(self, x: str, rows: str, axis: str) -> str:
        return self.node("Gather", x, rows)

    def gelu(self, x: str, how: str) -> str:
        return self.node("Gelu", x, approximate="tanh" if how == "tanh" else "none")

    def slice(self, x: str, start: str, stop: str, step: str, axes: str) -> str:
        return self.node("Slice", x, start, stop, axes, step)


class Graph(int8.Graph):
    def model(self) -> Any:
        """A ModelProto."""
        self.op = _Operations()
        inputs, (found,) = self.built()
        helper, proto, nodes = self.op.onnx.helper, self.op.onnx.TensorProto, self.op.nodes
        nodes.append(helper.make_node("Identity", [found], [self.result]))
        taken = helper.make_tensor_value_info
        axes = ["batch", "length"]
        given = [taken(name, proto.INT64, axes) for name in inputs]
        ends = ["batch", None] if self.classifier else [*axes, self.config.hidden_size]
        results = [taken(self.result, proto.FLOAT, ends)]
        read = {name for node in nodes for name in node.input}
        kept = [each for each in self.op.kept if each.name in read]
        graph = helper.make_graph(nodes, "encoder", given, results, kept)
        versions = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=versions, ir_version=_IR)

    def input(self, name: str) -> str:
        return name

    def attend(self, three: Sequence[str], mask: str) -> str:
        node, width, heads = self.op.node, self.config.hidden_size, self.config.num_heads
        shape, end = self.whole([0, 0, heads, width // heads]), self.whole([0, 0, width])
        query, key, value = (node("Reshape", x, shape) for x in three)
        # What the products become one node of.
        query = node("Transpose", query, **_SWAP)
        key = node("Transpose", key, perm=[0, 2, 3, 1])
        value = node("Transpose", value, **_SWAP)
        scores = node("Div", node("MatMul", query, key), self.real((width // heads) ** 0.5))
        shares = node("Softmax", node("Add", scores, mask), axis=-1)
        return node("Reshape", node("Transpose", node("MatMul", shares, value), **_SWAP), end)

    def norm(self, x: str, params: Mapping[str, Any]) -> str:
        scale, bias = (self.real(params[name]) for name in ("scale", "bias"))
        epsilon = self.config.layer_norm_eps
        return self.op.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def rounded(self, x: str, step: float, below: int) -> str:
        how = self.real(step), self.op.constant(np.uint8(below))
        return self.op.node("DequantizeLinear", self.op.node("QuantizeLinear", x, *how), *how)

    def numbers(self, kernel: np.ndarray, scale: np.ndarray) -> str:
        kept, zeros = self.op.constant(kernel), self.op.constant(np.zeros(scale.size, np.int8))
        return self.op.node("DequantizeLinear", kept, self.real(scale), zeros, axis=1)
