"""`qac export`: parameters → a folder that other libraries load; vectors → FAISS's file."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qac_jax import artifacts, progress
from qac_jax.artifacts import Artifact, Writer
from qac_jax.errors import UserError
from qac_jax.evaluation import results
from qac_jax.hub.names import tokenizer_folder, tokenizer_of
from qac_jax.inference.settings import ENGINES, POOLINGS
from qac_jax.pipeline.stage import Inputs, Ref, Stage, input, model_input, option
from qac_jax.retrieval import corpus
from qac_jax.retrieval.vectors import Vectors


if TYPE_CHECKING:
    from qac_jax.hub.backbones import Loaded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(Stage):
    """Writes a model for transformers or sentence-transformers, loads it back and compares.

    A dual encoder becomes a sentence-transformers folder (with two towers it has one for each,
    `query` and `passage`, and a router), or its bare encoder; encoders, T5 and cross-encoders
    become folders of transformers.
    """

    VERB = "export"
    KIND = "model"
    EXAMPLE = "qac export --model out/retriever --license apache-2.0 --out out/my-retriever"

    model: Ref = model_input("model to export")
    form: str = option(
        "auto",
        "form of the folder; auto: sentence_transformers for dual encoders, else huggingface; "
        "openvino, onnx: with a graph for that library beside",
        choices=("auto", "huggingface", "sentence_transformers", *ENGINES),
    )
    int8: bool = option(False, "layers in int8 (openvino, onnx)")
    pooling: str = option("", "pooling that a bare encoder is given", choices=("", *POOLINGS))
    dtype: str = option("float32", "type of the weights", choices=("float32", "float16"))
    encoder: Ref = model_input(
        "model whose encoder a pointer-generator shares; it is left out", default=""
    )
    name: str = option("", "model card: name (default: the folder's)")
    license: str = option("", "model card: licence of the weights, such as apache-2.0")
    language: str = option("", "model card: language, such as en")
    data: str = option("", "model card: training data, in a sentence")
    base_model: str = option("", "model card: the model it was made from, by its name at the Hub")
    datasets: tuple[str, ...] = option((), "model card: its training data sets at the Hub")
    figures: Ref = input("model card: metrics", "metrics", default="")

    def run(self, inputs: Inputs, out: Writer) -> None:
        import jax

        from qac_jax.exporting import graphs, model_card
        from qac_jax.hub import huggingface
        from qac_jax.models.backbone import Backbone
        from qac_jax.models.layers import Runtime

        if self.int8 and self.form not in ENGINES:
            raise UserError("--int8 needs --form openvino or --form onnx")
        place = Path(inputs.text("model"))
        loaded = huggingface.load(place, Runtime(scan=True), pooling=self.pooling or None)
        module, variables = self._shaped(loaded, place)
        longest = _longest(module, place)
        # The folder is checked before it is published.
        work = Path(os.fspath(out.scratch("model")))
        shutil.rmtree(work)
        huggingface.save(
            work,
            module,
            variables,
            tokenizer=tokenizer_folder(place),
            max_length=longest or None,
            dtype=self.dtype,
            encoder=inputs.text("encoder"),
        )
        progress.say("export: loading it back")
        _compare(variables, huggingface.load(work, Runtime(scan=True))[1], self.dtype)
        if self.form in ENGINES:
            out.info |= {"engine": self.form, **graphs.write(work, self.form, self.int8)}
        for path in sorted(work.iterdir()):
            os.replace(path, os.fspath(out.begin(path.name)))
            out.adopt(path.name)
        work.rmdir()
        form, described = self._named(module), ("license", "language", "data", "base_model")
        card = {name: getattr(self, name) for name in (*described, "datasets", "dtype")}
        text = model_card.text(
            {**card, "name": self.name or out.path.name},
            "encoder" if isinstance(module, Backbone) else form,
            module,
            place,
            tokenizer_of(place),
            results.read(inputs.artifact("figures"))[0] if self.figures else [],
        )
        out.write_text("README.md", text)
        out.count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
        out.info["form"] = form

    def _shaped(self, loaded: Loaded, place: Path) -> Loaded:
        """The module that the requested form is written from."""
        from qac_jax.hub import huggingface
        from qac_jax.models.backbone import Backbone
        from qac_jax.models.encoders import CrossEncoder, DualEncoder

        module, variables = loaded
        graph = self.form in ENGINES and not isinstance(module, CrossEncoder)
        vectors = self.form == "sentence_transformers" or graph or bool(self.pooling)
        if vectors and isinstance(module, Backbone | DualEncoder):
            return huggingface.as_dual_encoder(loaded, place, self.pooling or None)
        if vectors:
            raise UserError(
                f"{place} is a {type(module).__name__}, which makes no vectors of texts; export "
                "it with --form huggingface"
            )
        if self.form == "huggingface" and isinstance(module, DualEncoder):
            if not module.config.tied or module.config.projection is not None:
                raise UserError(
                    f"{place} is more than one encoder (two towers, or a projection); export it "
                    "with --form sentence_transformers"
                )
            params = variables["params"]["encoder"]["backbone"]
            return module.config.backbone.build(module.runtime), {"params": params}
        return loaded

    def _named(self, module: Any) -> str:
        """The type of the folder: a form of dual encoders, or the network's class."""
        from qac_jax.models.encoders import DualEncoder

        if not isinstance(module, DualEncoder):
            return type(module).__name__
        return "sentence_transformers" if module.config.tied else "two_towers"


def _compare(kept: Any, written: Any, dtype: str) -> None:
    """Raises UserError where parameters that were loaded back are others."""
    import jax
    import numpy as np

    near = (1e-3, 1e-7) if dtype == "float16" else (0.0, 0.0)
    same = jax.tree.map(lambda one, other: np.allclose(one, other, *near), kept, written)
    if not all(jax.tree.leaves(same)):
        raise UserError(
            f"loaded back from {dtype}, the exported model is another one, so it is not written; "
            "please report its configuration"
        )


def _longest(module: Any, place: Path) -> int:
    """Maximum length of the longer side of a dual encoder (0: its number of positions)."""
    from qac_jax.hub import sentence_transformers
    from qac_jax.models.encoders import DualEncoder

    if not isinstance(module, DualEncoder):
        return 0
    sides = [getattr(module.config, f"{side}_length") for side in ("query", "passage")]
    known = max(sides) if all(sides) else sentence_transformers.max_length(place) or 0
    return min(known, module.config.backbone.max_length)


FILE = "index.faiss"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportFaiss(Stage):
    """Writes vectors as an IndexFlatIP of FAISS, and their ids, a line each, in the same order.

    FAISS's approximate indexes can be trained on and filled from this one.
    """

    VERB = "export"
    KIND = "faiss"
    EXAMPLE = "qac export --faiss out/index --out out/faiss"

    faiss: Ref = input(
        "vectors of qac embed, or an exact index, with BM25 or not", "vectors", "index", "hybrid"
    )

    def run(self, inputs: Inputs, out: Writer) -> None:
        from qac_jax.retrieval import approximate, hybrid, index

        artifact = inputs.artifact("faiss")
        if artifact.kind == hybrid.KIND:
            artifact = artifacts.load(artifact.path / hybrid.DENSE)
        if artifact.kind == "vectors":
            vectors = Vectors.of(artifact)
        else:
            opened = index.Index(artifact)
            if opened.description["method"] != index.EXACT:
                raise UserError(
                    f"{artifact.path} is an approximate index, of which no vectors are exported; "
                    "give the vectors that it was made of"
                )
            vectors = opened.vectors
        path = os.fspath(out.begin(FILE))
        approximate.faiss_library().write_index(approximate.flat(vectors), path)
        out.adopt(FILE)
        out.count = corpus.write_ids(out, corpus.Ids(artifact))
        out.info.update(dimension=vectors.width, encoder=artifact.info["encoder"])

    def summary(self, artifact: Artifact) -> str:
        return f'faiss.read_index("{artifact.path / FILE}")'
