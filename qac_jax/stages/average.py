"""`qac average`: a model and the one it started from → their weighted mean."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from typing import Any, ClassVar

from qac_jax.artifacts import Writer
from qac_jax.errors import UserError
from qac_jax.pipeline.stage import MODEL, Inputs, Ref, Stage, input, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average(Stage):
    """Averages the weights of a retriever with those of the model that it was trained from.

    Pooling, prompts, titles, limits in tokens and the tokenizer are those of the start.
    """

    VERB: ClassVar[str] = "average"
    KIND: ClassVar[str] = "parameters"
    EXAMPLE: ClassVar[str] = (
        "qac average --model out/retriever --start models/start --share 0.5 --out out/mean"
    )

    model: Ref = input("retriever", kinds=("parameters", MODEL))
    start: Ref = input(
        "model of the same shape (default: none, the retriever stays as it is)",
        kinds=("parameters", MODEL),
        default="",
    )
    share: float = option(0.5, "weight of the retriever; the start has the rest of 1")

    def plan(self, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        model = inputs.get("model", {})
        same = {n: model[n] for n in ("parameters", "parameters_of_layers") if n in model}
        return {**same, "share of the retriever": self.share if self.start else 1.0}

    def check(self) -> None:
        super().check()
        if not 0.0 <= self.share <= 1.0:
            raise UserError(f"share={self.share}; expected 0 (the start) to 1 (the retriever)")

    def run(self, inputs: Inputs, out: Writer) -> None:
        import jax

        from qac_jax.hub import huggingface, names, parameters
        from qac_jax.inference.tokenizer import tokenizer_of
        from qac_jax.training.checkpoints import averaged

        places = [names.folder(inputs.path(name)) for name in ("start", "model") if name in inputs]
        loaded = [huggingface.as_dual_encoder(huggingface.load(place), place) for place in places]
        weights = (1.0 - self.share, self.share) if self.start else (1.0,)
        params = averaged([variables["params"] for _, variables in loaded], weights)
        folder = out.path / parameters.EXPORTED
        shutil.rmtree(folder, ignore_errors=True)
        out.adopt(parameters.EXPORTED, identity=parameters.save(folder, params))
        with out.open(parameters.MODULE) as file:
            module = _reading(loaded[0][0], places[0])
            json.dump(parameters.describe_module(module), file, indent=1)
        tokenizer_of(places[0]).save(str(out.path / parameters.TOKENIZER))
        out.adopt(parameters.TOKENIZER)
        out.count = sum(leaf.size for leaf in jax.tree.leaves(params))


def _reading(module: Any, place: Any) -> Any:
    """The module with the limit in tokens that its folder says beside it."""
    from qac_jax.hub import sentence_transformers

    config = module.config
    limit = min(sentence_transformers.max_length(place) or 0, config.backbone.max_length)
    limits = {name: getattr(config, name) or limit for name in ("query_length", "passage_length")}
    return module.clone(config=dataclasses.replace(config, **limits))
