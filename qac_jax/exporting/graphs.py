"""`qac export --form openvino|onnx`: the graph of a model, where its library looks for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.hub.sentence_transformers import transformer_folder
from qac_jax.inference import engines, int8
from qac_jax.inference.encoder import Encoder
from qac_jax.inference.reranker import Pair, Reranker
from qac_jax.inference.settings import Inference, RerankerOptions
from qac_jax.models.backbone import BackboneConfig


_NEAR = 1e-3  # results in fp32, beside JAX's
_LARGE = 2**31 - 2**24  # bytes; a file of protobuf has fewer


def write(folder: Path, form: str, in_int8: bool) -> dict[str, float]:
    """Writes the graphs of a model's folder and compares their results with JAX's."""
    found, expected = (_scores if huggingface.is_cross_encoder(folder) else _vectors)(
        folder, form, in_int8
    )
    furthest = float(np.abs(found - expected).max())
    if not in_int8 and furthest > _NEAR:
        raise UserError(
            f"results of the graph for {form} differ from JAX's by {furthest:.1e}, so it is not "
            "written; please report the model's configuration"
        )
    like = float(np.corrcoef(found.ravel(), expected.ravel())[0, 1])
    progress.say(f"export: correlation of the graph's results with JAX's in fp32 {like:.4f}")
    return {"correlation": like}


def _vectors(folder: Path, form: str, in_int8: bool) -> tuple[np.ndarray, np.ndarray]:
    plain = Encoder.load(folder, inference=Inference("float32"))
    config, given = plain.module.config.backbone, {}
    for tower, sides in plain.towers.items():
        samples = list(plain.samples(sides))
        params = plain.runner.params[tower]["backbone"]
        _store(
            transformer_folder(folder, sides[-1]),
            form,
            config,
            params,
            samples if in_int8 else None,
        )
        given[sides[-1]] = [ids.tolist() for ids, _ in samples]
    made = [plain, Encoder.load(folder, inference=Inference(form))]
    read = [[each.encode_tokens(rows, s) for s, rows in given.items()] for each in made]
    return np.concatenate(read[1]), np.concatenate(read[0])


def _scores(folder: Path, form: str, in_int8: bool) -> tuple[np.ndarray, np.ndarray]:
    options = RerankerOptions(max_length=0)
    plain = Reranker.load(folder, options, Inference("float32"))
    samples, params = plain.samples(), plain.runner.params
    measure = samples if in_int8 else None
    _store(folder, form, plain.module.config, params["backbone"], measure, params["classifier"])
    made = Reranker.load(folder, options, Inference(form))
    return made.score_tokens(samples), plain.score_tokens(samples)


def _store(
    folder: Path,
    form: str,
    config: BackboneConfig,
    params: Mapping[str, Any],
    samples: list[Pair] | None,
    classifier: Mapping[str, Any] | None = None,
) -> None:
    """samples: what int8 is measured on; without, the graph is in fp32."""
    rows = config.pooler_rows if classifier else None
    int8.check(config, f"--form {form}")
    kind = int8.Graph if form == "openvino" else OnnxGraph
    reached = int8.measured(config, params, samples) if samples else None
    graph = kind(config, params, rows, reached, classifier)
    file = folder / engines.FILES[form]
    file.parent.mkdir()
    if form == "openvino":
        library = engines.library("openvino")
        library.save_model(graph.model(), file, compress_to_fp16=False)
        return
    model = graph.model()
    large = sum(len(each.raw_data) for each in model.graph.initializer) > _LARGE
    apart = {"save_as_external_data": large, "location": f"{file.name}_data"}
    engines.library("onnx").save(model, file, **apart)


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


class OnnxGraph(int8.Graph):
    """int8.py's graph as ONNX's nodes, whose operations are named here."""

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
