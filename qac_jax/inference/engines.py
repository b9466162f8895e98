"""Encoders and rerankers that OpenVINO or ONNX Runtime computes on CPUs.

`qac export --form openvino|onnx` stores such graphs in a model's folder, where optimum and
sentence-transformers look for them. A folder that was exported so is computed so on CPUs;
`--precision openvino|onnx` asks for the graph of any folder.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qac_jax import artifacts, extras
from qac_jax.errors import UserError
from qac_jax.hub import huggingface
from qac_jax.inference.runner import Hidden
from qac_jax.processes import cores


FILES = {"openvino": "openvino/openvino_model.xml", "onnx": "onnx/model.onnx"}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_EXTRAS = {"openvino": "int8", "onnx": "onnx", "onnxruntime": "onnx"}


def of(folder: Path, precision: str) -> str:
    """What computes the model of a folder: "openvino", "onnx", or "" for JAX."""
    if precision in FILES:
        return precision
    record = artifacts.peek(folder) if precision == "auto" else None
    if record is None or record["kind"] != huggingface.EXPORTED or jax.default_backend() != "cpu":
        return ""
    return str(record["info"].get("engine", ""))


def load(folder: Path, form: str) -> Hidden:
    """The first result (last hidden states, logits) of a folder's graph."""
    file = folder / FILES[form]
    if not file.is_file():
        raise UserError(
            f"there is no {file}; `qac export --model {folder} --form {form} --out DIR` makes a "
            "folder that has it"
        )
    if form == "openvino":
        compute = openvino(file)
        return lambda *batch: compute(*batch)[0]
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    result = session.get_outputs()[0].name
    names = [each.name for each in session.get_inputs()]
    return lambda *batch: session.run([result], _given(names, *batch))[0]


def openvino(model: Any) -> Callable[..., list[np.ndarray]]:
    """All results of a graph, or of its file, for ids, token types and lengths."""
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": cores()}
    compiled = library("openvino").Core().compile_model(model, "CPU", settings)
    request, lock = compiled.create_infer_request(), threading.Lock()
    names = [each.any_name for each in compiled.inputs]

    def compute(*batch: np.ndarray) -> list[np.ndarray]:
        with lock:
            return list(request.infer(_given(names, *batch)).values())

    return compute


def _given(
    names: list[str], ids: np.ndarray, types: np.ndarray, lengths: np.ndarray
) -> Mapping[str, np.ndarray]:
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    known = dict(zip(INPUTS, (ids, mask, types), strict=True))
    return {name: known[name].astype(np.int64) for name in names}


def library(name: str) -> Any:
    # OpenVINO's import tells Intel of itself over the network, but not without this package.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    extra = _EXTRAS[name.partition(".")[0]]
    return extras.load(name, extra, f"the graph of a model in {extra}")
