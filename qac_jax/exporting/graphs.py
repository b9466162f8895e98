"""`qac export --form openvino|onnx`: the graph of a model, where its library looks for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qac_jax import progress
from qac_jax.errors import UserError
from qac_jax.exporting import onnx_graph
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
    kind = int8.Graph if form == "openvino" else onnx_graph.Graph
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
